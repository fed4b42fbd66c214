"""How often an interval that was predicted for a run holds what the run then has.

Each cell is a schedule on one of the standard grid's clusters, with one recorded acceptance. A
group of recorded texts is held back: acceptance is calibrated on all others, their vectors off the
path included, and a run goes through the group's texts as they are, request by request. Groups have
no text in common, and cells of one group are a cluster: their errors are alike, so intervals are
made over groups. A run here is simulated, in two worlds: with the durations of the prediction's
profiles, where acceptance and workload alone are chance, and with durations that vary by a law that
no profile holds. With ``measure``, some schedules are run on real processes, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from treepipe.core.schedules import systems
from treepipe.physics.host import Factor, HostTimes
from treepipe.physics.timing import TimeTable
from treepipe.profiles.library import LIBRARY
from treepipe.profiles.pool_file import PoolFile
from treepipe.results.estimates import summarize
from treepipe.results.plots import BLUE, GREY, LEGEND, ORANGE, clean
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Say
from treepipe.results.statistics import CONFIDENCE, Interval
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.fitting import fitting
from treepipe.scenario.resolve import resolve
from treepipe.scenario.schema import ScheduleName
from treepipe.scenario.workload import draw_requests
from treepipe.sim.acceptance import TextSource
from treepipe.sim.pool import Pool
from treepipe.sim.world import simulate
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.calibration import CalibratedAcceptance
from treepipe.validation.cells import (
    LATENCIES_MS,
    STAGE_MS,
    STAGES,
    SYSTEMS,
    Cell,
    Size,
    cases_of,
)
from treepipe.validation.comparison import Case, compare, predict_case
from treepipe.validation.judgement import METRIC, Row, faults_of, warnings_of

NAME = "coverage"
POOLS = {
    "model": "reference-model",
    "look-up": "reference-lookup",
    "head": "reference-eagle",
    "model, T = 1": "reference-sampled-1",
}
"""Recorded acceptance by what drafted."""
PROFILED, VARYING = "profiled", "varying"
"""Worlds of runs, by their durations."""
VARIATION = 0.25
"""Standard deviation over the mean of a single pass, where durations vary: what hosts that were
measured in place have had."""
SPEED = 0.06
"""Standard deviation of the logarithm of a machine's speed in a run, where durations vary: those of
real runs have been off by about as much (``real-time``)."""
AIM = (0.90, 0.99)
RUN = Size(requests=10, new_tokens=16, runs=8)
"""Of a prediction and of a run; texts that ended sooner are left out."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done: every drafting schedule with ``groups`` of the texts that were recorded of
    each of ``drafts``, as far as there are so many; ``measured`` schedules on real processes."""

    schedules: Sequence[ScheduleName] = SYSTEMS
    groups: int = 2
    drafts: Sequence[str] = tuple(POOLS)
    size: Size = RUN
    measured: Sequence[ScheduleName] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A cell's time between tokens: predicted for a run, and in the run (ms).

    Attributes:
        group: of the run's texts among the draft's.
        world: by the run's durations.
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
        assert self.run.low is not None  # a prediction has several runs
        assert self.run.high is not None
        return self.run.low / self.run.mean, self.run.high / self.run.mean

    @property
    def half_width(self) -> float:
        """Half of a run's interval, over the prediction."""
        low, high = self.ends
        return (high - low) / 2

    @property
    def error(self) -> float:
        return self.run.mean / self.measured - 1


