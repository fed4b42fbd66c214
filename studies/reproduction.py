"""Common parts of studies of published results: published facts, scores, tables and the page.

Independent of any paper. A study states its calibration, its true predictions, its assumptions, and
what it does not predict and why; and it compares its error with that of a trivial predictor, which
it must beat to be useful.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from functools import lru_cache
from math import exp, hypot, inf, log
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from treepipe.files.reading import sentences
from treepipe.files.toml_file import read_toml
from treepipe.profiles.library import find_device, find_model, shape_of
from treepipe.profiles.schema import Hardware
from treepipe.profiles.service import ServedModel, ServiceTimes
from treepipe.progress import Progress
from treepipe.results.metrics import METRICS
from treepipe.results.sheet import CellValue, Sheet, columns
from treepipe.results.statistics import Interval, student_t
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome, Point, simulate_points
from treepipe.studies.study import Entry, StudyResult, relative_error, score

PUBLISHED = Path(__file__).parent / "published.toml"


@lru_cache(maxsize=1)
def published() -> Mapping[str, Any]:
    """Return the papers' figures for calibration and comparison, by paper."""
    return read_toml(PUBLISHED)


def predicted(
    key: str,
    unit: str,
    value: Interval | float,
    published: float | None = None,
    fitted: bool = False,
) -> Entry:
    """Make the entry of a predicted figure; ``fitted``: used for calibration."""
    interval = value if isinstance(value, Interval) else Interval(value, None, None)
    entry = replace(Entry.of(key, unit, interval), published=published)
    return replace(entry, role="calibrated") if fitted and published is not None else entry


def metric_entries(outcomes: Mapping[str, Outcome], *metrics: str) -> list[Entry]:
    """Make entries of outcomes' metrics, under the keys ``LABEL/METRIC``."""
    return [
        predicted(f"{label}/{metric}", METRICS[metric].unit, outcome.metrics[metric])
        for label, outcome in outcomes.items()
        for metric in metrics
    ]


def simulated(
    scenarios: Mapping[str, Scenario], say: Progress, title: str = "simulating"
) -> dict[str, Outcome]:
    """Simulate scenarios; returns outcomes by the same labels."""
    points = [Point(label, scenario) for label, scenario in scenarios.items()]
    return simulate_points(points, say, title)


def model_profile(name: str) -> ServedModel:
    """Load a model of the profile library."""
    shape = find_model(name, __name__)
    return ServedModel(name, shape, shape.dtype)


def device_times(name: str, **changes: Any) -> ServiceTimes:
    """Return the service times of hardware of the profile library, with changes to its profile."""
    hardware = find_device(name, __name__)
    assert isinstance(hardware, Hardware)
    return ServiceTimes(name, hardware.model_copy(update=changes), shape_of, [])


def t_spread(errors: Sequence[float]) -> float:
    """Return the half-width of a 95 % interval of a prediction's logarithm, from relative errors of
    left-out figures (Student's t around 0, as many degrees of freedom as figures)."""
    logs = np.log1p(errors)
    if not len(logs):
        return 0.0
    return float(student_t(len(logs), 0.975) * np.sqrt(np.mean(np.square(logs))))


def widened(entry: Entry, spread: float, most: float = inf) -> Entry:
    """Widen an entry's interval, up to ``most``, by an independent error: ``spread`` is the
    half-width of its logarithm, and variances add."""
    value = entry.predicted
    if not value or value < 0:
        return entry
    low = log(value / entry.low) if entry.low and entry.low > 0 else 0.0
    high = log(entry.high / value) if entry.high else 0.0
    low, high = value * exp(-hypot(low, spread)), value * exp(hypot(high, spread))
    return replace(entry, low=low, high=min(high, most))


# --- scores --------------------------------------------------------------------------------------


def missed(entries: Iterable[Entry]) -> float:
    """Return the ``t_spread`` of left-out figures: what the model misses in others of its kind."""
    return t_spread([e for each in entries if (e := relative_error(each)) is not None and e > -1])


def score_sheet(
    name: str, left_out: Mapping[str, Sequence[Entry]], guesses: Mapping[str, float]
) -> Sheet:
    """Show scores of left-out figures by method, beside a trivial predictor's ``guesses``."""
    shown = "figures|d", "median|.1%", "worst|.1%", "signed mean|+.1%", "inside interval|.0%"
    title = "Errors of published figures, each predicted from the rest or not fitted to"
    heads = columns("method", *shown, "trivial predictor, median|.1%")
    sheet = Sheet(title, heads, name=f"{name}-scores")
    for method, entries in left_out.items():
        if (scored := score(entries)) is not None:
            trivial = score(entries, guesses)
            sheet.add(method, *astuple(scored), trivial.median if trivial else None)
    return sheet


