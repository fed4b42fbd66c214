"""What every study of published results shares: published facts, scores, the page's sections.

Law of this file: it knows no paper. A study states what it was calibrated on, what is a true
prediction, what was assumed, and what was not predicted and why; and it sets its error beside that
of a trivial predictor, which it must beat to be worth anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import exp, hypot, log
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from treepipe.files.toml_file import read_toml
from treepipe.results.metrics import METRICS
from treepipe.results.sheet import CellValue, Column, Sheet
from treepipe.results.show import Say
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome, Point, simulate_points
from treepipe.studies.page import fill
from treepipe.studies.study import Entry, StudyResult

PUBLISHED = Path(__file__).parent / "published.toml"


@lru_cache(maxsize=1)
def published() -> Mapping[str, Any]:
    """The papers' figures that studies are calibrated on or held against, by paper."""
    return read_toml(PUBLISHED)


def predicted(
    key: str, unit: str, value: Interval | float, published: float | None = None
) -> Entry:
    """A figure that nothing was fitted to."""
    interval = value if isinstance(value, Interval) else Interval(value, None, None)
    return Entry(key, unit, interval.mean, interval.low, interval.high, published=published)


def calibrated(key: str, unit: str, value: Interval | float, published: float) -> Entry:
    """A figure whose published value was used to find a parameter."""
    return replace(predicted(key, unit, value, published), role="calibrated")


def metric_entries(outcomes: Mapping[str, Outcome], *metrics: str) -> list[Entry]:
    """Args: ``outcomes``: by the beginning of their entries' keys."""
    return [
        predicted(f"{key}/{metric}", METRICS[metric].unit, outcome.metrics[metric])
        for key, outcome in outcomes.items()
        for metric in metrics
    ]


def t_spread(errors: Sequence[float]) -> float:
    """Half-width of a 95 % interval of a prediction's logarithm, from relative errors of figures
    that were left out (Student's t around 0, as many degrees of freedom as figures)."""
    logs = np.log1p(errors)
    return float(stats.t.ppf(0.975, len(logs)) * np.sqrt(np.mean(np.square(logs))))


def widened(entry: Entry, spread: float) -> Entry:
    """An entry whose interval also holds an independent error: its logarithm's half-width is
    ``spread``, and the two are added as variances are.

    An entry without an interval of its own gets this one.
    """
    value = entry.predicted
    if not value or value < 0:
        return entry
    low = log(value / entry.low) if entry.low and entry.low > 0 else 0.0
    high = log(entry.high / value) if entry.high else 0.0
    return replace(
        entry, low=value * exp(-hypot(low, spread)), high=value * exp(hypot(high, spread))
    )


def simulated(
    scenarios: Mapping[str, Scenario], say: Say, title: str = "simulating", *, steady: bool = False
) -> dict[str, Outcome]:
    """The outcomes of scenarios, by the same labels.

    Args: ``steady``: only the part of each run counts in which all pipelines are at work.
    """
    points = [Point(label, scenario, steady) for label, scenario in scenarios.items()]
    return simulate_points(points, say, title)


def relative_error(entry: Entry) -> float | None:
    """Predicted over published - 1; None where either is missing."""
    if entry.predicted is None or not entry.published:
        return None
    return entry.predicted / entry.published - 1


@dataclass(frozen=True, slots=True)
class Score:
    """Errors over the published cells that were predicted.

    Attributes:
        mean, worst: absolute relative error.
        bias: mean of the signed errors.
    """

    cells: int
    mean: float
    worst: float
    bias: float


def score(entries: Sequence[Entry], predictions: Mapping[str, float] | None = None) -> Score | None:
    """The score of the true predictions that have a published figure; None if there is none.

    Args:
        predictions: by key, another predictor's (the trivial one's); cells it has none for are
            left out.
    """
    errors = []
    for entry in entries:
        if entry.role != "predicted" or not entry.published:
            continue
        value = entry.predicted if predictions is None else predictions.get(entry.key)
        if value is not None:
            errors.append(value / entry.published - 1)
    if not errors:
        return None
    sizes = [abs(error) for error in errors]
    return Score(len(errors), fmean(sizes), max(sizes), fmean(errors))


@dataclass(slots=True)
class ScoreSheet:
    """The table of predictors and their errors."""

    name: str
    title: str = "Error of the predictions (published figures that nothing was fitted to)"
    rows: list[tuple[str, Score]] = field(default_factory=list)

    def add(self, predictor: str, found: Score | None) -> None:
        if found is not None:
            self.rows.append((predictor, found))

    def sheet(self) -> Sheet:
        sheet = Sheet(
            self.name,
            self.title,
            [
                Column("predictor"),
                Column("figures", shown="d"),
                Column("mean absolute error", shown=".1%"),
                Column("worst", shown=".1%"),
                Column("bias", shown="+.1%"),
            ],
        )
        for predictor, each in self.rows:
            sheet.add(predictor, each.cells, each.mean, each.worst, each.bias)
        return sheet


def estimate(name: str, unit: str = "", shown: str = ".1f", ends: str = "") -> list[Column]:
    """The columns of a figure and of its interval; ``ends``: what their names begin with."""
    return [Column(each, unit, shown) for each in (name, f"{ends}low", f"{ends}high")]


def cells(value: Interval) -> tuple[float, float | None, float | None]:
    """What stands below the columns of an estimate."""
    return value.mean, value.low, value.high


def comparison_sheet(name: str, title: str, entries: Sequence[Entry]) -> Sheet:
    """Predicted with its interval, measured, published, error, and which of them were fitted; each
    where some entry has it."""
    kinds = {
        "predicted": [*estimate("predicted", shown=".4g")],
        "measured": [Column("measured", shown=".4g")],
        "published": [
            Column("published", shown=".4g"),
            Column("error", shown="+.1%"),
            Column("role"),
        ],
    }
    known = [kind for kind in kinds if any(getattr(e, kind) is not None for e in entries)]
    columns = [Column("figure"), Column("unit"), *(each for kind in known for each in kinds[kind])]
    sheet = Sheet(name, title, columns)
    for entry in entries:
        cells: dict[str, tuple[CellValue, ...]] = {
            "predicted": (entry.predicted, entry.low, entry.high),
            "measured": (entry.measured,),
            "published": (entry.published, relative_error(entry), entry.role),
        }
        sheet.add(entry.key, entry.unit, *(each for kind in known for each in cells[kind]))
    return sheet


class Reproduction:
    """A study of published results that is being put together, part by part.

    Every part is a table, and its entries are rows of the study's JSON file and fields of its page.
    """

    def __init__(self, name: str, template: Path) -> None:
        """Args: ``template``: the sentences of the study's page (``page.py``)."""
        self.name = name
        self.entries: list[Entry] = []
        self._template = template
        self._tables: list[Sheet] = []

    @property
    def now(self) -> dict[str, float]:
        """The predicted figures by key."""
        return {e.key: e.predicted for e in self.entries if e.predicted is not None}

    def add(self, entries: Sequence[Entry], part: str = "", title: str = "") -> None:
        """Keep entries; with the ``part``'s name they are a table, too."""
        self.entries += entries
        if part:
            self.show(entries, part, title)

    def show(self, entries: Sequence[Entry], part: str, title: str) -> None:
        """Put entries into a table, but not among the study's own."""
        self.table(comparison_sheet(f"{self.name}-{part}", title, entries))

    def table(self, sheet: Sheet) -> None:
        self._tables.append(sheet)

    def result(self, fields: Mapping[str, Any], figures: Mapping[str, Figure]) -> StudyResult:
        """The study's result; ``fields`` as ``page.fill`` takes them."""
        page = fill(self._template, self.entries, {"paper": published(), **fields})
        return StudyResult(
            self.name,
            self.entries,
            self._tables,
            dict(figures),
            page.findings,
            sections=page.sections,
        )