def run(say: Say, full: bool, measure: bool) -> StudyResult:
    """Two groups of texts per acceptance, in full 6; measured: three schedules, in full 6."""
    measured = SYSTEMS[1 : 7 if full else 4] if measure else ()
    return study(Settings(groups=6 if full else 2, measured=measured), say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Predict and replay all cells, and run some of them."""
    cells = list(_cells(settings))
    say("predicting and replaying", len(cells))
    found: list[Found] = []
    for number, (cell, draft, group) in enumerate(cells):
        found += _replayed(cell, draft, group, settings.size, number)
        say("", 1)
    rows = list(compare(_cases(settings), say)) if settings.measured else []
    ran = [_executed(row) for row in rows]
    named = {row.label: row for row in rows}
    return StudyResult(
        NAME,
        [*_entries(found), *_run_entries(ran)],
        [_by_draft(found), _cell_sheet("cells", "Simulated runs", found), *_run_sheets(ran)],
        {NAME: _figure(found)},
        [*_findings(found, ran), *warnings_of(named)],
        faults_of(named),
        {"What is tested": WHAT},
    )


WHAT = [
    "a run goes through recorded texts in the simulator, and its prediction knows nothing of these "
    "texts: neither their tokens nor what the draft said off them",
    f"durations {PROFILED}: they are the same in prediction and run, so what is tested is the "
    "chance in acceptance and workload",
    f"durations {VARYING}: each machine is faster or slower than its profile for the whole run "
    f"(lognormal, {SPEED:.0%}), and each of its passes takes another time (lognormal, "
    f"{VARIATION:.0%}); a predicted interval knows of neither and promises nothing about them",
    "cells are not independent: those of one group go through the same texts. Groups of one "
    "acceptance have no text in common, though what they are calibrated on overlaps, and another "
    "acceptance may have been recorded along the same texts. Intervals are over groups: of the "
    "bias Student's t, of the share Clopper and Pearson's with as many cells as the groups' "
    "variance allows (Korn and Graubard 1998)",
]


def _cells(settings: Settings) -> Iterator[tuple[Cell, str, int]]:
    """Each with its acceptance and group of texts; clusters are the standard grid's in turn."""
    places = itertools.cycle(itertools.product(STAGES, LATENCIES_MS, STAGE_MS))
    for group in range(settings.groups):
        for schedule in settings.schedules:
            if systems()[schedule].drafts:
                for draft in settings.drafts:
                    place = next(places)
                    if group < len(_long_texts(draft, settings.size)) // settings.size.requests:
                        yield Cell(schedule, *place), draft, group


def _replayed(cell: Cell, draft: str, group: int, size: Size, number: int) -> Iterator[Found]:
    """Predict from all texts but a group's, and go through the group's, in both worlds."""
    (case,) = cases_of([cell], size)
    scenario = case.scenario.with_(seed=number)
    calibrated, others = _split(draft, size, group)
    deployment = fitting(resolve(scenario).asked(draw_requests(scenario, number), number))
    predicted = predict_case(
        deployment, scenario, CalibratedAcceptance(calibrated), lambda *_: None, lambda trace: trace
    )
    run, mean = predicted.of_a_run[METRIC], predicted.metrics[METRIC]
    worlds = {PROFILED: deployment, VARYING: _varying(deployment, number)}
    for world, actual in worlds.items():
        metrics, _ = summarize([simulate(actual, TextSource(others, number))])
        yield Found(cell.label, draft, group, world, mean, run, metrics[METRIC].mean)


def _varying(
    deployment: Deployment, seed: int, speed: float = SPEED, variation: float = VARIATION
) -> Deployment:
    """The same on machines that are not as fast as their profiles say, nor always alike."""
    rng, nothing = np.random.default_rng([seed, 1]), TimeTable({1: 0.0})
    varied = []
    for machine in dict.fromkeys(map(deployment.machine, deployment.devices)):
        slower = Factor({1: float(np.exp(rng.normal(0.0, speed)))})
        costs = HostTimes(nothing, nothing, 0.0, nothing, slower, variation, Factor({}))
        varied.append(replace(machine, costs=costs))
    return replace(deployment, machines=tuple(varied))


@lru_cache
def _recorded(draft: str) -> PoolFile:
    return PoolFile.load(LIBRARY / "acceptance" / f"{POOLS[draft]}.json.gz")


def _long_texts(draft: str, size: Size) -> list[int]:
    """Numbers of the texts that are as long as a run's, in an order of their own."""
    texts = _recorded(draft).prompts
    order = np.random.default_rng(0).permutation(len(texts)).tolist()
    return [n for n in order if len(texts[n].known.ranks) >= size.new_tokens]


def _split(draft: str, size: Size, group: int) -> tuple[Pool, Pool]:
    """All texts but a group's, and those of the group, each as long as a run's."""
    texts = _long_texts(draft, size)
    first = group * size.requests
    own = texts[first : first + size.requests]
    others = [number for number in texts if number not in own]
    known, held = (
        Pool.of(_recorded(draft).of_texts(part).beginnings(size.new_tokens))
        for part in (others, own)
    )
    return known, held


def _cases(settings: Settings) -> list[Case]:
    return cases_of([Cell(name) for name in settings.measured], settings.size)


def _executed(row: Row) -> Found:
    run = row.of_a_run[METRIC]
    return Found(row.label, "model", 0, "real processes", row.predicted, run, row.measured)


def _groups(found: Sequence[Found]) -> list[list[Found]]:
    """Cells by their runs' texts."""
    groups: dict[tuple[str, int], list[Found]] = {}
    for each in found:
        groups.setdefault((each.draft, each.group), []).append(each)
    return list(groups.values())


def _share(found: Sequence[Found]) -> Interval:
    """The share of cells whose run is inside, by Clopper and Pearson with as many cells as would
    say as much if they were independent (Korn and Graubard, Survey Methodology 1998): the share's
    variance over groups tells, and they are no fewer than groups and no more than cells."""
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
    """Geometric mean of predictions over runs, less 1: too high and too low by a factor cancel."""
    logs = Interval.over(
        [fmean(np.log(each.run.mean / each.measured) for each in group) for group in _groups(found)]
    )
    ends = (None if end is None else float(np.expm1(end)) for end in (logs.low, logs.high))
    return Interval(float(np.expm1(logs.mean)), *ends)


def _worlds(found: Sequence[Found]) -> dict[str, list[Found]]:
    """Cells by the durations of their runs."""
    names = dict.fromkeys(each.world for each in found)
    return {name: [each for each in found if each.world == name] for name in names}


def _entries(found: Sequence[Found]) -> list[Entry]:
    entries = [
        Entry("nominal", "1", CONFIDENCE),
        Entry("cells", "1", len(found)),
        Entry("groups", "1", len(_groups(found))),
        Entry("half_width/median", "1", median(each.half_width for each in found)),
    ]
    for prefix, own in {"": found, **{f"{n}/": own for n, own in _worlds(found).items()}}.items():
        share, bias = _share(own), _bias(own)
        entries.append(Entry(f"{prefix}covered_share", "1", share.mean, share.low, share.high))
        entries.append(Entry(f"{prefix}bias", "1", bias.mean, bias.low, bias.high))
    return entries


def _run_entries(ran: Sequence[Found]) -> list[Entry]:
    return [
        Entry(f"{e.label}/{METRIC}", "ms", e.run.mean, e.run.low, e.run.high, e.measured)
        for e in ran
    ]


def _findings(found: Sequence[Found], ran: Sequence[Found]) -> list[str]:
    share, bias = _share(found), _bias(found)
    low, high = AIM
    verdict = "met" if low <= share.mean <= high else "missed"
    of_mean = fmean(each.mean.holds(each.measured) for each in found)
    each_world = "; ".join(
        f"durations {world}: {_share(own).mean:.1%}, bias {_bias(own).mean:+.1%}{_ends(_bias(own))}"
        for world, own in _worlds(found).items()
    )
    sentences = [
        f"a run's interval holds the run's time between tokens in {share.mean:.1%}"
        f"{_ends(share, '.1%')} of {len(found)} cells in {len(_groups(found))} groups of texts at "
        f"a nominal {CONFIDENCE:.0%}; aim {low:.0%} to {high:.0%}, {verdict}",
        each_world,
        f"the interval of the mean, which is narrower and promises nothing of one run, does in "
        f"{of_mean:.1%}",
        f"bias: {bias.mean:+.1%}{_ends(bias)}",
        f"half-widths of a run's interval are {median(e.half_width for e in found):.0%} in the "
        f"median, so one run would hardly show a bias below that{_noticed(bias)}",
    ]
    if ran:
        inside = sum(each.is_covered for each in ran)
        sentences.append(f"on real processes it holds {inside} of {len(ran)} runs")
    return sentences


def _noticed(bias: Interval) -> str:
    """The bias that all cells together tell from none; empty where one group tells none."""
    if bias.low is None or bias.high is None:
        return ""
    return f"; all cells together, one below {(bias.high - bias.low) / 2:.1%}"


def _ends(value: Interval, shown: str = "+.1%") -> str:
    """The interval in words; empty where one group tells none."""
    known = value.low is not None and value.high is not None
    return f" ({value.low:{shown}} to {value.high:{shown}})" if known else ""


def _by_draft(found: Sequence[Found]) -> Sheet:
    columns = [Column("acceptance"), Column("durations"), Column("cells", shown="d")]
    columns += [Column("covered", shown=".0%"), Column("bias", shown="+.1%")]
    columns.append(Column("half-width, median", shown=".1%"))
    sheet = Sheet("acceptance", "By recorded acceptance and durations of the runs", columns)
    for draft in dict.fromkeys(each.draft for each in found):
        for world, own in _worlds([each for each in found if each.draft == draft]).items():
            half = median(each.half_width for each in own)
            sheet.add(draft, world, len(own), _share(own).mean, _bias(own).mean, half)
    return sheet


def _cell_sheet(name: str, title: str, found: Sequence[Found]) -> Sheet:
    columns = [Column("cell"), Column("acceptance"), Column("group", shown="d")]
    columns += [Column("durations"), Column("predicted", "ms"), Column("low", "ms")]
    columns += [Column("high", "ms"), Column("run", "ms"), Column("error", shown="+.1%")]
    sheet = Sheet(name, f"{title}: time between tokens", [*columns, Column("inside")])
    for each in found:
        ends = each.run.mean, each.run.low, each.run.high
        cell = each.label, each.draft, each.group, each.world
        sheet.add(*cell, *ends, each.measured, each.error, each.is_covered)
    return sheet


def _run_sheets(ran: Sequence[Found]) -> list[Sheet]:
    return [_cell_sheet("runs", "Real processes", ran)] if ran else []


def _figure(found: Sequence[Found]) -> Figure:
    """Runs over their predictions, sorted, with the predictions' intervals."""
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
