"""The share of runs that lie inside their prediction intervals.

    python -m treepipe.studies.workshop.coverage docs/studies/coverage

Each cell is a schedule on one of the standard grid's clusters, with one recorded acceptance. A
group of recorded texts is held back: acceptance is calibrated on all others, their vectors off the
path included, and a run replays the group's texts request by request. Groups have no text in
common, and cells of one group are a cluster: their errors are correlated, so intervals are over
groups. A run here is simulated, in two worlds: with the durations of the prediction's profiles,
where only acceptance and workload are random, and with durations that vary in a way that no profile
models. ``Settings.measured`` are also run on real processes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from treepipe.core.schedules import systems
from treepipe.physics.timing import Factor, HostTimes, TimeTable
from treepipe.profiles.library import LIBRARY
from treepipe.profiles.pool_file import PoolFile
from treepipe.progress import Progress
from treepipe.results.estimates import summarize
from treepipe.results.plots import BLUE, GREY, LEGEND, ORANGE, clean
from treepipe.results.sheet import Sheet, columns
from treepipe.results.show import ProgressBars
from treepipe.results.statistics import CONFIDENCE, Interval
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.memory import fitted
from treepipe.scenario.resolve import resolve
from treepipe.scenario.schema import ScheduleName
from treepipe.scenario.workload import draw_requests
from treepipe.sim.pool import Pool
from treepipe.sim.world import simulate
from treepipe.studies.reproduction import fill
from treepipe.studies.study import Entry, StudyResult, write_study
from treepipe.studies.workshop import cells as grid
from treepipe.studies.workshop.cells import SYSTEMS, Cell, Size, cases_of
from treepipe.studies.workshop.texts import TextSource
from treepipe.validation.comparison import CalibratedAcceptance, compare, predict_case
from treepipe.validation.judgement import METRIC, faults_of, warnings_of

NAME = "coverage"
PAGE = Path(__file__).with_suffix(".md")
POOLS = {
    "model": "reference-model",
    "look-up": "reference-lookup",
    "head": "reference-eagle",
    "model, T = 1": "reference-sampled-1",
}
"""Recorded acceptance by type of draft."""
PROFILED, VARYING = "profiled", "varying"
"""Names of the worlds of runs, by their durations."""
VARIATION = 0.25
"""Coefficient of variation of a pass in the varying world; hosts measured in place reach it."""
SPEED = 0.06
"""Standard deviation of the logarithm of a machine's speed in a run in the varying world; real runs
have deviated by about as much (``real-time``)."""
AIM = (0.90, 0.99)
RUN = Size(requests=10, new_tokens=16, runs=8)
"""The size of a prediction and of a run; texts that ended sooner are left out."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job: every drafting schedule with up to ``groups`` groups of the recorded
    texts of each of ``drafts``; ``measured`` schedules are also run on real processes, at the
    same size."""

    schedules: Sequence[ScheduleName] = SYSTEMS
    groups: int = 2
    drafts: Sequence[str] = tuple(POOLS)
    size: Size = RUN
    measured: Sequence[ScheduleName] = ()


FULL = Settings(groups=6)


@dataclass(frozen=True, slots=True)
class Found:
    """A cell's time between tokens: predicted for a run, and in the run (ms).

    Attributes:
        group: number of the run's texts among the draft's.
        world: PROFILED or VARYING, by the run's durations; or real processes.
        mean: the prediction with the interval of its mean; ``run``: with that of a run.
    """

    label: str
    draft: str
    group: int
    world: str
    mean: Interval
    run: Interval
    measured: float

    @property
    def is_covered(self) -> bool:
        return self.run.holds(self.measured)

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of a run's interval, over the prediction."""
        low, high = self.run.ends
        assert low is not None  # a prediction has several runs
        assert high is not None
        return low / self.run.mean, high / self.run.mean

    @property
    def half_width(self) -> float:
        low, high = self.ends
        return (high - low) / 2

    @property
    def error(self) -> float:
        return self.run.mean / self.measured - 1


