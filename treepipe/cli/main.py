"""The command line: parses arguments, calls the library, returns exit codes.

Exit codes: 0 success, 1 a run failed, 2 the user's input is wrong, 128 + N ended by signal N.
"""

from __future__ import annotations

import errno
import io
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from treepipe.cli import calibrate as cli_calibrate
from treepipe.cli import check as cli_check
from treepipe.cli import plan as cli_plan
from treepipe.cli import profiles as cli_profiles
from treepipe.cli import validate as cli_validate
from treepipe.cli import worker as cli_worker
from treepipe.cli.options import (
    Distributed,
    OfRuns,
    Output,
    Quiet,
    Settings,
    check_faults,
    command,
)
from treepipe.core.errors import RunError, UserError
from treepipe.extras import need_executor, need_parquet
from treepipe.files.outputs import (
    Failures,
    check_outputs,
    claim_results,
    drop_standard_output,
    forget_written,
    what_is_kept,
)
from treepipe.files.reading import visible
from treepipe.interruption import Interruption

if TYPE_CHECKING:
    from treepipe.results.result import Result
    from treepipe.scenario.scenario import Scenario

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Interrupted(Exception):  # noqa: N818  (nothing went wrong)
    """A signal, as an exception of our own: at a ``KeyboardInterrupt`` Typer exits silently."""


class Commands(TyperGroup):
    """The group of all commands, which passes interruptions on to ``main``."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise Interrupted from None


app = typer.Typer(
    cls=Commands,
    help="Plan and run tree speculative decoding over pipelines of devices.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its help takes as long to import as all else that help needs
)

app.add_typer(cli_calibrate.app, name="calibrate")
app.add_typer(cli_profiles.app, name="profiles")
app.command()(cli_plan.plan)
app.command()(cli_validate.validate)
app.command()(cli_worker.worker)
app.command()(cli_check.check)


def main() -> None:
    """Entry point of the console script."""
    forget_written()
    _print_anything()
    with Interruption.noted() as interruption:
        try:
            app(standalone_mode=True, prog_name="treepipe")
        except (Interrupted, KeyboardInterrupt):
            _end_interrupted(interruption.exit_code)
        except Exception as error:
            if interruption.happened:
                _end_interrupted(interruption.exit_code)
            _end(error)


def _print_anything() -> None:
    """Make a terminal that knows only ASCII show a question mark for other characters."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _end(error: Exception) -> NoReturn:
    """Report an expected kind of error in a sentence and exit."""
    if isinstance(error, UserError):
        _complain(str(error))
        sys.exit(2)
    if isinstance(error, RunError):
        _complain(str(error))
        sys.exit(1)
    if isinstance(error, OSError) and error.errno in FULL:
        if error.filename is None:
            drop_standard_output()
        _complain(f"{error.filename or 'standard output'}: cannot be written: {error.strerror}")
        sys.exit(1)
    raise error


def _end_interrupted(exit_code: int) -> NoReturn:
    _complain(f"interrupted; {what_is_kept()}")
    exec("")  # Python forgets an interruption of exec(), for which it would end by the signal
    sys.exit(exit_code)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as installed

        version = installed("treepipe")
        typer.echo(f"treepipe {version} (Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version, and Python's.",
        ),
    ] = False,
) -> None:
    """Plan and run tree speculative decoding over pipelines of devices."""


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(OfRuns):
    """Options of ``treepipe simulate``."""

    versus: Annotated[
        Path | None,
        typer.Option(
            "--versus", metavar="B.toml", help="Report this scenario's difference (B - A)."
        ),
    ] = None
    versus_settings: Annotated[
        list[str] | None,
        typer.Option("--versus-set", metavar="KEY=VALUE", help="Change a key in B only."),
    ] = None


@app.command()
@command(SimulateOptions)
def simulate(options: SimulateOptions) -> None:
    """Predict a scenario, or the difference between two (--versus)."""
    from treepipe import library
    from treepipe.results.show import ProgressBars
    from treepipe.scenario.scenario import Scenario
    from treepipe.scenario.workload import effort_warnings

    paired = options.versus is not None or bool(options.versus_settings)
    options.check(options.files, options.scenario, options.versus)
    a, b = Scenario.load(options.scenario, options.changes), None
    if paired:
        other = [*options.changes, *(options.versus_settings or []), f"seed={a.seed}"]
        b = Scenario.load(options.versus or options.scenario, other)
    for sentence in (s for each in (a, b) if each is not None for s in effort_warnings(each)):
        typer.echo(f"treepipe: {visible(sentence)}", err=True)
    with ProgressBars(options.quiet) as say:
        if b is None:
            result = library.simulate(a, say=say)
        else:
            comparison = library.compare(a, b, changed=options.versus_settings or (), say=say)
    if b is None:
        options.emit(*options.outputs(result, [] if options.silent else _by_formula(a)))
    else:
        sides = {"A": comparison.a, "B": comparison.b}
        first = [(f"{label}: {side.scenario}", side.traces[0]) for label, side in sides.items()]
        shown = options.results(comparison.to_json(), options.show(comparison.screen))
        options.emit(*options.drawn(first), *shown)


@dataclass(frozen=True, kw_only=True)
class RunOptions(OfRuns):
    """Options of ``treepipe run``."""

    recording: Annotated[
        Path | None,
        typer.Option("--recording", help="Write the run's acceptance here, to replay it."),
    ] = None


