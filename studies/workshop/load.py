"""Requests that arrive by themselves, predicted and run at shares of capacity.

    python -m treepipe.studies.workshop.load docs/studies/load

On emulated devices, whose times are known, and on this machine without emulation, calibrated in
place (``real_time.Bench``). A schedule's capacity is what a simulated closed loop of many clients
is served per second; requests then arrive as a Poisson process at shares of it, at the same times,
with the same prompts and the same lengths in prediction, run and replay. So errors are paired: what
is left between prediction and run is acceptance and durations, and between replay and run durations
alone.

Invariant: errors are raw and signed. A goodput is that of requests which take at most ``SLACK``
times as long as a lone one is predicted to.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from treepipe.core.schedules import systems
from treepipe.executor.models.prompts import load_texts
from treepipe.executor.run.launch import prepare
from treepipe.profiles.library import CALIBRATION, HELD_OUT
from treepipe.progress import Progress
from treepipe.results.metrics import METRICS
from treepipe.results.plots import BLACK, BLUE, MARKS, ORANGE, clean, whiskers
from treepipe.results.sheet import Sheet, columns
from treepipe.results.show import ProgressBars
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance_pool import acceptance_pool
from treepipe.studies import real_time
from treepipe.studies.study import Entry, StudyResult, write_study
from treepipe.validation.comparison import CalibratedAcceptance, Case, compare, predict_case
from treepipe.validation.demo import SCENARIO
from treepipe.validation.judgement import Prediction, Row, faults_of, warnings_of
from treepipe.validation.validation import spread

NAME = "load"
SHARES = (50, 95, 99)
TIMES = ("time_to_first_token_ms", "time_between_tokens_ms", "request_latency_ms")
SHOWN = (*(f"p{share}_{time}" for time in TIMES for share in SHARES), "goodput_requests_s")
AIMS: Mapping[str, Mapping[int, float]] = {
    "emulated": {50: 0.05, 99: 0.10},
    "real": {50: 0.12, 99: 0.25},
}
"""Largest errors that the study aims at, by world and percentile."""
CLIENTS, EACH, BATCH, SLACK = 32, 8, 4, 2.0
ROUNDING = 1e-6
NEW_TOKENS = {"distribution": "uniform", "min": 8, "max": 24}
KEYS: Mapping[str, Any] = {**real_time.KEYS, "batch": BATCH}
"""Keys of every schedule that reads them; ``batch`` is SpecPipe-DB's."""


BENCH = real_time.Settings(
    (real_time.HEAVY,), kinds=("code",), device_seconds=30.0, host_seconds=30.0, turns=1
)
PLACES = {"starsd": {"pipelines.0.count": 2, "pipelines.0.stages.0.count": 1}}
"""Two targets of one stage instead of one of two, which would be ``chain``'s."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job.

    Attributes:
        loads: arrivals per second, as shares of the capacity.
        requests: of each case by world; a 99th percentile needs 100.
        runs: number of the prediction's runs.
        bench: calibration of this machine, for the world ``real``.
    """

    requests: Mapping[str, int]
    schedules: Sequence[str] = ("pp", "chain", "starsd", "specpipe_db", "flowspec")
    loads: Sequence[float] = (0.3, 0.6, 0.85)
    runs: int = 8
    bench: real_time.Settings = BENCH


FULL = Settings({"emulated": 100, "real": 100})


@dataclass(frozen=True, slots=True)
class Loaded:
    """One case: a schedule in a world at a share of its capacity (requests per second)."""

    world: str
    schedule: str
    load: float
    capacity_s: float
    row: Row

    @property
    def key(self) -> str:
        return f"{self.world}/{self.schedule}/load={self.load:g}"

    @property
    def metrics(self) -> list[str]:
        """The shown metrics that prediction, replay and run have, and that are not 0 in the run, as
        the median gap between tokens is where most come together."""
        known = self.row.metrics.keys() & self.row.replayed_metrics.keys()
        measured = self.row.measured_metrics
        return [name for name in SHOWN if name in known and measured.get(name, 0.0) > ROUNDING]

    def entries(self) -> Iterator[Entry]:
        """Yield each metric with the interval of one further run, and its errors likewise."""
        yield Entry(f"{self.key}/rate_s", METRICS[SHOWN[-1]].unit, self.load * self.capacity_s)
        for name in self.metrics:
            key, seen = f"{self.key}/{name}", self.row.of_a_run[name]
            measured = self.row.measured_metrics[name]
            low, high = (
                None if end is None else end / measured - 1 for end in (seen.low, seen.high)
            )
            yield Entry.of(key, METRICS[name].unit, seen, measured)
            yield Entry(f"{key}/error", "1", self.row.error_of(name), low, high)
            yield Entry(f"{key}/duration_error", "1", self.row.duration_error_of(name))