def study(settings: Settings, say: Progress) -> StudyResult:
    """Predict and replay all cells, and run some of them on real processes."""
    cells = list(_cells(settings))
    say("predicting and replaying", len(cells))
    found: list[Found] = []
    for number, (cell, draft, group) in enumerate(cells):
        found += _replayed(cell, draft, group, settings.size, number)
        say("", 1)
    measured = [Cell(name) for name in settings.measured]
    rows = list(compare(cases_of(measured, settings.size), say)) if measured else []
    ran = []
    for row in rows:
        times = row.predicted, row.of_a_run[METRIC], row.measured
        ran.append(Found(row.label, "model", 0, "real processes", *times))
    tables = [_by_draft(found), _cell_sheet("cells", "Simulated runs", found)]
    if ran:
        tables.append(_cell_sheet("runs", "Real processes", ran))
    page, named = _page(found, ran), {row.label: row for row in rows}
    told = page.pop(""), warnings_of(named), faults_of(named), page
    return StudyResult(NAME, _entries(found, ran), tables, {NAME: _figure(found)}, *told)


# --- predictions and runs ------------------------------------------------------------------------


def _cells(settings: Settings) -> Iterator[tuple[Cell, str, int]]:
    """Yield each cell with its acceptance and texts, on the grid's clusters in turn."""
    places = itertools.cycle(itertools.product(grid.STAGES, grid.LATENCIES_MS, grid.STAGE_MS))
    for group in range(settings.groups):
        for schedule in settings.schedules:
            if systems()[schedule].drafts:
                for draft in settings.drafts:
                    place = next(places)
                    if group < len(_long_texts(draft, settings.size)) // settings.size.requests:
                        yield Cell(schedule, *place), draft, group


def _replayed(cell: Cell, draft: str, group: int, size: Size, number: int) -> Iterator[Found]:
    """Predict from all texts except a group's, and replay the group's, in both worlds."""
    (case,) = cases_of([cell], size)
    scenario = case.scenario.with_(seed=number)
    calibrated, others = _split(draft, size, group)
    (deployment,) = fitted([resolve(scenario).asked(draw_requests(scenario, number), number)])
    predicted = predict_case(
        deployment, scenario, CalibratedAcceptance(calibrated), lambda *_: None
    )
    run, mean = predicted.of_a_run[METRIC], predicted.metrics[METRIC]
    worlds = {PROFILED: deployment, VARYING: _varying(deployment, number)}
    for world, actual in worlds.items():
        metrics, _ = summarize([simulate(actual, TextSource(others, number))])
        yield Found(cell.label, draft, group, world, mean, run, metrics[METRIC].mean)


def _varying(
    deployment: Deployment, seed: int, speed: float = SPEED, variation: float = VARIATION
) -> Deployment:
    """Vary the speed of each machine and of single passes beyond what the profiles state."""
    rng, nothing = np.random.default_rng([seed, 1]), TimeTable({1: 0.0})
    varied = []
    for machine in dict.fromkeys(map(deployment.roles.machine, deployment.roles.devices)):
        slower = Factor({1: float(np.exp(rng.normal(0.0, speed)))})
        costs = HostTimes(nothing, nothing, 0.0, nothing, slower, variation, Factor({}))
        varied.append(replace(machine, costs=costs))
    return replace(deployment, roles=replace(deployment.roles, machines=tuple(varied)))


@lru_cache
def _recorded(draft: str) -> PoolFile:
    return PoolFile.load(LIBRARY / "acceptance" / f"{POOLS[draft]}.json.gz")


def _long_texts(draft: str, size: Size) -> list[int]:
    """Return the numbers of the texts that are as long as a run's, in a fixed random order."""
    texts = _recorded(draft).prompts
    order = np.random.default_rng(0).permutation(len(texts)).tolist()
    return [n for n in order if len(texts[n].known.ranks) >= size.new_tokens]


