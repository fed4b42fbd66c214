"""Figures of N targets by the metrics' names: as published, as simulated, and the trivial guess."""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.results.statistics import Interval
from treepipe.studies.starsd.fit import Calibration, Column
from treepipe.studies.starsd.testbed import Simulated

UNITS = {
    "throughput_tokens_s": "tokens/s",
    "per_target_tokens_s": "tokens/s",
    "draft_rounds_s": "1/s",
    "target_rounds_s": "1/s",
    "draft_idle_ms": "ms",
    "draft_wait_ms": "ms",
    "draft_load": "1",
    "t_s_ms": "ms",
}
"""Metrics of a column."""
GROWING = ("throughput_tokens_s", "draft_rounds_s", "draft_load")
"""Those that the trivial predictor scales with N; it keeps the others."""


def figures(column: Column) -> dict[str, float]:
    """A published column by metric."""
    return {metric: getattr(column, metric) for metric in UNITS}


def as_counted(calibration: Calibration, seen: Simulated) -> dict[str, Interval]:
    """Simulated figures as the paper counts them.

    Tokens are rounds times their expected tokens, which takes the noise of acceptance out.
    """
    n, bed, counts = seen.targets, calibration.bed, calibration.yield_of(seen.targets)
    return {
        "throughput_tokens_s": seen.rounds.scaled(bed.tokens * counts.counted),
        "per_target_tokens_s": seen.rounds.scaled(bed.tokens * counts.attended / n),
        "draft_rounds_s": seen.rounds,
        "target_rounds_s": seen.rounds.scaled(counts.attended / n),
        "draft_idle_ms": seen.idle,
        "draft_wait_ms": seen.wait,
        "draft_load": seen.load.scaled(counts.loaded),
        "t_s_ms": seen.service.scaled(bed.step_ms / bed.service_ms),
    }


def linear(given: Sequence[Column], n: int) -> dict[str, float]:
    """The trivial predictor: from the nearest column (the smaller of two), rates grow with N."""
    nearest = min(given, key=lambda column: (abs(column.n - n), column.n))
    values = figures(nearest)
    for metric in GROWING:
        values[metric] *= n / nearest.n
    values["draft_load"] = min(1.0, values["draft_load"])
    return values