def study(settings: Settings, say: Progress) -> StudyResult:
    """Find the capacities, then predict and run every schedule at every load."""
    found = list[Loaded]()
    with TemporaryDirectory() as folder:
        for world in settings.requests:
            base = _base(settings, world, Path(folder), say)
            found += _loaded(settings, world, base, say)
    named = {each.key: each.row for each in found}
    result = StudyResult(NAME, [entry for each in found for entry in each.entries()])
    for world in settings.requests:
        own = [each for each in found if each.world == world]
        result.rows += _summary(world, own)
        result.findings.append(_finding(world, own))
        result.tables.append(_sheet(world, own))
        result.figures = {NAME: _figure(world, own)}  # of the last world, the page's
    result.findings.append(
        f"an interval is that of one further run of as many requests with the same arrivals and "
        f"prompts, whose acceptance differs: it holds {_held(found)} of all measured figures"
    )
    result.warnings = {
        text.replace(f"{folder}/", ""): cells for text, cells in warnings_of(named).items()
    }
    result.faults = faults_of(named)
    return result


# --- the runs ------------------------------------------------------------------------------------


def _base(settings: Settings, world: str, folder: Path, say: Progress) -> Scenario:
    """Return the world's scenario with the prompts, in turn, that all its cases share."""
    kind = settings.bench.kinds[0]
    prompts = f"./{world}-prompts.json"
    texts = itertools.cycle(load_texts(f"{HELD_OUT}:{kind}", folder))
    own = list(itertools.islice(texts, settings.requests[world]))
    (folder / prompts).write_text(json.dumps(own), encoding="utf-8")
    if world == "emulated":
        content = Scenario.load(SCENARIO).content
        content["pipelines"][0]["stages"][0]["count"] = 2
        base = Scenario.of(content, folder / "emulated.toml")
    else:
        bench = real_time.Bench(settings.bench, folder, say)
        (pair,) = settings.bench.pairs
        base = bench.in_place(bench.on_this_device(pair), 0)
    workload = {
        "requests": len(own),
        "prompts": prompts,
        "new_tokens": NEW_TOKENS,
        "stop_at_end_of_text": False,
    }
    return base.with_(runs=settings.runs, workload=workload)


def _loaded(settings: Settings, world: str, base: Scenario, say: Progress) -> Iterator[Loaded]:
    """Predict, then run the cases of a world."""
    cases, capacities = list[tuple[str, float, Case]](), dict[str, float]()
    # On this machine the bench has recorded the acceptance of prompts of the same kind.
    prompts = f"{CALIBRATION}:{settings.bench.kinds[0]}" if world == "emulated" else None
    for name in settings.schedules:
        scenario = _scheduled(base, name)
        capacities[name] = _capacity_s(scenario, say)
        alone = _closed_loop(scenario, 1, say).metrics["request_latency_ms"].mean
        for load in settings.loads:
            rate = {"process": "poisson", "rate_per_s": load * capacities[name]}
            slo = {"request_latency_ms": SLACK * alone}
            own = scenario.with_(**{"workload.arrivals": rate, "serving.slo": slo})
            cases.append((name, load, Case(f"{world}/{name}/load={load:g}", own, prompts)))
    rows = {row.label: row for row in compare([case for _, _, case in cases], say)}
    for name, load, case in cases:
        yield Loaded(world, name, load, capacities[name], rows[case.label])


def _scheduled(base: Scenario, name: str) -> Scenario:
    keys = {key: value for key, value in KEYS.items() if key in systems()[name].keys}
    serving = {} if systems()[name].in_lock_step else {"batch": BATCH}
    return base.with_(schedule={"name": name, **keys}, serving=serving, **PLACES.get(name, {}))


def _closed_loop(scenario: Scenario, clients: int, say: Progress) -> Prediction:
    """Simulate the clients of a closed loop, each of which asks for ``EACH`` texts in turn."""
    closed = scenario.with_(**{"workload.concurrency": clients, "runs": 1})
    deployment = prepare(closed).deployment
    asked = itertools.islice(itertools.cycle(deployment.requests), EACH * clients)
    acceptance = CalibratedAcceptance(*acceptance_pool(closed))
    return predict_case(replace(deployment, requests=tuple(asked)), closed, acceptance, say)


def _capacity_s(scenario: Scenario, say: Progress) -> float:
    """Return the requests per second of a closed loop's middle half, in which all clients ask."""
    trace = _closed_loop(scenario, CLIENTS, say).trace
    ends = sorted(request.finished_ms for request in trace.requests)
    first, last = len(ends) // 4, len(ends) * 3 // 4
    return 1e3 * (last - first) / (ends[last] - ends[first])


# --- the results ---------------------------------------------------------------------------------


def _errors(found: Sequence[Loaded], names: Sequence[str], of: str) -> dict[str, Any] | None:
    """Return the ``spread`` of an error (``error_of``, ``duration_error_of``) of these metrics."""
    errors = {
        f"{each.key}, {name}": getattr(each.row, of)(name)
        for each in found
        for name in names
        if name in each.metrics
    }
    return spread(errors) if errors else None