def _split(draft: str, size: Size, group: int) -> tuple[Pool, Pool]:
    """Split the texts, cut to a run's length, into all others and those of the group."""
    texts, first = _long_texts(draft, size), group * size.requests
    own = texts[first : first + size.requests]
    others = [number for number in texts if number not in own]
    recorded = (texts_of(_recorded(draft), part) for part in (others, own))
    known, held = (Pool.of(each.beginnings(size.new_tokens)) for each in recorded)
    return known, held


def texts_of(file: PoolFile, numbers: Sequence[int]) -> PoolFile:
    """Keep these texts alone, with the vectors that were recorded off them."""
    counts = [-(-len(prompt.known.ranks) // 2) for prompt in file.prompts]
    owners = np.repeat(np.arange(len(counts)), counts)
    off_path = {
        steps: np.concatenate([rows[owners == number] for number in numbers])
        for steps, rows in file.off_path.items()
    }
    return replace(file, prompts=[file.prompts[n] for n in numbers], off_path=off_path)


# --- the results ---------------------------------------------------------------------------------


def _groups(found: Sequence[Found]) -> list[list[Found]]:
    groups: dict[tuple[str, int], list[Found]] = {}
    for each in found:
        groups.setdefault((each.draft, each.group), []).append(each)
    return list(groups.values())


def _share(found: Sequence[Found]) -> Interval:
    """Return the share of cells whose run is inside, with a Clopper-Pearson interval for the
    effective number of independent cells (Korn and Graubard, Survey Methodology 1998): from the
    share's variance over groups, at least the number of groups and at most that of cells."""
    shares = [fmean(each.is_covered for each in group) for group in _groups(found)]
    share = fmean(each.is_covered for each in found)
    variance = float(np.var(shares, ddof=1)) / len(shares) if len(shares) > 1 else 0.0
    alike = share * (1 - share) / variance if variance else 0.0
    cells = min(max(alike, len(shares)), len(found))
    inside, outside = share * cells, (1 - share) * cells
    tail = (1 - CONFIDENCE) / 2
    low = float(stats.beta.ppf(tail, inside, outside + 1)) if inside else 0.0
    high = float(stats.beta.ppf(1 - tail, inside + 1, outside)) if outside else 1.0
    return Interval(share, low, high)


def _bias(found: Sequence[Found]) -> Interval:
    """Return the geometric mean of predictions over runs, less 1; opposite factors cancel."""
    logs = Interval.over(
        [fmean(np.log(each.run.mean / each.measured) for each in group) for group in _groups(found)]
    )
    low, high = (None if end is None else float(np.expm1(end)) for end in (logs.low, logs.high))
    return Interval(float(np.expm1(logs.mean)), low, high)


def _worlds(found: Sequence[Found]) -> dict[str, list[Found]]:
    names = dict.fromkeys(each.world for each in found)
    return {name: [each for each in found if each.world == name] for name in names}


def _entries(found: Sequence[Found], ran: Sequence[Found]) -> list[Entry]:
    entries = [
        Entry("nominal", "1", CONFIDENCE),
        Entry("cells", "1", len(found)),
        Entry("groups", "1", len(_groups(found))),
        Entry("half_width/median", "1", median(each.half_width for each in found)),
    ]
    for prefix, own in {"": found, **{f"{n}/": own for n, own in _worlds(found).items()}}.items():
        share, bias = _share(own), _bias(own)
        entries.append(Entry.of(f"{prefix}covered_share", "1", share))
        entries.append(Entry.of(f"{prefix}bias", "1", bias))
    return [*entries, *(Entry.of(f"{e.label}/{METRIC}", "ms", e.run, e.measured) for e in ran)]


def _page(found: Sequence[Found], ran: Sequence[Found]) -> dict[str, list[str]]:
    """Return the page's sentences by heading, as ``fill`` does."""
    share, bias = _share(found), _bias(found)
    worlds = (
        f"durations {world}: {_share(own).mean:.1%}, bias {_bias(own).mean:+.1%}{_ends(_bias(own))}"
        for world, own in _worlds(found).items()
    )
    noticed = ""
    if bias.low is not None and bias.high is not None:
        noticed = f"; all cells together, one below {(bias.high - bias.low) / 2:.1%}"
    fields = {
        "share": f"{share.mean:.1%}{_ends(share, '.1%')}",
        "cells": len(found),
        "groups": len(_groups(found)),
        "nominal": CONFIDENCE,
        "aim": AIM,
        "verdict": "met" if AIM[0] <= share.mean <= AIM[1] else "missed",
        "worlds": "; ".join(worlds),
        "of_mean": fmean(each.mean.holds(each.measured) for each in found),
        "bias": f"{bias.mean:+.1%}{_ends(bias)}",
        "half": median(each.half_width for each in found),
        "noticed": noticed,
        "inside": sum(each.is_covered for each in ran) if ran else None,
        "ran": len(ran),
        "speed": SPEED,
        "variation": VARIATION,
    }
    return fill(PAGE, [], fields)


def _ends(value: Interval, shown: str = "+.1%") -> str:
    """Format the interval; empty if a single group gives none."""
    known = value.low is not None and value.high is not None
    return f" ({value.low:{shown}} to {value.high:{shown}})" if known else ""


def _by_draft(found: Sequence[Found]) -> Sheet:
    heads = columns("acceptance", "durations", "cells|d", "covered|.0%", "bias|+.1%")
    heads += columns("half-width, median|.1%")
    sheet = Sheet("By recorded acceptance and durations of the runs", heads, name="acceptance")
    for draft in dict.fromkeys(each.draft for each in found):
        for world, own in _worlds([each for each in found if each.draft == draft]).items():
            half = median(each.half_width for each in own)
            sheet.add(draft, world, len(own), _share(own).mean, _bias(own).mean, half)
    return sheet


def _cell_sheet(name: str, title: str, found: Sequence[Found]) -> Sheet:
    times = "predicted (ms)", "low (ms)", "high (ms)", "run (ms)", "error|+.1%"
    heads = columns("cell", "acceptance", "group|d", "durations", *times, "inside")
    sheet = Sheet(f"{title}: time between tokens", heads, name=name)
    for each in found:
        ends = each.run.mean, each.run.low, each.run.high
        cell = each.label, each.draft, each.group, each.world
        sheet.add(*cell, *ends, each.measured, each.error, each.is_covered)
    return sheet


def _figure(found: Sequence[Found]) -> Figure:
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    panel = figure.subplots()
    ordered = sorted(found, key=lambda each: each.measured / each.run.mean)
    for inside, color, label in ((True, BLUE, "run inside"), (False, ORANGE, "run outside")):
        own = [(i, each) for i, each in enumerate(ordered) if each.is_covered is inside]
        style: dict[str, Any] = {"color": color, "ls": "none", "marker": "o" if inside else "X"}
        places = [i for i, _ in own]
        panel.plot(places, [e.measured / e.run.mean for _, e in own], ms=4, label=label, **style)
    panel.vlines(
        range(len(ordered)),
        *zip(*(each.ends for each in ordered), strict=True),
        color=GREY,
        lw=0.8,
        label="predicted 95 % interval of a run",
    )
    panel.axhline(1.0, color=GREY, lw=0.8)
    panel.set_xlabel("cells, in the order of their runs over their predictions")
    panel.set_ylabel("time between tokens over the prediction")
    figure.legend(loc="outside upper center", ncols=3, **LEGEND)
    clean(panel)
    return figure


if __name__ == "__main__":
    with ProgressBars(quiet=False) as progress:
        write_study(study(FULL, progress), Path(sys.argv[1]))
