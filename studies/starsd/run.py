"""StarSD's threshold: one draft for N = 1..12 targets, from the columns N = 1..4 of its table 1.

The simulator's testbed is fitted to those columns (``fit.py``); every column is also
predicted from the others, which is the honest test, beside a trivial predictor: rates that grow
linearly with N. From N = 5 on nothing is fitted. Times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from treepipe.results.plots import BLUE, GREY
from treepipe.results.sheet import Sheet
from treepipe.results.show import Say
from treepipe.results.statistics import Interval
from treepipe.studies.plots import PUBLISHED, Line, Panel, line_figure
from treepipe.studies.reproduction import (
    Reproduction,
    ScoreSheet,
    calibrated,
    predicted,
    published,
    score,
)
from treepipe.studies.starsd.counting import UNITS, as_counted, figures, linear
from treepipe.studies.starsd.fit import Calibration, Column, Effort, calibrate, columns
from treepipe.studies.starsd.testbed import (
    BESIDE,
    COLD_AT_MS,
    COLD_FROM_MS,
    LAYERS,
    Simulated,
    Testbed,
    simulate,
    simulate_columns,
)
from treepipe.studies.study import Entry, Measuring, StudyResult

NAME = "starsd-threshold"
PAGE = Path(__file__).with_name("page.md")
FULL_LOAD = 0.95
PREDICTED = {"color": BLUE, "label": "predicted"}
MEASURED_TARGETS = (1, 2, 3, 4, 5, 6)
SLOW_MOTION = 4.0
"""Two cores keep up with a draft process and six targets whose times are so many times as long."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done: numbers of targets, runs."""

    targets: Sequence[int] = tuple(range(1, 13))
    runs: int = 3
    left_out: Sequence[int] = (1, 2, 3, 4)
    turns: int = 2000
    effort: Effort = field(default_factory=Effort)
    measuring: Measuring | None = None


@dataclass(slots=True)
class Found:
    """All figures of the study.

    Attributes:
        values: by N and metric, with the interval.
        seen: what the simulator counted, by N.
        tests: columns predicted from the others, by N and metric.
        trivial: the same by the trivial predictor.
    """

    calibration: Calibration
    values: dict[int, dict[str, Interval]] = field(default_factory=dict)
    seen: dict[int, Simulated] = field(default_factory=dict)
    tests: dict[int, dict[str, Interval]] = field(default_factory=dict)
    trivial: dict[int, dict[str, float]] = field(default_factory=dict)


