"""How often an interval that was predicted for a run holds what the run then has.

Each cell is a schedule on one of the standard grid's clusters, with one recorded acceptance. Its
recorded texts are split at random: acceptance is calibrated on two thirds, and runs are made of
others. A run here is a replay: the simulator goes through recorded texts as they are, request by
request, so what is tested is how acceptance and workload are drawn, and not durations (those agree
with real processes in the standard grid, ``docs/validation.md``). With ``measure``, some schedules
are run on real processes, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from treepipe.core.schedules import systems
from treepipe.profiles.library import LIBRARY
from treepipe.profiles.pool_file import PoolFile
from treepipe.results.estimates import summarize
from treepipe.results.plots import BLUE, GREY, LEGEND, ORANGE, clean
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Say
from treepipe.results.statistics import CONFIDENCE, Interval
from treepipe.scenario.fitting import fitting
from treepipe.scenario.resolve import resolve
from treepipe.scenario.schema import ScheduleName
from treepipe.scenario.workload import draw_requests
from treepipe.sim.acceptance import TextSource
from treepipe.sim.pool import Pool
from treepipe.sim.world import simulate
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.calibration import CalibratedAcceptance
from treepipe.validation.cells import SYSTEMS, Cell, Size, cases_of
from treepipe.validation.comparison import Case, compare, predict_case
from treepipe.validation.grid import LATENCIES_MS, STAGE_MS, STAGES
from treepipe.validation.judgement import METRIC, Row, faults_of, warnings_of

NAME = "coverage"
POOLS = {
    "model": "reference-model",
    "look-up": "reference-lookup",
    "head": "reference-eagle",
    "model, T = 1": "reference-sampled-1",
}
"""Recorded acceptance by what drafted."""
CALIBRATED = 2 / 3
"""Share of the recorded texts that acceptance is calibrated on."""
AIM = (0.90, 0.99)
RUN = Size(requests=10, new_tokens=16, runs=8)
"""Of a prediction and of a run; texts that ended sooner are left out."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done: with every drafting schedule, ``splits`` of what was recorded of each of
    ``drafts``; and ``measured`` schedules on real processes."""

    schedules: Sequence[ScheduleName] = SYSTEMS
    splits: int = 2
    drafts: Sequence[str] = tuple(POOLS)
    size: Size = RUN
    measured: Sequence[ScheduleName] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A cell's time between tokens: predicted for a run, and in the run (ms).

    Attributes:
        mean: the prediction with the interval of its mean; ``run``: with that of a run.
    """

    label: str
    schedule: str
    draft: str
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
    def error(self) -> float:
        return self.run.mean / self.measured - 1