def _summary(world: str, found: Sequence[Loaded]) -> Iterator[Entry]:
    """Yield each percentile's errors over all times, schedules and loads, beside the aim."""
    for share, of in itertools.product(SHARES, ("error_of", "duration_error_of")):
        errors = _errors(found, [f"p{share}_{time}" for time in TIMES], of)
        for end, figure in (("median", "median"), ("worst", "worst"), ("mean", "bias")):
            if errors is not None:
                aim = AIMS[world].get(share) if end == "worst" else None
                key = f"{world}/p{share}/{of.removesuffix('_of')}/{end}"
                yield Entry(key, "1", errors[figure], published=aim)


def _finding(world: str, found: Sequence[Loaded]) -> str:
    """Describe the errors of medians and of 99th percentiles."""
    told = []
    for share, aim in AIMS[world].items():
        names = [f"p{share}_{time}" for time in TIMES]
        every = [(each, name) for each in found for name in names if name in each.metrics]
        sizes = [abs(each.row.error_of(name)) for each, name in every]
        errors, durations = (_errors(found, names, f"{of}error_of") for of in ("", "duration_"))
        if errors is not None and durations is not None:
            told.append(
                f"p{share} to {errors['median']:.1%} in the median and {errors['worst']:.1%} at "
                f"worst ({errors['worst_at']}), {errors['bias']:+.1%} in the mean, at most "
                f"{aim:.0%} for {sum(size <= aim for size in sizes)} of {len(sizes)} figures; from "
                f"durations alone {durations['median']:.1%}, {durations['worst']:.1%} "
                f"({durations['worst_at']}) and {durations['bias']:+.1%}"
            )
    return f"{world}: times under load are predicted, {'; '.join(told)}"


def _held(found: Sequence[Loaded]) -> str:
    """Count the measured figures that lie inside the predicted interval of a run."""
    inside = [
        seen.low <= each.row.measured_metrics[name] <= seen.high
        for each in found
        for name in each.metrics
        if (seen := each.row.of_a_run[name]).low is not None and seen.high is not None
    ]
    return f"{sum(inside)} of {len(inside)}"


def _sheet(world: str, found: Sequence[Loaded]) -> Sheet:
    heads = columns("schedule", "load|.2g", "requests/s|.3g", "metric")
    heads += columns("predicted|.4g", "low|.4g", "high|.4g", "measured|.4g")
    heads += columns("error|+.1%", "of it durations|+.1%")
    sheet = Sheet(f"{world}: predicted and measured under load", heads, name=f"{NAME}-{world}")
    for each in found:
        place, row = (each.schedule, each.load, each.load * each.capacity_s), each.row
        for name in each.metrics:
            seen = row.of_a_run[name]
            times = seen.mean, seen.low, seen.high, row.measured_metrics[name]
            sheet.add(*place, name, *times, row.error_of(name), row.duration_error_of(name))
    return sheet


def _figure(world: str, found: Sequence[Loaded]) -> Figure:
    """Plot medians and 99th percentiles of each time, predicted and measured."""
    figure = Figure(figsize=(13, 2.2 + 0.27 * len(found)), layout="constrained")
    panels: Any = figure.subplots(1, len(TIMES), sharey=True)
    for panel, time in zip(panels, TIMES, strict=True):
        for share, colour in ((50, BLUE), (99, ORANGE)):
            _points(panel, found, f"p{share}_{time}", colour)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
        panel.xaxis.set_minor_formatter("{x:g}")
        panel.tick_params(axis="x", which="both", labelsize=7)
        panel.set_xlabel(f"{METRICS[time].in_words} (ms)")
        clean(panel, axis="x")
    panels[0].set_yticks(
        range(len(found)), [f"{each.schedule}, load {each.load:g}" for each in found], size=8
    )
    panels[0].set_ylim(len(found) - 0.4, -0.6)
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def _points(panel: Any, found: Sequence[Loaded], name: str, colour: str) -> None:
    own = [(place, each.row) for place, each in enumerate(found) if name in each.metrics]
    places, seen = [place for place, _ in own], [row.of_a_run[name] for _, row in own]
    style: dict[str, Any] = {"fmt": MARKS[colour], "color": colour, "capsize": 2, "ms": 5}
    label = f"{name.partition('_')[0]}, predicted (95 % of runs)"
    panel.errorbar([e.mean for e in seen], places, xerr=whiskers(seen), label=label, **style)
    measured = [row.measured_metrics[name] for _, row in own]
    mark = "x" if colour == BLUE else "+"
    label = f"{name.partition('_')[0]}, measured"
    panel.plot(measured, places, mark, color=BLACK, ms=8, label=label)


if __name__ == "__main__":
    with ProgressBars(quiet=False) as progress:
        write_study(study(FULL, progress), Path(sys.argv[1]))
