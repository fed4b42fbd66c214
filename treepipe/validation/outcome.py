"""What ``treepipe validate`` is asked for, and the files and tables of what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treepipe.core.errors import RunError
from treepipe.files.outputs import Failures, check_outputs, claim_folder
from treepipe.report.page import write_report
from treepipe.results.result import write_json
from treepipe.results.show import console, print_sheet
from treepipe.results.timeline import draw_timelines
from treepipe.results.trace import write_chrome_trace
from treepipe.scenario.scenario import Scenario
from treepipe.validation import validation_report as words
from treepipe.validation.judgement import Row, faults_of
from treepipe.validation.validation import against, load_validation, validation


@dataclass(frozen=True, slots=True)
class Request:
    """The options of ``treepipe validate``.

    Attributes:
        overrides: values of ``--set``, for every scenario.
        measured: a benchmark's result in place of a run.
        calibrate_on: prompts for calibrating acceptance, instead of the scenarios' own.
        earlier: a validation file to compare with.
        timelines: folder for plots and traces.
        report: folder for the page, which quotes the shell ``command``.
        force: whether an earlier page may be overwritten.
    """

    paths: Sequence[Path]
    overrides: Sequence[str] = ()
    measured: Path | None = None
    calibrate_on: str | None = None
    json: str | None = None
    earlier: Path | None = None
    timelines: Path | None = None
    quiet: bool = False
    report: Path | None = None
    command: str = ""
    force: bool = False


def check(request: Request) -> Mapping[str, Any] | None:
    """Refuse, before the work, what could not be written; return the earlier file's content."""
    earlier = None
    if request.earlier is not None:
        earlier = load_validation(request.earlier, "--against")
    if request.timelines is not None:
        claim_folder(request.timelines, "--timelines")
    check_outputs(
        {"--json": request.json, "--report": request.report},
        inputs=(*request.paths, request.measured),
        keep=() if request.force else ("--report",),
    )
    return earlier


def conclude(
    request: Request,
    entries: Sequence[Mapping[str, Any]],
    rows: Mapping[str, Row],
    scenarios: Sequence[Scenario],
    earlier: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Write and show the entries (``rows`` of those that were run); returns the file's content."""
    content = validation(entries)
    if earlier is not None:
        content["against"] = against(earlier, content)
    with Failures() as failures:
        if request.json is not None:
            failures.attempt(write_json, content, request.json)
        if request.timelines is not None:
            for name, row in rows.items():
                failures.attempt(write_timelines, row, request.timelines / name.replace("/", "-"))
        if request.report is not None:
            page = words.validation_report(content, rows, scenarios, request.command)
            failures.attempt(write_report, page, request.report)
        if not request.quiet and request.json != "-":
            _show(content)
        if wrong := faults_of(rows):
            raise RunError("; ".join(wrong))
    return content


def write_timelines(row: Row, path: Path) -> None:
    """Write ``path.png``, replay above run, and ``path-trace.json`` with the prediction."""
    traces = [("prediction", row.prediction), ("replay", row.replay), ("execution", row.execution)]
    picture, trace = (path.with_name(path.name + end) for end in (".png", "-trace.json"))
    with Failures() as failures:
        failures.attempt(write_chrome_trace, traces, trace, "--timelines")
        failures.attempt(draw_timelines, row.timelines, row.label, picture, option="--timelines")


def _show(content: Mapping[str, Any]) -> None:
    shown, said = console(), list[str]()
    for scenario in content["scenarios"]:
        print_sheet(shown, words.metrics_sheet(scenario))
        if scenario["utilization"]:
            print_sheet(shown, words.utilization_sheet(scenario))
        for sentence in words.explain(scenario):
            shown.print(sentence, highlight=False)
    if len(content["scenarios"]) > 1:
        print_sheet(shown, words.summary_sheet(content["summary"]))
        correlation = content["summary"]["pearson_r"]
        if correlation is not None:
            said.append(f"predicted and measured: Pearson's r = {correlation:.4f}")
    if "against" in content:
        said += words.changes(content["against"])
    for sentence in said:
        shown.print(sentence, highlight=False)
