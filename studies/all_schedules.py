"""The study ``all-schedules``: every schedule on the emulated cluster, predicted and run.

The middle size of ``treepipe/validation/cells.py``. The cluster is the demonstration's: a draft and
four stages of 20 ms, links of 1 ms. The second part compares ``flowspec_free`` (ours) with
``flowspec``, which has a barrier, with more stages and slower links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from treepipe.progress import Progress
from treepipe.results.plots import BLACK, BLUE, GREY, HATCHED, ORANGE, clean
from treepipe.results.sheet import Sheet, columns
from treepipe.scenario.schema import ScheduleName
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.cells import SYSTEMS, Cell, Size, cases_of
from treepipe.validation.comparison import compared
from treepipe.validation.judgement import METRIC, Row, faults_of, warnings_of
from treepipe.validation.validation import spread
from treepipe.validation.validation_report import row_sheet

NAME = "all-schedules"
AIM = 0.08
"""Upper bound of the error of the predicted time between tokens that the study aims at."""


SHORT_SIZE, SHORT_FREE = Size(requests=4, plain_requests=2), Size(requests=2)


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job for every schedule, and (``free``) for the two flowspecs at all numbers
    of stages and one-way latencies (ms)."""

    schedules: Sequence[ScheduleName] = SYSTEMS
    size: Size = SHORT_SIZE
    stages: Sequence[int] = (4, 8)
    latencies_ms: Sequence[float] = (0.5, 5.0, 20.0)
    free: Size = SHORT_FREE


SHORT = Settings()
FULL = Settings(size=Size(requests=60, plain_requests=6), free=Size(requests=9))


