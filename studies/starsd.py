"""StarSD's threshold: one draft for N = 1..12 targets, from the columns N = 1..4 of its table 1.

The simulator's testbed is fitted to those columns (``starsd_fit.py``); as a test every column is
also predicted from the others, beside a trivial predictor: rates that grow linearly with N. From
N = 5 on nothing is fitted. Times are in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.figure import Figure

from treepipe.progress import Progress
from treepipe.results.plots import BLUE, GREY
from treepipe.results.statistics import Interval
from treepipe.studies import starsd_fit as fit
from treepipe.studies.plots import PUBLISHED, Line, Panel, line_figure
from treepipe.studies.reproduction import Reproduction, predicted, published
from treepipe.studies.starsd_fit import BESIDE, Testbed, simulate, simulate_columns
from treepipe.studies.study import Entry, StudyResult

NAME = "starsd-threshold"
PAGE = Path(__file__).with_name("starsd.md")
FULL_LOAD = 0.95
PREDICTED = {"color": BLUE, "label": "predicted"}


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job."""

    targets: Sequence[int] = tuple(range(1, 13))
    runs: int = 3
    left_out: Sequence[int] = (1, 2, 3, 4)
    turns: int = 2000
    effort: fit.Effort = field(default_factory=fit.Effort)


SHORT, FULL = Settings(), Settings(runs=12)


Values: TypeAlias = dict[int, dict[str, Interval]]
"""Figures by N and metric."""


def study(settings: Settings, say: Progress) -> StudyResult:
    """Calibrate, predict, leave columns out, and report."""
    given = fit.columns()
    calibration = fit.calibrate(list(given.values()), say, settings.effort)
    values, loads = _predict(calibration, given, settings, say)
    left_out, trivial = _leave_out(given, settings, say)
    tests = _entries("left-out/", left_out, given, fitted=False)
    thresholds = [
        predicted("n_full", "targets", calibration.bed.cycle().n_full),
        Entry("n_full/simulated", "targets", fewest(loads)),
        predicted("n_max", "targets", n_max(values)),
        predicted("alone_tokens_s", "tokens/s", alone_tokens_s()),
    ]
    made = Reproduction(NAME, PAGE)
    entries = [*_entries("", values, given, fitted=True), *thresholds]
    made.add(entries, "figures", "N targets: calibrated up to 4")
    made.add(tests)
    for metric in fit.METRICS:
        same = [e for e in tests if e.key.endswith(f"/{metric}") and e.predicted]
        made.leave_out({f"starsd/n={n}": [e for e in same if f"/n={n}/" in e.key] for n in given})
    made.trivial = trivial
    fields = _fields(calibration, values, given)
    return made.result(fields, _targets_figure(values, given))


def _named(use: str) -> dict[str, str]:
    """Return what ``starsd-metrics.toml`` says about a use, for the metrics that have it."""
    return {metric: facts[use] for metric, facts in fit.METRICS.items() if use in facts}


def fewest(loads: Mapping[int, float]) -> int | None:
    """Return the smallest number of targets that fully load the draft, or None.

    >>> fewest({1: 0.3, 2: 0.6, 3: 0.97, 4: 1.0}), fewest({1: 0.3})
    (3, None)
    """
    return min((n for n, share in loads.items() if share >= FULL_LOAD), default=None)


# --- predictions ---------------------------------------------------------------------------------


def slowing(given: Mapping[int, fit.Column]) -> tuple[float, float, float]:
    """Return factors on the draft's times with more targets than in the last published column.

    Its turn grows from N = 3 to 4 by the second server or by the load. The columns N = 2 and 3
    speak for the server: t_s is the same in both, at half and three quarters of the load. Then the
    turn grows no further (the factor 1). At the other end it grows by all idle time that N = 4 has
    left: with more, the rounds would slow down, which section 5.2 excludes ("marginal improvement
    in R_q"). Nothing chooses between these ends; the first factor is their middle.
    """
    last = given[max(given)]
    most = 1e3 / last.draft_rounds_s / last.service_ms
    return math.sqrt(most), 1.0, most


def _predict(
    calibration: fit.Calibration, given: Mapping[int, fit.Column], settings: Settings, say: Progress
) -> tuple[Values, dict[int, float]]:
    """Simulate the calibrated testbed, beyond the published columns with all slowings; returns
    figures, and the draft's load by N."""
    bed = replace(calibration.bed, turns=settings.turns)
    beds: dict[int, list[Testbed]] = {}
    for n in settings.targets:
        second, factors = bed.second, slowing(given) if n > max(given) else (1.0,)
        slower = (replace(second, slow=second.slow * factor) for factor in factors)
        beds[n] = [replace(bed, second=each) for each in slower]
    trials = {f"{n}/{i}": (each, n) for n, own in beds.items() for i, each in enumerate(own)}
    seen = simulate(trials, settings.runs, say, "predicting")
    values: Values = {}
    for n, own in beds.items():
        counted = [calibration.counted(seen[f"{n}/{i}"]) for i in range(len(own))]
        values[n] = {m: _envelope([each[m] for each in counted]) for m in fit.METRICS}
    return values, {n: seen[f"{n}/0"].load.mean for n in beds}


def _envelope(values: Sequence[Interval]) -> Interval:
    """Return the first interval's mean with bounds around all intervals."""
    low = min(v.mean if v.low is None else v.low for v in values)
    high = max(v.mean if v.high is None else v.high for v in values)
    return Interval(values[0].mean, low, high) if low < high else values[0]


def _leave_out(
    given: Mapping[int, fit.Column], settings: Settings, say: Progress
) -> tuple[Values, dict[str, float]]:
    """Predict each column from the others of N = 1..3 (N = 4 does not help them). Also returns the
    trivial predictor's figures by their entries' keys."""
    found, trivial = Values(), dict[str, float]()
    for n in settings.left_out:
        rest = [column for column in given.values() if column.n != n and column.n <= BESIDE]
        calibration = fit.calibrate(rest, say, settings.effort)
        bed = replace(calibration.bed, turns=settings.turns)
        seen = simulate_columns(bed, [n], settings.runs, say, f"leaving out N = {n}")[n]
        found[n] = calibration.counted(seen)
        trivial |= {f"left-out/n={n}/{metric}": v for metric, v in fit.linear(rest, n).items()}
    return found, trivial


def alone_tokens_s() -> float:
    """Return the tokens per second of a single target: a verification without the draft's time, one
    token each.

    From the table's co-located EAGLE: its round less S at its t_s; passes over a tree and over a
    token take equally long if reading the weights dominates.
    """
    eagle = published()["starsd"]["table1"]["eagle_colocated"]
    near = [column for column in fit.columns().values() if 1 < column.n <= BESIDE]
    steps = sum(column.service_ms / column.t_s_ms for column in near) / len(near)
    return float(1e3 / (1e3 / eagle["rounds_s"] - steps * eagle["t_s_ms"]))


def n_max(values: Values) -> Interval:
    """Return the largest number of targets that are each as fast as alone, with its interval."""
    speeds = {n: own["per_target_tokens_s"] for n, own in values.items()}
    ends = {n: (speed.mean, *speed.ends) for n, speed in speeds.items()}

    def most(which: int) -> int:
        """Count by an end of the speeds, or by their mean where they have none."""
        own = {n: each[0] if each[which] is None else each[which] for n, each in ends.items()}
        return max(
            (n for n, s in own.items() if s is not None and s >= alone_tokens_s()), default=0
        )

    return Interval(most(0), most(1), most(2))


# --- entries, tables, fields and the plot --------------------------------------------------------


def _entries(
    prefix: str, values: Values, given: Mapping[int, fit.Column], fitted: bool
) -> list[Entry]:
    facts, units = {n: column.figures for n, column in given.items()}, _named("unit")
    return [
        predicted(f"{prefix}n={n}/{m}", units[m], value, facts.get(n, {}).get(m), fitted)
        for n, own in values.items()
        for m, value in own.items()
    ]


def _fields(
    calibration: fit.Calibration, values: Values, given: Mapping[int, fit.Column]
) -> dict[str, Any]:
    rates = {n: each["throughput_tokens_s"].mean for n, each in values.items()}
    growth = {n: rates[n] / rates[n - 1] - 1 for n in rates if n - 1 in rates}
    return {
        "growth": {5: None, 6: None, **growth},
        "full_load": FULL_LOAD,
        "bed": calibration.bed,
        "most": max(rates),
        "testbed": fit,
        "slowing": slowing(given)[-1] - 1,
        "load_error": max(abs(c.passes_load / c.draft_load - 1) for c in given.values()),
        "step_slow": calibration.bed.second.slow * calibration.bed.second.step_share,
    }


def _targets_figure(values: Values, given: Mapping[int, fit.Column]) -> Figure:
    alone = {"color": GREY, "ls": ":", "label": "a target that decodes alone"}
    panels = []
    for metric, label in _named("plot").items():
        lines = [
            Line({n: own[metric] for n, own in values.items()}, PREDICTED),
            Line({n: column.figures[metric] for n, column in given.items()}, PUBLISHED),
        ]
        if metric == "per_target_tokens_s":
            lines.append(Line(dict.fromkeys(values, alone_tokens_s()), alone))
        panels.append(Panel(label, lines))
    title = "StarSD: one draft for N targets, calibrated on the published columns, N = 1 to 4"
    return line_figure(title, "N: targets that share the draft", panels, columns=2)
