"""All that the study of SpecPipe simulated, and what follows from it by arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treepipe.results.metrics import METRIC
from treepipe.results.statistics import Interval
from treepipe.sim.points import Outcome
from treepipe.sim.theory.layered import specpipe_even_tbt_ms
from treepipe.studies.layered.calibration import Levels
from treepipe.studies.layered.cluster import PRUNE_MS, Cluster

FLAT = 0.03
"""Widths this near to the best one are called as good."""


@dataclass(frozen=True, slots=True)
class Server:
    """Times between tokens in milliseconds, on one cluster.

    Attributes:
        plain_ms: of the plain pipeline.
        code: per schedule, on HumanEval-X.
        specpipe, specinfer: per level, the one with most misses first.
    """

    plain_ms: float
    code: Mapping[str, Interval]
    specpipe: Sequence[Interval]
    specinfer: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class Found:
    """All that was simulated."""

    levels: Levels
    servers: Mapping[str, Server]
    widths: Mapping[int, Outcome]
    children: Mapping[int, Outcome]
    batches: Mapping[int, Outcome]
    sensitivity: Mapping[str, Interval]
    cluster: Cluster

    @property
    def best_width(self) -> int:
        return min(self.widths, key=lambda width: self.time_ms(width))

    def time_ms(self, width: int) -> float:
        return self.widths[width].metrics[METRIC].mean

    @property
    def flat(self) -> list[int]:
        """Widths that are as good as the best one."""
        bound = (1 + FLAT) * self.time_ms(self.best_width)
        return [width for width in self.widths if self.time_ms(width) <= bound]

    def level_ms(self, width: int) -> float:
        """Time between tokens if a stage took as long for ``width`` rows as for one."""
        one, all_rows = (self.cluster.slowest_ms(rows) + PRUNE_MS for rows in (1, width))
        return self.time_ms(width) * one / all_rows

    def equation_ms(self, width: int) -> tuple[float, float]:
        """SpecPipe's equation 2 with the simulated hit rate, in its two readings (N - 1, N)."""
        step = self.cluster.slowest_ms(width) + PRUNE_MS
        hit, stages = self.widths[width].metrics["hit_rate"].mean, len(self.cluster.cards)
        return (
            specpipe_even_tbt_ms(step, hit, stages, "N-1"),
            specpipe_even_tbt_ms(step, hit, stages, "N"),
        )