def study(settings: Settings, say: Progress) -> StudyResult:
    """Predict and run every schedule, then both flowspecs on every pipeline."""
    places = [(stages, ms) for stages in settings.stages for ms in settings.latencies_ms]
    pairs = [Pair(Cell("flowspec", *place), Cell("flowspec_free", *place)) for place in places]
    cells = [Cell(name) for name in settings.schedules]
    both = [cell for pair in pairs for cell in (pair.barrier, pair.free)]
    named = compared([*cases_of(cells, settings.size), *cases_of(both, settings.free)], say)
    rows = {cell.schedule: named[cell.label] for cell in cells}
    title = "Time between tokens, 4 emulated stages of 20 ms, links of 1 ms"
    return StudyResult(
        NAME,
        [*_entries(rows), *(entry for pair in pairs for entry in pair.entries(named))],
        [row_sheet(NAME, title, rows), _free_sheet(pairs, named)],
        {NAME: _figure(rows)},
        [*_findings(rows), *(pair.finding(named) for pair in pairs)],
        warnings_of(named),
        faults_of(named),
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """FlowSpec with and without its barrier on one pipeline; ``named``: rows by their cells."""

    barrier: Cell
    free: Cell

    def ratio(self, named: Mapping[str, Row]) -> tuple[float, float]:
        """Return the time between tokens of flowspec_free over flowspec's: predicted, measured."""
        barrier, free = named[self.barrier.label], named[self.free.label]
        return free.predicted.mean / barrier.predicted.mean, free.measured / barrier.measured

    def entries(self, named: Mapping[str, Row]) -> list[Entry]:
        key = f"stages={self.free.stages}/latency={self.free.latency_ms:g}"
        cells = self.barrier, self.free
        found = [_time_entry(f"{key}/{cell.schedule}", named[cell.label]) for cell in cells]
        predicted, measured = self.ratio(named)
        return [*found, Entry(f"{key}/free_over_flowspec", "1", predicted, measured=measured)]

    def finding(self, named: Mapping[str, Row]) -> str:
        predicted, measured = self.ratio(named)
        said = ["wins" if share < 1 else "loses" for share in (predicted, measured)]
        verdict = said[0] if said[0] == said[1] else f"{said[0]} as predicted, {said[1]} as run"
        return (
            f"flowspec_free {verdict} with {self.free.stages} stages and links of "
            f"{self.free.latency_ms:g} ms: time between tokens {predicted - 1:+.1%} predicted, "
            f"{measured - 1:+.1%} measured"
        )


def _time_entry(key: str, row: Row) -> Entry:
    return Entry.of(f"{key}/{METRIC}", "ms", row.predicted, row.measured)


def _entries(rows: Mapping[str, Row]) -> list[Entry]:
    found = []
    for name, row in rows.items():
        share, ran = row.predicted_utilization["draft0"], row.utilization["draft0"]
        found.append(_time_entry(name, row))
        found.append(Entry(f"{name}/draft_utilization", "1", share, measured=ran))
    return found


def _findings(rows: Mapping[str, Row]) -> list[str]:
    if not rows:
        return []
    errors = spread({name: row.error for name, row in rows.items()})
    durations = spread({name: row.duration_error for name, row in rows.items()})
    inside = sum(abs(row.error) <= AIM for row in rows.values())
    return [
        f"error of the predicted time between tokens: at most {errors['worst']:.1%} "
        f"({errors['worst_at']}), at most {AIM:.0%} for {inside} of {len(rows)} schedules, "
        f"{errors['bias']:+.1%} in the mean; from durations alone at most "
        f"{durations['worst']:.1%}, {durations['bias']:+.1%} in the mean"
    ]


def _free_sheet(pairs: Sequence[Pair], named: Mapping[str, Row]) -> Sheet:
    times = ["flowspec predicted (ms)", "measured (ms)", "flowspec_free predicted (ms)"]
    ratios = ["ratio predicted|.2f", "measured|.2f"]
    heads = columns("stages|d", "latency (ms)|.3g", *times, "measured (ms)", *ratios)
    title = "flowspec with and without the barrier: time between tokens"
    sheet = Sheet(title, heads, name="flowspec-free")
    for pair in pairs:
        rows = (named[cell.label] for cell in (pair.barrier, pair.free))
        cells = (time for row in rows for time in (row.predicted.mean, row.measured))
        sheet.add(pair.free.stages, pair.free.latency_ms, *cells, *pair.ratio(named))
    return sheet


def _figure(rows: Mapping[str, Row]) -> Figure:
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    names, places, all_rows = list(rows), range(len(rows)), list(rows.values())
    upper, lower = [place - 0.2 for place in places], [place + 0.2 for place in places]
    predicted: dict[str, Any] = {"height": 0.38, "color": BLUE, "label": "predicted before the run"}
    run = {"height": 0.38, "color": ORANGE, "label": "measured on real processes", **HATCHED}
    whiskers = {"ecolor": BLACK, "capsize": 2}
    means, measured = [row.predicted.mean for row in all_rows], [row.measured for row in all_rows]
    left.barh(upper, means, xerr=[row.halves[0] for row in all_rows], **whiskers, **predicted)
    left.barh(lower, measured, xerr=[row.halves[1] for row in all_rows], **whiskers, **run)
    points: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": GREY}
    for place, row in zip(places, all_rows, strict=True):
        end = max(row.predicted.mean + row.halves[0], row.measured + row.halves[1])
        text = f"{row.error:+.1%} ({row.duration_error:+.1%})"
        left.annotate(text, (end, place), (6, 0), va="center", **points)
    right.barh(upper, [row.predicted_utilization["draft0"] for row in all_rows], **predicted)
    right.barh(lower, [row.utilization["draft0"] for row in all_rows], **run)
    left.set_yticks(list(places), names)
    left.invert_yaxis()
    left.set_xlim(0, 1.2 * max(*means, *measured))
    left.set_xlabel("time between tokens (ms), 95 % intervals\nnumbers: error (of it durations)")
    right.set_xlabel("utilization of the draft (share of time)")
    for panel in (left, right):
        clean(panel, axis="x")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure
