"""Every schedule on the emulated cluster, predicted and run; and what FlowSpec's barrier costs.

The middle size of ``treepipe/validation/cells.py``. The cluster is the demonstration's: a draft and
four stages of 20 ms, links of 1 ms. The second part sets ``flowspec_free`` (ours) against
``flowspec`` with more stages and slower links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from treepipe.results.plots import BLACK, BLUE, GREY, HATCHED, ORANGE, clean
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Say
from treepipe.scenario.schema import ScheduleName
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.cells import SYSTEMS, Cell, Size, cases_of
from treepipe.validation.comparison import compared
from treepipe.validation.judgement import METRIC, Row, faults_of, warnings_of
from treepipe.validation.row_sheet import row_sheet
from treepipe.validation.validation import spread

NAME = "all-schedules"
AIM = 0.08
"""Largest error of the predicted time between tokens that we want."""


SHORT, SHORT_FREE = Size(requests=4, plain_requests=2), Size(requests=2)


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done: of every schedule, and (``free``) of the two flowspecs at all numbers of
    stages and one-way latencies (ms)."""

    schedules: Sequence[ScheduleName] = SYSTEMS
    size: Size = SHORT
    stages: Sequence[int] = (4, 8)
    latencies_ms: Sequence[float] = (0.5, 5.0, 20.0)
    free: Size = SHORT_FREE


FULL = Settings(size=Size(requests=60, plain_requests=6), free=Size(requests=9))


def run(say: Say, full: bool) -> StudyResult:
    """4 prompts per schedule and 2 for the flowspecs; in full, 60 (plain decoding: 6) and 9."""
    return study(FULL if full else Settings(), say)


def study(settings: Settings, say: Say) -> StudyResult:
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
        [*_findings(rows), *(pair.finding(named) for pair in pairs), *warnings_of(named)],
        faults_of(named),
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """FlowSpec with and without its barrier on one pipeline; ``named``: rows by their cells."""

    barrier: Cell
    free: Cell

    def ratio(self, named: Mapping[str, Row]) -> tuple[float, float]:
        """Time between tokens of flowspec_free over flowspec's: predicted, measured."""
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
    value = row.predicted
    return Entry(f"{key}/{METRIC}", "ms", value.mean, value.low, value.high, row.measured)


def _entries(rows: Mapping[str, Row]) -> list[Entry]:
    found = []
    for name, row in rows.items():
        shares = row.predicted_utilization["draft0"], row.utilization["draft0"]
        found.append(_time_entry(name, row))
        found.append(Entry(f"{name}/draft_utilization", "1", shares[0], measured=shares[1]))
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
    columns = [Column("stages", shown="d"), Column("latency", "ms", ".3g")]
    for of in ("flowspec", "flowspec_free"):
        columns += [Column(f"{of} predicted", "ms"), Column("measured", "ms")]
    columns += [Column("ratio predicted", shown=".2f"), Column("measured", shown=".2f")]
    title = "flowspec with and without the barrier: time between tokens"
    sheet = Sheet("flowspec-free", title, columns)
    for pair in pairs:
        rows = (named[cell.label] for cell in (pair.barrier, pair.free))
        times = (time for row in rows for time in (row.predicted.mean, row.measured))
        sheet.add(pair.free.stages, pair.free.latency_ms, *times, *pair.ratio(named))
    return sheet


def _figure(rows: Mapping[str, Row]) -> Figure:
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    names, places = list(rows), range(len(rows))
    upper, lower = [place - 0.2 for place in places], [place + 0.2 for place in places]
    predicted: dict[str, Any] = {"height": 0.38, "color": BLUE, "label": "predicted before the run"}
    run = {"height": 0.38, "color": ORANGE, "label": "measured on real processes", **HATCHED}
    whiskers = {"ecolor": BLACK, "capsize": 2}
    halves = [row.halves for row in rows.values()]
    means = [row.predicted.mean for row in rows.values()]
    measured = [row.measured for row in rows.values()]
    left.barh(upper, means, xerr=[half for half, _ in halves], **whiskers, **predicted)
    left.barh(lower, measured, xerr=[half for _, half in halves], **whiskers, **run)
    for place, row in zip(places, rows.values(), strict=True):
        end = max(row.predicted.mean + row.halves[0], row.measured + row.halves[1])
        text = f"{row.error:+.1%} ({row.duration_error:+.1%})"
        left.annotate(text, (end, place), (6, 0), va="center", **_POINTS)
    right.barh(upper, [r.predicted_utilization["draft0"] for r in rows.values()], **predicted)
    right.barh(lower, [row.utilization["draft0"] for row in rows.values()], **run)
    left.set_yticks(list(places), names)
    left.invert_yaxis()
    left.set_xlim(0, 1.2 * max(*means, *measured))
    left.set_xlabel("time between tokens (ms), 95 % intervals\nnumbers: error (of it durations)")
    right.set_xlabel("utilization of the draft (share of time)")
    for panel in (left, right):
        clean(panel, axis="x")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


_POINTS: Mapping[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": GREY}