def run(say: Say, full: bool, measure: bool) -> StudyResult:
    """3 runs per number of targets, or 12. Up to six targets can be measured."""
    settings = Settings(runs=12) if full else Settings()
    return study(replace(settings, measuring=Measuring()) if measure else settings, say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Calibrate, predict, leave out, and say so."""
    given = columns()
    found = Found(calibrate(list(given.values()), say, settings.effort))
    _predict(found, given, settings, say)
    _leave_out(found, given, settings, say)
    tests = _test_entries(found, given)
    made = Reproduction(NAME, PAGE)
    entries = [*_entries(found, given), *_thresholds(found)]
    made.add(entries, "figures", "N targets: calibrated up to 4")
    made.table(_scores(found, tests))
    made.add(tests, "left-out", "Each column predicted from the others (of N = 1..3)")
    result = made.result(_fields(found, given), {NAME: _targets_figure(found, given)})
    if settings.measuring is not None:
        measure_targets(result, found.calibration.bed, MEASURED_TARGETS, settings.measuring, say)
    return result


def measure_targets(
    study: StudyResult, bed: Testbed, targets: Sequence[int], measuring: Measuring, say: Say
) -> None:
    """The measured column of the draft's rounds, on the study's page."""
    from treepipe.results.steady import steady
    from treepipe.studies.measured import Axis, measure  # needs the executor

    slowly = replace(bed, slow_motion=SLOW_MOTION)
    scenarios = {n: slowly.scenario(n, measuring.runs) for n in targets}
    metrics = {
        "draft_rounds_s": "draft rounds",
        "draft_idle_ms": "draft idle per turn",
        "draft_wait_ms": "waiting for the draft per turn",
    }
    axis = Axis("n", "N: targets that share the draft process")
    column = measure(axis, scenarios, metrics, measuring, say, steady)
    rows = column.rows.items()
    expected = {n: load({name: v.mean for name, v in row.metrics.items()}) for n, row in rows}
    seen = {n: load(row.measured_metrics) for n, row in rows}
    entry = Entry("measured/n_full", "targets", fewest(expected), measured=fewest(seen))
    title = f"One emulated draft for N targets, all times {SLOW_MOTION:g} times as long"
    column.join(study, title, [entry])


def load(metrics: Mapping[str, float]) -> float:
    """Share of its time that the draft serves."""
    service, idle = metrics["draft_service_ms"], metrics["draft_idle_ms"]
    return service / (service + idle)


def fewest(loads: Mapping[int, float]) -> int | None:
    """The smallest number of targets with which the draft is fully loaded, if there is one.

    >>> fewest({1: 0.3, 2: 0.6, 3: 0.97, 4: 1.0}), fewest({1: 0.3})
    (3, None)
    """
    return min((n for n, share in loads.items() if share >= FULL_LOAD), default=None)


def _fields(found: Found, given: Mapping[int, Column]) -> dict[str, Any]:
    """What the page says beyond the entries."""
    rates = {n: each["throughput_tokens_s"].mean for n, each in found.values.items()}
    missed = [1 - column.attended for column in given.values() if column.n > 1]
    growth = {n: rates[n] / rates[n - 1] - 1 for n in rates if n - 1 in rates}
    return {
        "growth": {5: None, 6: None, **growth},
        "full_load": FULL_LOAD,
        "bed": found.calibration.bed,
        "yields": found.calibration.yields,
        "given": given,
        "most": max(rates),
        "beside": BESIDE,
        "layers": LAYERS,
        "layers_ms": LAYERS * given[2].t_s_ms,
        "cold_ms": (COLD_FROM_MS, COLD_AT_MS),
        "step_rise_ms": given[4].t_s_ms - given[3].t_s_ms,
        "missed": (min(missed), max(missed)),
    }


# --- predictions ----------------------------------------------------------------------------


def slowing(given: Mapping[int, Column], targets: int) -> tuple[float, float, float]:
    """How much slower than in the last published column the draft is with more targets.

    Its step grows from N = 3 to 4, with its load or with the targets behind the network: nobody
    knows which. Returns the middle (t_s grows in line with the load, which ends at 1), the least
    (no more) and the most (as much again for every further target).
    """
    *_, before, last = given.values()
    rise = (last.t_s_ms - before.t_s_ms) / last.t_s_ms
    middle = 1 + rise * (1 - last.draft_load) / (last.draft_load - before.draft_load)
    return middle, 1.0, 1 + rise * (targets - last.n)


def _predict(found: Found, given: Mapping[int, Column], settings: Settings, say: Say) -> None:
    """Simulate the calibrated testbed; beyond the published columns also over what slows how much.

    Intervals are of the mean.
    """
    bed = replace(found.calibration.bed, turns=settings.turns)
    beds: dict[str, tuple[Testbed, int]] = {}
    for n in settings.targets:
        beds[f"{n}/0"] = bed, n
        if n > max(given):
            for place, factor in enumerate(slowing(given, n)):
                second = replace(bed.second, slow=bed.second.slow * factor)
                beds[f"{n}/{place}"] = replace(bed, second=second), n
    seen = simulate(beds, settings.runs, say, "predicting")
    for n in settings.targets:
        found.seen[n] = seen[f"{n}/0"]
        variants = [as_counted(found.calibration, s) for k, s in seen.items() if _targets(k) == n]
        found.values[n] = {
            metric: _envelope([variant[metric] for variant in variants]) for metric in UNITS
        }


def _targets(label: str) -> int:
    return int(label.split("/")[0])


def _envelope(values: Sequence[Interval]) -> Interval:
    """The first one's mean, and bounds around all of them."""
    low = [v.mean if v.low is None else v.low for v in values]
    high = [v.mean if v.high is None else v.high for v in values]
    return Interval(values[0].mean, min(low), max(high))


# --- the honest test --------------------------------------------------------------------------


def _leave_out(found: Found, given: Mapping[int, Column], settings: Settings, say: Say) -> None:
    """Each column from the others of N = 1..3: what N = 4 says is of no use to them."""
    for n in settings.left_out:
        rest = [column for column in given.values() if column.n != n and column.n <= BESIDE]
        calibration = calibrate(rest, say, settings.effort)
        bed = replace(calibration.bed, turns=settings.turns)
        seen = simulate_columns(bed, [n], settings.runs, say, f"leaving out N = {n}")[n]
        found.tests[n] = as_counted(calibration, seen)
        found.trivial[n] = linear(rest, n)


def _test_key(n: int, metric: str) -> str:
    return f"left-out/n={n}/{metric}"


def _test_entries(found: Found, given: Mapping[int, Column]) -> list[Entry]:
    return [
        predicted(_test_key(n, metric), UNITS[metric], value, figures(given[n])[metric])
        for n, values in found.tests.items()
        for metric, value in values.items()
    ]


def _scores(found: Found, tests: Sequence[Entry]) -> Sheet:
    sheet = ScoreSheet(f"{NAME}-scores", "Error of columns predicted from the others")
    trivial = {
        _test_key(n, metric): value
        for n, values in found.trivial.items()
        for metric, value in values.items()
    }
    for n in found.tests:
        part = [e for e in tests if e.key.startswith(f"left-out/n={n}/") and "wait" not in e.key]
        others = "N = 1..3" if n > BESIDE else " and ".join(str(k) for k in (1, 2, 3) if k != n)
        sheet.add(f"N = {n} from {others}, without waits", score(part))
        sheet.add("… linear scaling", score(part, trivial))
    waits = [e for e in tests if "wait" in e.key and (e.published or 0) > 0.1]
    sheet.add("waits of N = 2, 3, 4", score(waits))
    sheet.add("… linear scaling", score(waits, trivial))
    return sheet.sheet()


# --- what comes of it -------------------------------------------------------------------------


def _entries(found: Found, given: Mapping[int, Column]) -> list[Entry]:
    entries = []
    for n, values in found.values.items():
        for metric, value in values.items():
            key = f"n={n}/{metric}"
            if n in given:
                entries.append(calibrated(key, UNITS[metric], value, figures(given[n])[metric]))
            else:
                entries.append(predicted(key, UNITS[metric], value))
    return entries


def n_full(found: Found) -> tuple[int, int | None]:
    """N_full by eq. 12, and the fewest simulated targets that load the draft for ``FULL_LOAD``."""
    loads = {n: seen.load.mean for n, seen in found.seen.items()}
    return found.calibration.bed.cycle().n_full, fewest(loads)


def alone_tokens_s() -> float:
    """A target that decodes alone: a verification without the draft's time, one token each.

    From the table's co-located EAGLE: its round less S at its t_s; a pass over a tree and one over
    a token take equally long where weights are what is read.
    """
    eagle = published()["starsd"]["table1"]["eagle_colocated"]
    near = [column for column in columns().values() if 1 < column.n <= BESIDE]
    steps = sum(column.service_ms / column.t_s_ms for column in near) / len(near)
    return float(1e3 / (1e3 / eagle["rounds_s"] - steps * eagle["t_s_ms"]))


def n_max(found: Found) -> Interval:
    """The most targets that are each as fast as alone; bounds by the interval of their speed."""
    alone = alone_tokens_s()

    def most(of: str) -> int:
        speeds = {n: getattr(v["per_target_tokens_s"], of) for n, v in found.values.items()}
        return max((n for n, speed in speeds.items() if speed >= alone), default=0)

    return Interval(most("mean"), most("low"), most("high"))


def _thresholds(found: Found) -> list[Entry]:
    by_formula, simulated = n_full(found)
    return [
        predicted("n_full", "targets", by_formula),
        Entry("n_full/simulated", "targets", simulated),
        predicted("n_max", "targets", n_max(found)),
        predicted("alone_tokens_s", "tokens/s", alone_tokens_s()),
    ]


# --- plots ------------------------------------------------------------------------------------


def _targets_figure(found: Found, given: Mapping[int, Column]) -> Figure:
    """Every metric against N."""
    panels = {
        "throughput_tokens_s": "throughput of all targets (tokens/s)",
        "per_target_tokens_s": "throughput of a target (tokens/s)",
        "draft_rounds_s": "rounds per second of the draft",
        "draft_idle_ms": "draft idle (ms per turn)",
        "draft_wait_ms": "waiting for the draft (ms per turn)",
    }
    lines = {
        metric: [
            Line({n: v[metric] for n, v in found.values.items()}, PREDICTED),
            Line({n: getattr(column, metric) for n, column in given.items()}, PUBLISHED),
        ]
        for metric in panels
    }
    alone = dict.fromkeys(found.values, alone_tokens_s())
    style = {"color": GREY, "ls": ":", "label": "a target that decodes alone"}
    lines["per_target_tokens_s"].append(Line(alone, style))
    return line_figure(
        "StarSD: one draft for N targets, calibrated on the published columns, N = 1 to 4",
        "N: targets that share the draft",
        [Panel(label, lines[metric]) for metric, label in panels.items()],
        columns=2,
    )
