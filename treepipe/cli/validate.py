"""``treepipe validate``: predict, run or read a measurement, and explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treepipe.cli.options import Changes, Output, check_faults, command
from treepipe.core.errors import UserError
from treepipe.extras import need_executor
from treepipe.files.outputs import Failures, claim_folder

if TYPE_CHECKING:
    from treepipe.scenario.scenario import Scenario
    from treepipe.validation.judgement import Row


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(Output, Changes):
    """Options of ``treepipe validate``."""

    scenarios: Annotated[list[Path], typer.Argument(metavar="SCENARIO.toml...")]
    calibrate_on: Annotated[
        str | None,
        typer.Option(metavar="PROMPTS", help="Calibrate acceptance on these, as workload.prompts."),
    ] = None
    timelines: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write pictures and traces of both worlds here."),
    ] = None
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What vllm bench serve measured, not a run."),
    ] = None


@command(ValidateOptions)
def validate(options: ValidateOptions) -> None:
    """Predict, execute, and explain how far off the prediction was."""
    from treepipe.scenario.scenario import Scenario
    from treepipe.validation.judgement import faults_of
    from treepipe.validation.validation import validation, validation_screen

    if options.measured is None:
        need_executor("treepipe validate")
    else:
        _check_measured(options, options.measured)
    if options.timelines is not None:
        claim_folder(options.timelines, "--timelines")
    options.check({}, *options.scenarios, options.measured)
    labels = _labels(options.scenarios)
    scenarios = {label: Scenario.load(path, options.changes) for label, path in labels.items()}
    entries, rows = _entries(options, scenarios)
    content = validation(entries)
    options.emit(
        None if options.timelines is None else partial(_draw, rows, options.timelines),
        *options.results(content, options.show(validation_screen(content))),
        partial(check_faults, faults_of(rows)),
    )


def _check_measured(options: ValidateOptions, file: Path) -> None:
    """Raise ``UserError`` for options that a benchmark's result leaves without effect."""
    for option, given in (("calibrate-on", options.calibrate_on), ("timelines", options.timelines)):
        if given is not None:
            raise UserError(f"--{option}: has no effect with --measured, which runs nothing")
    if len(options.scenarios) > 1:
        raise UserError(f"--measured {file}: is of one scenario; give one")


def _entries(
    options: ValidateOptions, scenarios: Mapping[str, Scenario]
) -> tuple[list[dict[str, Any]], Mapping[str, Row]]:
    """Return the entries of the file, and the rows of those that were run."""
    from treepipe.results.show import ProgressBars
    from treepipe.validation.measured import measured_entry
    from treepipe.validation.validation import entry

    with ProgressBars(options.quiet) as say:
        if options.measured is not None:
            return [measured_entry(s, options.measured, say) for s in scenarios.values()], {}
        from treepipe.executor.hosts.remote import ask_all

        for each in scenarios.values():
            ask_all(each.workers, each.key_file)
        from treepipe.validation.comparison import Case, compared

        cases = [Case(label, each, options.calibrate_on) for label, each in scenarios.items()]
        rows = compared(cases, say)
    return [entry(row) for row in rows.values()], rows


def _labels(paths: Sequence[Path]) -> dict[str, Path]:
    """Label scenario paths by their stems, or by the whole path if two stems are equal."""
    stems = [path.stem for path in paths]
    found = {
        stem if stems.count(stem) == 1 else str(p): p for stem, p in zip(stems, paths, strict=True)
    }
    if len(found) < len(paths):
        twice = next(path for path in paths if list(paths).count(path) > 1)
        raise UserError(f"{twice}: is given twice")
    return found


def _draw(rows: Mapping[str, Row], folder: Path) -> None:
    from treepipe.validation.validation import write_timelines

    with Failures() as failures:
        for name, row in rows.items():
            failures.attempt(write_timelines, row, folder / name.replace("/", "-"))
