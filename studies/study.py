"""Studies: questions answered with tables and plots, each by its name; what they all share.

A study is a module with ``run(say, full) -> StudyResult`` (see ``Study.measurable``, too). Nothing
here knows what it studies.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from treepipe.core.errors import RunError, UserError
from treepipe.files.outputs import Faults, check_outputs, claim_results, write_file
from treepipe.files.toml_file import read_toml
from treepipe.report.background import made_again, not_modelled
from treepipe.report.page import Chapter, Picture, Report, write_report
from treepipe.results.plots import save_figure
from treepipe.results.result import write_json
from treepipe.results.sheet import Sheet, words
from treepipe.results.show import Progress, Say, console, print_sheet
from treepipe.validation.calibration import CALIBRATION

SCHEMA = "treepipe.study/1"
WIDTH = 150
"""Of the tables on a pipe."""


@dataclass(frozen=True, slots=True)
class Study:
    """A study's name, one line about it, and where it is.

    Attributes:
        module: imported when the study is asked for, as some need more than others.
        needs_executor: it starts real processes.
        measurable: its ``run`` takes a third argument, whether some of its points are also run on
            real processes (``measured.py``).
    """

    name: str
    summary: str
    module: str
    needs_executor: bool = True
    measurable: bool = False


_ALL = tuple(Study(**each) for each in read_toml(Path(__file__).with_name("studies.toml"))["study"])
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}


@dataclass(frozen=True, slots=True)
class Measuring:
    """How much is run at a measured point: prompts per client, and new tokens of each.

    Attributes:
        runs: of the prediction.
        calibrated_on: prompts, as in ``Prepared``.
    """

    prompts: int = 6
    new_tokens: int = 40
    runs: int = 8
    calibrated_on: str = CALIBRATION


@dataclass(frozen=True, slots=True)
class Entry:
    """One figure of a study (a row of the JSON file).

    Attributes:
        key: its name, as ``docs/files.md`` lists them.
        predicted, low, high: by the simulator (or theory), with the 95 % interval of the mean.
        measured: in a run on real processes.
        published: in the paper.
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


@dataclass(slots=True)
class StudyResult:
    """What a study found.

    Attributes:
        findings: its conclusions and warnings, in sentences.
        faults: why it failed (a text that is not plain decoding's); empty if it did not.
        figures: matplotlib figures by file name (without ``.png``).
        sections: further lists of the study's page by their headings: what was calibrated on,
            assumed, not predicted.
    """

    study: str
    rows: list[Entry] = field(default_factory=list)
    tables: list[Sheet] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    sections: dict[str, list[str]] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """The content of the JSON file."""
        rows = [asdict(row) for row in self.rows]
        return {
            "schema": SCHEMA,
            "study": self.study,
            "rows": rows,
            "findings": self.findings,
            "faults": self.faults,
            "sections": self.sections,
        }

    def page(self) -> str:
        """The page in Markdown: findings, plots, tables, and what the study says of itself."""
        parts = [f"# {self.study}", ""]
        if self.study in STUDIES:
            summary = STUDIES[self.study].summary
            stop = "" if summary.endswith("?") else "."
            parts += [f"{summary}{stop} Made by `treepipe study {self.study}`.", ""]
        parts += [*_list(self.findings)]
        for name in self.figures:
            parts += [f"![{name}]({name}.png)", ""]
        parts += [sheet.markdown() for sheet in self.tables]
        for heading, sentences in self.sections.items():
            parts += [f"## {heading}", "", *_list(sentences)]
        return "\n".join(parts).rstrip() + "\n"


def study_report(result: StudyResult, command: str = "") -> Report:
    """The page in HTML: what ``StudyResult.page`` holds. Args: ``command``: what made the report,
    quoted for a shell."""
    asked = STUDIES[result.study].summary if result.study in STUDIES else result.study
    pictures = [
        Picture(figure, f"{result.study}: {name}") for name, figure in result.figures.items()
    ]
    return Report(
        f"Study: {result.study}",
        [asked],
        result.findings[:2],
        [
            Chapter("Further findings", result.findings[2:]),
            Chapter("Pictures", pictures=pictures),
            Chapter("Tables", tables=result.tables),
            *(Chapter(heading, told) for heading, told in result.sections.items()),
            Chapter("Faults", result.faults),
            not_modelled(),
            made_again(command),
        ],
    )