def run(say: Say, full: bool, measure: bool) -> StudyResult:
    """Two splits per schedule and acceptance, in full 8; measured: three schedules, in full 6."""
    measured = SYSTEMS[1 : 7 if full else 4] if measure else ()
    return study(Settings(splits=8 if full else 2, measured=measured), say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Predict and replay all cells, and run some of them."""
    cells = list(_cells(settings))
    say("predicting and replaying", len(cells))
    found = []
    for number, (cell, draft, pool) in enumerate(cells):
        found.append(_replayed(cell, draft, pool, settings.size, number))
        say("", 1)
    rows = list(compare(_cases(settings), say)) if settings.measured else []
    ran = [_executed(row) for row in rows]
    named = {row.label: row for row in rows}
    return StudyResult(
        NAME,
        [*_entries(found), *_run_entries(ran)],
        [_by_draft(found), _cell_sheet("cells", "Replays", found), *_run_sheets(ran)],
        {NAME: _figure(found)},
        [*_findings(found, ran), *warnings_of(named)],
        faults_of(named),
        {"What is tested": WHAT},
    )


WHAT = [
    "a run is a replay of recorded texts through the simulator, and none of them is known to its "
    "prediction: what is tested is the chance in acceptance and workload; durations are the same "
    "in prediction and replay",
    "a text off the target's own is answered from the pool's vectors off the path, in both",
    "cells of one acceptance share recorded texts, split otherwise each time: they are not wholly "
    "independent, and the interval of the share (Clopper and Pearson) takes them as if they were",
]


def _cells(settings: Settings) -> Iterator[tuple[Cell, str, str]]:
    """Each with the name of its acceptance; clusters are the standard grid's in turn."""
    places = itertools.cycle(itertools.product(STAGES, LATENCIES_MS, STAGE_MS))
    for _ in range(settings.splits):
        for schedule in settings.schedules:
            if systems()[schedule].drafts:
                for draft in settings.drafts:
                    yield Cell(schedule, *next(places)), draft, POOLS[draft]


def _replayed(cell: Cell, draft: str, pool: str, size: Size, number: int) -> Found:
    """Split the recorded texts, predict from the one part, go through texts of the other."""
    (case,) = cases_of([cell], size)
    scenario = case.scenario.with_(seed=number)
    calibrated, others = _split(_recorded(pool), size, number)
    deployment = fitting(resolve(scenario).asked(draw_requests(scenario, number), number))
    predicted = predict_case(
        deployment, scenario, CalibratedAcceptance(calibrated), lambda *_: None, lambda trace: trace
    )
    metrics, _ = summarize([simulate(deployment, TextSource(others, number))])
    interval = predicted.of_a_run[METRIC]
    mean = predicted.metrics[METRIC]
    return Found(cell.label, cell.schedule, draft, mean, interval, metrics[METRIC].mean)


@lru_cache
def _recorded(pool: str) -> PoolFile:
    return PoolFile.load(LIBRARY / "acceptance" / f"{pool}.json.gz")


def _split(file: PoolFile, size: Size, seed: int) -> tuple[Pool, Pool]:
    """Texts to calibrate on, and as many others as there are requests, each as long as these."""
    texts = [each.beginning(size.new_tokens) for each in file.prompts]
    texts = [each for each in texts if len(each.known.ranks) == size.new_tokens]
    order = np.random.default_rng(seed).permutation(len(texts)).tolist()
    count = round(CALIBRATED * len(texts))
    parts = order[:count], order[count : count + size.requests]
    calibrated, others = (
        Pool.of(replace(file, prompts=[texts[number] for number in part])) for part in parts
    )
    return calibrated, others


def _cases(settings: Settings) -> list[Case]:
    return cases_of([Cell(name) for name in settings.measured], settings.size)


def _executed(row: Row) -> Found:
    run = row.of_a_run[METRIC]
    return Found(row.label, row.schedule, "model", row.predicted, run, row.measured)


def _share(found: Sequence[Found]) -> Interval:
    """The share of cells whose run is inside, by Clopper and Pearson."""
    inside = sum(each.is_covered for each in found)
    low, high = stats.binomtest(inside, len(found)).proportion_ci(CONFIDENCE)
    return Interval(inside / len(found), float(low), float(high))


def _bias(found: Sequence[Found]) -> Interval:
    """Geometric mean of predictions over runs, less 1: too high and too low by a factor cancel."""
    logs = Interval.over([np.log(each.run.mean / each.measured) for each in found])
    ends = (None if end is None else float(np.expm1(end)) for end in (logs.low, logs.high))
    return Interval(float(np.expm1(logs.mean)), *ends)


def _entries(found: Sequence[Found]) -> list[Entry]:
    share, bias = _share(found), _bias(found)
    return [
        Entry("nominal", "1", CONFIDENCE),
        Entry("cells", "1", len(found)),
        Entry("covered_share", "1", share.mean, share.low, share.high),
        Entry("bias", "1", bias.mean, bias.low, bias.high),
    ]


def _run_entries(ran: Sequence[Found]) -> list[Entry]:
    return [
        Entry(f"{e.label}/{METRIC}", "ms", e.run.mean, e.run.low, e.run.high, e.measured)
        for e in ran
    ]


def _findings(found: Sequence[Found], ran: Sequence[Found]) -> list[str]:
    share, bias = _share(found), _bias(found)
    low, high = AIM
    verdict = "met" if low <= share.mean <= high else "missed"
    of_mean = np.mean([each.mean.holds(each.measured) for each in found])
    sentences = [
        f"a run's interval holds the replayed run's time between tokens in {share.mean:.1%} of "
        f"{len(found)} cells ({share.low:.1%} to {share.high:.1%}) at a nominal {CONFIDENCE:.0%}; "
        f"aim {low:.0%} to {high:.0%}, {verdict}",
        f"the interval of the mean, which is narrower and promises nothing of one run, does in "
        f"{of_mean:.1%}",
        f"bias: {bias.mean:+.1%}{_ends(bias)}",
    ]
    if ran:
        inside = sum(each.is_covered for each in ran)
        sentences.append(f"on real processes it holds {inside} of {len(ran)} runs")
    return sentences


def _ends(bias: Interval) -> str:
    """The interval in words; empty where one cell tells none."""
    known = bias.low is not None and bias.high is not None
    return f" ({bias.low:+.1%} to {bias.high:+.1%})" if known else ""


def _by_draft(found: Sequence[Found]) -> Sheet:
    columns = [Column("acceptance"), Column("cells", shown="d"), Column("covered", shown=".0%")]
    columns += [Column("bias", shown="+.1%"), Column("half-width, median", shown=".1%")]
    sheet = Sheet("acceptance", "By recorded acceptance", columns)
    for draft in dict.fromkeys(each.draft for each in found):
        own = [each for each in found if each.draft == draft]
        half = np.median([(high - low) / 2 for low, high in (each.ends for each in own)])
        sheet.add(draft, len(own), _share(own).mean, _bias(own).mean, half)
    return sheet


def _cell_sheet(name: str, title: str, found: Sequence[Found]) -> Sheet:
    columns = [Column("cell"), Column("acceptance"), Column("predicted", "ms"), Column("low", "ms")]
    columns += [Column("high", "ms"), Column("run", "ms"), Column("error", shown="+.1%")]
    sheet = Sheet(name, f"{title}: time between tokens", [*columns, Column("inside")])
    for each in found:
        ends = each.run.mean, each.run.low, each.run.high
        sheet.add(each.label, each.draft, *ends, each.measured, each.error, each.is_covered)
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