def comparison_sheet(name: str, title: str, entries: Sequence[Entry]) -> Sheet:
    """Show entries in rows: predicted with its interval, measured, published, error, and whether
    fitted; only columns that some entry fills."""
    kinds = {
        "predicted": columns("predicted|.4g", "low|.4g", "high|.4g"),
        "measured": columns("measured|.4g"),
        "published": columns("published|.4g", "error|+.1%", "role"),
    }
    known = [kind for kind in kinds if any(getattr(e, kind) is not None for e in entries)]
    heads = [*columns("figure", "unit"), *(each for kind in known for each in kinds[kind])]
    sheet = Sheet(title, heads, name=name)
    for entry in entries:
        cells: dict[str, tuple[CellValue, ...]] = {
            "predicted": (entry.predicted, entry.low, entry.high),
            "measured": (entry.measured,),
            "published": (entry.published, relative_error(entry), entry.role),
        }
        sheet.add(entry.key, entry.unit, *(each for kind in known for each in cells[kind]))
    return sheet


# --- the page ------------------------------------------------------------------------------------


class Reproduction:
    """A study of published results under construction: its entries, its tables, and entries of
    figures that were left out, by ``PAPER/METHOD``, and a trivial predictor's figures by key."""

    def __init__(self, name: str, template: Path) -> None:
        self.name = name
        self.entries: list[Entry] = []
        self.tables: list[Sheet] = []
        self.left_out: dict[str, list[Entry]] = {}
        self.trivial: dict[str, float] = {}
        self._template = template

    @property
    def now(self) -> dict[str, float]:
        """The predicted figures by key."""
        return {e.key: e.predicted for e in self.entries if e.predicted is not None}

    def add(self, entries: Sequence[Entry], part: str = "", title: str = "") -> None:
        """Add entries, and with a ``part``'s name also a table of them."""
        self.entries += entries
        if part:
            self.show(entries, part, title)

    def show(self, entries: Sequence[Entry], part: str, title: str) -> None:
        """Show entries in a table without adding them to the study's own."""
        self.tables.append(comparison_sheet(f"{self.name}-{part}", title, entries))

    def leave_out(self, groups: Mapping[str, Sequence[Entry]], whole: bool = False) -> float:
        """Add published figures that were each predicted from the rest, or that no fit used, by
        ``PAPER/METHOD``. Their intervals count the errors of the others, too, which is what the
        model misses besides; not if they are ``whole``, as the study made them. Returns ``missed``
        of all that it widened, by which to widen predictions of their kind."""
        everything = [] if whole else [entry for each in groups.values() for entry in each]
        wide = {e.key: widened(e, missed(x for x in everything if x is not e)) for e in everything}
        for of, entries in groups.items():
            self.left_out.setdefault(of, []).extend(wide.get(e.key, e) for e in entries)
        self.entries = [wide.get(e.key, e) for e in self.entries]
        return missed(everything)

    def result(self, fields: Mapping[str, Any], figure: Figure) -> StudyResult:
        """Return the study's result; ``fields`` as for ``fill``."""
        page = fill(self._template, self.entries, {"paper": published(), **fields})
        findings = page.pop("")
        if self.left_out:
            scores = score_sheet(self.name, self.left_out, self.trivial)
            self.tables.insert(0, scores)  # the page's table
            left_out = [entry for entries in self.left_out.values() for entry in entries]
            self.show(left_out, "left-out", "Figures left out, with what the others say of errors")
        made = StudyResult(self.name, self.entries, self.tables, {self.name: figure}, findings)
        made.sections, made.left_out = page, self.left_out
        return made


class _AbsentError(Exception):
    """A sentence's field refers to a figure that does not exist."""


class _Figures(dict[str, float | None]):
    def __missing__(self, key: str) -> float:
        raise _AbsentError


class _Formatter(string.Formatter):
    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        value, used = super().get_field(field_name, args, kwargs)
        if value is None:
            raise _AbsentError
        return value, used


def fill(
    template: Path, entries: Sequence[Entry], values: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Fill a page's template; returns sentences by heading ("": its findings), from the list items
    of a study's page.

    The template's fields are Python's: ``{now[KEY]:.1f}`` is the predicted figure of the entry KEY,
    ``{low[KEY]}`` and ``{high[KEY]}`` its interval; all others are ``values``. A sentence with a
    figure that this size of the study does not have (None, or no such entry) is left out.

    Raises:
        KeyError: the template has an unknown field.
    """
    fields = {
        "now": _Figures({entry.key: entry.predicted for entry in entries}),
        "low": _Figures({entry.key: entry.low for entry in entries}),
        "high": _Figures({entry.key: entry.high for entry in entries}),
        **values,
    }
    page: dict[str, list[str]] = {}
    for heading, templates in sentences(template.read_text(encoding="utf-8")).items():
        page[heading] = []
        for each in templates:
            try:
                page[heading].append(_Formatter().vformat(each, (), fields))
            except _AbsentError:
                continue
    return page
