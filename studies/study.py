"""The framework of studies: settings, results and files.

A study is a module with the settings ``SHORT`` and ``FULL`` and a function ``study(settings, say)``
that returns a ``StudyResult``. This module depends on no single study.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal

from treepipe.core.errors import UserError
from treepipe.files.outputs import Failures, write_file
from treepipe.files.reading import suggestion
from treepipe.files.toml_file import read_toml
from treepipe.progress import Progress
from treepipe.results.result import write_json
from treepipe.results.screen import Screen
from treepipe.results.sheet import Sheet, words
from treepipe.results.show import console, print_screen, print_sheet
from treepipe.results.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "treepipe.study/1"
LONG = 16
"""Number of rows above which a table is in its CSV file alone."""


@dataclass(frozen=True, slots=True)
class Study:
    """A study's name, one line about it, and its module.

    Attributes:
        needs_executor: whether it starts real processes.
        whole: whether the whole job is the usual one.
    """

    name: str
    summary: str
    module: str
    needs_executor: bool = True
    whole: bool = False


_FILE = read_toml(Path(__file__).with_name("studies.toml"))
STUDIES: dict[str, Study] = {each["name"]: Study(**each) for each in _FILE["study"]}


@dataclass(frozen=True, slots=True)
class Entry:
    """One figure of a study (a row of the JSON file).

    Attributes:
        key: name of the figure, as listed in ``docs/files.md``.
        low, high: the 95 % interval of the predicted mean.
        role: "calibrated" if the prediction was fitted to the published figure, or to runs of the
            same schedule.
    """

    key: str
    unit: str
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    measured: float | None = None
    published: float | None = None
    role: Literal["calibrated", "predicted"] = "predicted"

    @classmethod
    def of(cls, key: str, unit: str, value: Interval, measured: float | None = None) -> Entry:
        """Make the entry of a predicted interval."""
        return cls(key, unit, value.mean, value.low, value.high, measured)


@dataclass(frozen=True, slots=True)
class Score:
    """How predictions met ``cells`` published figures: the median and the largest size of their
    relative errors and the signed mean, and the share inside their intervals (None: they have
    none)."""

    cells: int
    median: float
    worst: float
    mean: float
    covered: float | None


def relative_error(entry: Entry) -> float | None:
    """Return predicted over published - 1; None if either is missing."""
    if entry.predicted is None or not entry.published:
        return None
    return entry.predicted / entry.published - 1


def score(entries: Iterable[Entry], guesses: Mapping[str, float] | None = None) -> Score | None:
    """Score the true predictions that have a published figure; None if there is none.

    Args:
        guesses: another predictor's figures by key, to score instead, on these keys alone.
    """
    judged = [each for each in entries if each.role == "predicted" and each.published]
    if guesses is not None:
        judged = [replace(e, predicted=guesses[e.key]) for e in judged if e.key in guesses]
    errors = [error for each in judged if (error := relative_error(each)) is not None]
    if not errors:
        return None
    sizes, known = [abs(error) for error in errors], [e for e in judged if e.low is not None]
    inside = [(e.low or 0) <= (e.published or 0) <= (e.high or inf) for e in known]
    covered = sum(inside) / len(judged) if known and guesses is None else None
    return Score(len(errors), median(sizes), max(sizes), fmean(errors), covered)


@dataclass(slots=True)
class StudyResult:
    """The results of a study.

    Attributes:
        left_out: published figures that were each predicted from the rest, or that no fit used, by
            ``PAPER/METHOD``.
        further: further keys of the JSON file.
        tables: the first one of at most ``LONG`` rows is the page's.
        figures: plots by file name (without ``.png``), the page's first.
        findings: conclusions in sentences, the main one first.
        warnings: warnings of predictions and runs, with the names of their cells.
        faults: reasons for failure (a text that is not plain decoding's); empty after success.
        sections: further sentences of the study's page by heading.
    """

    study: str
    rows: list[Entry] = field(default_factory=list)
    tables: list[Sheet] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    warnings: dict[str, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    sections: dict[str, list[str]] = field(default_factory=dict)
    left_out: dict[str, list[Entry]] = field(default_factory=dict)
    further: dict[str, Any] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        rows = [asdict(row) for row in self.rows]
        others = {
            each: getattr(self, each) for each in ("findings", "warnings", "faults", "sections")
        }
        scores = {of: score(entries) for of, entries in self.left_out.items()} | {"all": self.whole}
        others["left_out"] = {of: asdict(each) for of, each in scores.items() if each}
        return {"schema": SCHEMA, "study": self.study, "rows": rows, **others, **self.further}

    def page(self) -> str:
        """Return the page in Markdown: what was found, one picture and one table; the cells of all
        tables are in CSV files beside it, and the warnings in the JSON file."""
        first = [found[0].upper() + found[1:] for found in self.findings[:1]]
        parts = [f"# {self.study}", "", *(f"{found}." for found in first), ""]
        parts += [f"![{name}]({name}.png)\n" for name in [*self.figures][:1]]
        if self.study in STUDIES:
            summary = STUDIES[self.study].summary
            stop = "" if summary.endswith("?") else "."
            parts += [
                f"{summary[0].upper()}{summary[1:]}{stop} Made by `treepipe study {self.study}`.",
                "",
            ]
        parts += _list([*self.findings[1:], *self.judged()])
        parts += [sheet.markdown() for sheet in self.tables if len(sheet.rows) <= LONG][:1]
        for heading, sentences in self.sections.items():
            parts += [f"## {heading}", "", *_list(sentences)]
        files = ", ".join(f"[{sheet.title}]({sheet.name}.csv)" for sheet in self.tables)
        warned = f"; {counted(len(self.warned()), 'warning')} in {self.study}.json"
        parts.append(f"Cells: {files}{warned if self.warnings else ''}.")
        return "\n".join(parts) + "\n"

    @property
    def whole(self) -> Score | None:
        """The score of all figures that were left out; None without any."""
        return score(entry for entries in self.left_out.values() for entry in entries)

    def judged(self) -> list[str]:
        """Return a sentence about the figures that were left out, if there are any."""
        if (whole := self.whole) is None:
            return []
        return [
            f"left out, each predicted from the rest: {counted(whole.cells, 'published figure')}, "
            f"off by {whole.median:.1%} in the median and {whole.mean:+.1%} in the mean; "
            f"{whole.covered or 0:.0%} lie within their 95 % intervals"
        ]

    def warned(self) -> list[str]:
        """Return a sentence per kind of warning, with the number of its cells; warnings of one kind
        differ only in their figures."""
        kinds: dict[str, tuple[str, set[str]]] = {}
        for text, cells in self.warnings.items():
            kinds.setdefault(re.sub(r"\d+(\.\d+)?", "#", text), (text, set()))[1].update(cells)
        return [f"{text} ({counted(len(cells), 'cell')})" for text, cells in kinds.values()]


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "cell"), counted(2, "cell")
    ('1 cell', '2 cells')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _list(sentences: Sequence[str]) -> list[str]:
    return [*(f"- {sentence}" for sentence in sentences), ""] if sentences else []


def find_study(name: str) -> Study:
    """Return the study of that name; raises ``UserError`` if there is none."""
    if name not in STUDIES:
        hint = suggestion(name, STUDIES)
        raise UserError(f"study {name!r}: there is none of that name; {hint}")
    return STUDIES[name]


def run_study(study: Study, say: Progress, full: bool | None = None) -> StudyResult:
    """Run a study.

    Args:
        full: the whole job, instead of a shorter one of about three minutes; None: the usual one.
    """
    module = importlib.import_module(study.module)
    full = study.whole if full is None else full
    result: StudyResult = module.study(module.FULL if full else module.SHORT, say)
    return result


def write_study(result: StudyResult, out: Path) -> None:
    """Write JSON, a CSV file per table, a page in Markdown, and the plots into ``out``."""
    from treepipe.results.plots import save_figure

    with Failures() as failures:
        failures.attempt(write_json, result.content(), str(out / f"{result.study}.json"), "--out")
        for sheet in result.tables:
            failures.attempt(write_file, out / f"{sheet.name}.csv", sheet.csv(), "--out")
        failures.attempt(write_file, out / f"{result.study}.md", result.page(), "--out")
        for name, figure in result.figures.items():
            failures.attempt(save_figure, figure, out / f"{name}.png", 110, "--out")


def show_study(result: StudyResult, out: Path) -> None:
    """Print the findings and tables."""
    sections = [f"{name}: {each}" for name, own in result.sections.items() for each in own]
    sentences, tables = [*result.findings[1:], *result.judged(), *sections], result.tables
    says, warned = next(iter(result.findings), result.study), result.warned()
    print_screen(Screen(says, None, (), warned, (), tables, sentences), verbose=True)
    console().print(f"tables, plots and figures: {out}/", highlight=False)


def show_studies() -> None:
    """Print names and summaries."""
    sheet = Sheet("", words("study", "question"))
    for study in STUDIES.values():
        sheet.add(study.name, study.summary)
    print_sheet(console(), sheet)