def _list(sentences: Sequence[str]) -> list[str]:
    return [*(f"- {sentence}" for sentence in sentences), ""] if sentences else []


def find_study(name: str) -> Study:
    """Raises ``UserError`` if there is none of that name."""
    if name not in STUDIES:
        near = difflib.get_close_matches(name, STUDIES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(STUDIES)}"
        raise UserError(f"study {name!r}: there is none of that name; {hint}")
    return STUDIES[name]


def run_study(study: Study, say: Say, full: bool, measure: bool = False) -> StudyResult:
    """Run a study.

    Args:
        full: with all prompts; else a shorter job of about three minutes.
        measure: run points of it on real processes, too; the study must be measurable.
    """
    run = importlib.import_module(study.module).run
    result: StudyResult = run(say, full, measure) if study.measurable else run(say, full)
    return result


def write_study(result: StudyResult, out: Path) -> None:
    """JSON, a CSV file per table, a page in Markdown, and the plots into ``out``."""
    with Faults() as faults:
        faults.attempt(write_json, result.content(), str(out / f"{result.study}.json"), "--out")
        for sheet in result.tables:
            faults.attempt(write_file, out / f"{sheet.name}.csv", sheet.csv(), "--out")
        faults.attempt(write_file, out / f"{result.study}.md", result.page(), "--out")
        for name, figure in result.figures.items():
            faults.attempt(save_figure, figure, out / f"{name}.png", 110, "--out")


def perform(
    study: Study,
    out: Path | None,
    *,
    full: bool = False,
    measure: bool = False,
    json: str | None = None,
    report: Path | None = None,
    command: str = "",
    force: bool = False,
    quiet: bool,
) -> StudyResult:
    """The command ``treepipe study NAME``: run it, write everything, print it.

    Args:
        out: the folder, ``treepipe-study-NAME`` if it is not given.
        full, measure: as in ``run_study``.
        json: a further place for the JSON file, "-" for standard output (and no tables there).
        report: folder for the page, which repeats ``command``, what was typed.
        force: an earlier page may be overwritten.

    Raises:
        UserError: the folder or the file is not ours to write to.
        RunError: a run failed, the study found a fault, or a file could not be written.
    """
    if measure and not study.measurable:
        *some, last = [each.name for each in _ALL if each.measurable]
        others = f"{', '.join(some)} and {last}"
        raise UserError(f"--measure: {study.name} has no points to run as well; {others} have")
    folder = out or Path(f"treepipe-study-{study.name}")
    claim_results(folder, f"{study.name}.json", f"result of the study {study.name}")
    check_outputs({"--json": json, "--report": report}, keep=() if force else ("--report",))
    with Progress(quiet) as say:
        result = run_study(study, say, full, measure)
    with Faults() as faults:
        faults.attempt(write_study, result, folder)
        if json is not None:
            faults.attempt(write_json, result.content(), json)
        if report is not None:
            faults.attempt(write_report, study_report(result, command), report)
        if not quiet and json != "-":
            show_study(result, folder)
        if result.faults:
            raise RunError("; ".join(result.faults))
    return result


def show_study(result: StudyResult, out: Path) -> None:
    """Print the tables and findings."""
    shown = console(WIDTH)
    for sheet in result.tables:
        print_sheet(shown, sheet)
    for finding in result.findings:
        shown.print(finding, highlight=False)
    for heading, sentences in result.sections.items():
        shown.print(heading, style="bold")
        for sentence in sentences:
            shown.print(f"- {sentence}", highlight=False)
    shown.print(f"tables, plots and figures: {out}/", highlight=False)


def show_studies(studies: Sequence[Study] = _ALL) -> None:
    """Print names and summaries."""
    sheet = Sheet("", "", words("study", "question"))
    for study in studies:
        sheet.add(study.name, study.summary)
    print_sheet(console(WIDTH), sheet)