@app.command()
@command(RunOptions)
def run(options: RunOptions) -> None:
    """Execute a scenario with real processes, on one host or several."""
    need_executor("treepipe run")
    from treepipe import library
    from treepipe.results.show import ProgressBars
    from treepipe.scenario.scenario import Scenario

    files = {"--recording": options.recording, **options.files}
    options.check(files, options.scenario)
    loaded = Scenario.load(options.scenario, options.changes)
    with ProgressBars(options.quiet) as say:
        result = library.run(loaded, say=say, json=options.json, recording=options.recording)
    options.emit(
        None
        if options.recording is None
        else partial(result.recordings[0].save, options.recording),
        *options.outputs(result),
        partial(_check_served, result),
    )


def _check_served(result: Result) -> None:
    """Raise ``RunError`` if requests ended early."""
    lost = [r for each in result.traces for r in each.requests if r.reason == "worker lost"]
    if lost:
        raise RunError(f"{len(lost)} requests ended early, since a worker was lost")


@app.command()
def keys(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="This key and those below it, e.g. serving.")
    ] = "",
) -> None:
    """Show a scenario's keys: meaning, values, default, readers."""
    from treepipe.results.sheet import Sheet, words
    from treepipe.results.show import console, print_sheet
    from treepipe.scenario.keys import key_facts

    sheet = Sheet("", words("key", "meaning", "values", "default", "read"))
    for each in key_facts(path):
        sheet.add(each.path, each.meaning, each.values, each.default, each.read)
    print_sheet(console(), sheet)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for tables, plots and traces.")] = Path(
        "treepipe-demo"
    ),
    quiet: Quiet = False,
) -> None:
    """Predict four schedules, run them, and compare."""
    need_executor("treepipe demo")
    from treepipe.results.show import ProgressBars
    from treepipe.validation.demo import run_demo, show_demo, write_demo

    claim_results(out, "demo.json", "demonstration")
    with ProgressBars(quiet) as say:
        rows = run_demo(say)
    with Failures() as failures:
        failures.attempt(write_demo, rows, out)
        if not quiet:
            show_demo(rows, out)
        if not all(row.lossless for row in rows):
            raise RunError("a schedule's text differs from plain greedy decoding")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Output, Distributed, Settings):
    """Options of ``treepipe sweep``."""

    grid: Annotated[Path, typer.Argument(metavar="GRID.toml")]
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the Parquet files; resumed if there.")
    ]
    force: Annotated[
        bool, typer.Option("--force", help="Throw away what DIR holds of another sweep.")
    ] = False
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="joblib|ray://HOST:PORT|dask://HOST:PORT",
            help="Processes of this machine, or a running cluster.",
        ),
    ] = "joblib"


@app.command()
@command(SweepOptions)
def sweep(options: SweepOptions) -> None:
    """Simulate combinations or Latin hypercubes into Parquet files."""
    from treepipe.results.show import ProgressBars
    from treepipe.sim.engine import engine
    from treepipe.sweeps.sweep import Sweep, carry_out

    need_parquet()
    check_outputs({"--json": options.json}, inputs=(options.grid,))
    loaded = Sweep.load(options.grid, options.changes)
    with engine(options.backend, options.jobs), ProgressBars(options.quiet) as say:
        swept = carry_out(loaded, options.out, say, force=options.force)
    options.emit(*options.results(swept.to_json(), options.show(swept.screen)))


@dataclass(frozen=True, kw_only=True)
class StudyOptions(Output):
    """Options of ``treepipe study``."""

    name: Annotated[str | None, typer.Argument(help="Which one; default: show all.")] = None
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables and plots; default treepipe-study-NAME.")
    ] = None
    listed: Annotated[bool, typer.Option("--list", help="Show all, and do no more.")] = False
    full: Annotated[
        bool | None,
        typer.Option("--full/--quick", help="The whole job, or the short one (default: by study)."),
    ] = None
    quiet: Quiet = False


@app.command()
@command(StudyOptions)
def study(options: StudyOptions) -> None:
    """Answer a question with a table and a plot, or list all."""
    from treepipe.results.show import ProgressBars
    from treepipe.studies import study as studies

    if options.listed or options == StudyOptions():
        studies.show_studies()
        return
    if options.name is None:
        raise UserError("treepipe study needs a name; --list shows all studies")
    found = studies.find_study(options.name)
    if found.needs_executor:
        need_executor("treepipe study")
    folder = options.out or Path(f"treepipe-study-{found.name}")
    claim_results(folder, f"{found.name}.json", f"result of the study {found.name}")
    options.check({})
    with ProgressBars(options.quiet) as say:
        result = studies.run_study(found, say, options.full)
    options.emit(
        partial(studies.write_study, result, folder),
        *options.results(result.content(), partial(studies.show_study, result, folder)),
        partial(check_faults, result.faults),
    )


def _by_formula(scenario: Scenario) -> list[str]:
    """Say what the papers' formulas tell, where they describe the scenario."""
    from treepipe.sim.theory.closed_form import closed_form

    with suppress(UserError):
        if scenario.schedule.system.closed_form is not None:
            return [f"{closed_form(scenario).sentence}."]
    return []


def _complain(sentence: str) -> None:
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble(("treepipe:", "red"), f" {visible(sentence)}")
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)
