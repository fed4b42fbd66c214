"""The command line: arguments in, exit codes out; the work is done elsewhere.

Exit codes: 0 done, 1 a run failed, 2 the user's input is wrong.
"""

from __future__ import annotations

import errno
import importlib.metadata
import io
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Optional

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from treepipe.cli import calibrate as cli_calibrate
from treepipe.cli import plan as cli_plan
from treepipe.cli import profiles as cli_profiles
from treepipe.cli import sweep as cli_sweep
from treepipe.cli import worker as cli_worker
from treepipe.cli.options import (
    Force,
    JsonTarget,
    PlotFile,
    Quiet,
    ReportFolder,
    Runs,
    ScenarioFile,
    Seed,
    Settings,
    TimelineFolder,
    TraceFile,
    Versus,
    VersusSettings,
    WhereTimeGoes,
    changes,
    command_line,
)
from treepipe.core.errors import RunError, UserError
from treepipe.extras import need_executor
from treepipe.files.outputs import (
    Faults,
    check_outputs,
    drop_standard_output,
    forget_written,
    what_is_kept,
)
from treepipe.files.visible import visible
from treepipe.interruption import Interruption

if TYPE_CHECKING:
    from treepipe.results.result import Result
    from treepipe.results.versus import Comparison
    from treepipe.scenario.scenario import Scenario

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Interrupted(Exception):  # noqa: N818  (nothing went wrong)
    """Ctrl-C. Typer would end without a word at a ``KeyboardInterrupt``."""


class Commands(TyperGroup):
    """All commands, whose interruption reaches ``main``."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise Interrupted from None


app = typer.Typer(
    cls=Commands,
    help="Plan and run tree speculative decoding over pipelines of devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(cli_calibrate.app, name="calibrate")
app.add_typer(cli_profiles.app, name="profiles")
app.command()(cli_plan.plan)
app.command()(cli_sweep.sweep)
app.command()(cli_worker.worker)


def main() -> None:
    """Entry point of the console script."""
    forget_written()
    _print_anything()
    with Interruption.noted() as interruption:
        try:
            app(standalone_mode=True)
        except (Interrupted, KeyboardInterrupt):
            _end_interrupted()
        except Exception as error:
            if interruption.happened:
                _end_interrupted()
            _end(error)


def _print_anything() -> None:
    """A terminal that knows only ASCII shows a question mark for what it cannot."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _end(error: Exception) -> NoReturn:
    """Say what went wrong in a sentence, if it is of a kind that is foreseen."""
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


def _end_interrupted() -> NoReturn:
    _complain(f"interrupted; {what_is_kept()}")
    exec("")  # Python forgets an interruption of exec(), for which it would end by the signal
    sys.exit(130)


def _show_version(wanted: bool) -> None:
    if wanted:
        version = importlib.metadata.version("treepipe")
        typer.echo(f"treepipe {version} (Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def options(
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


@app.command()
def simulate(
    scenario: ScenarioFile,
    versus: Versus = None,
    versus_settings: VersusSettings = None,
    json: JsonTarget = None,
    trace: TraceFile = None,
    plot: PlotFile = None,
    where_time_goes: WhereTimeGoes = False,
    report: ReportFolder = None,
    seed: Seed = None,
    runs: Runs = None,
    settings: Settings = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Predict a scenario, or the difference between two (--versus, --versus-set)."""
    from treepipe import library
    from treepipe.results.show import Progress, show_result, show_versus
    from treepipe.scenario.scenario import Scenario
    from treepipe.scenario.workload import effort_warnings

    if where_time_goes and (versus is not None or versus_settings):
        raise UserError("--where-time-goes shows one scenario; leave out --versus")
    pictures = _pictures(plot, where_time_goes)
    check_outputs(
        {"--json": json, "--trace": trace, **pictures, "--report": report},
        inputs=(scenario, versus),
        keep=() if force else ("--report", "--where-time-goes"),
    )
    overrides = changes(settings, seed, runs)
    a, b = Scenario.load(scenario, overrides), None
    if versus is not None or versus_settings:
        other = [*overrides, *(versus_settings or []), f"seed={a.seed}"]
        b = Scenario.load(versus or scenario, other)
    for sentence in (s for each in (a, b) if each is not None for s in effort_warnings(each)):
        typer.echo(f"treepipe: {visible(sentence)}", err=True)
    with Progress(quiet) as say:
        if b is None:
            result = library.simulate(a, say=say)
        else:
            found = library.compare(a, b, changed=versus_settings or (), say=say)
    with Faults() as faults:
        if report is not None:
            faults.attempt(_write_report, report, result if b is None else found, a, b)
        if b is None:
            faults.attempt(show_result, result, json, trace, plot, quiet, where_time_goes)
        else:
            traces = [found.a.traces[0], found.b.traces[0]]
            faults.attempt(show_versus, found.to_json(), traces, json, trace, plot, quiet)


@app.command()
def theory(
    scenario: ScenarioFile,
    json: JsonTarget = None,
    report: ReportFolder = None,
    settings: Settings = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Predict a scenario by the papers' closed forms, where one applies."""
    from treepipe import library
    from treepipe.results.show import show_theory
    from treepipe.scenario.scenario import Scenario

    check_outputs(
        {"--json": json, "--report": report},
        inputs=(scenario,),
        keep=() if force else ("--report",),
    )
    loaded = Scenario.load(scenario, settings or ())
    result = library.theory(loaded)
    with Faults() as faults:
        if report is not None:
            faults.attempt(_write_report, report, result, loaded)
        faults.attempt(show_theory, result, json, quiet)


@app.command()
def run(
    scenario: ScenarioFile,
    json: JsonTarget = None,
    trace: TraceFile = None,
    plot: PlotFile = None,
    recording: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--recording", help="Write the run's acceptance here, to replay it."),
    ] = None,
    where_time_goes: WhereTimeGoes = False,
    report: ReportFolder = None,
    seed: Seed = None,
    runs: Runs = None,
    settings: Settings = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Execute a scenario with real processes, on this machine and on the workers that it names."""
    need_executor("treepipe run")
    from treepipe.results.result import make_result
    from treepipe.results.show import Progress, show_result
    from treepipe.scenario.scenario import Scenario
    from treepipe.sim.theory.admission import admitted

    check_outputs(
        {
            "--json": json,
            "--trace": trace,
            "--recording": recording,
            **_pictures(plot, where_time_goes),
            "--report": report,
        },
        inputs=(scenario,),
        keep=() if force else ("--report", "--where-time-goes"),
    )
    loaded = admitted(Scenario.load(scenario, changes(settings, seed, runs)))
    from treepipe.executor.fork_server import import_ahead

    import_ahead()
    from treepipe.executor.execute import execute  # with PyTorch behind it: now that all is checked

    with Progress(quiet) as say:
        execution = execute(loaded, say, json, recording)
    traces = execution.traces
    result = make_result(
        "execution",
        loaded.name,
        loaded.seed,
        traces,
        lossless=loaded.sampling.lossless,
        memory=execution.peak_memory_bytes,
        warmup=loaded.workload.warmup_requests,
    )
    with Faults() as faults:
        if recording is not None:
            faults.attempt(execution.recordings[0].save, recording)
        if report is not None:
            faults.attempt(_write_report, report, result, loaded)
        faults.attempt(show_result, result, json, trace, plot, quiet, where_time_goes)
        lost = [r for each in traces for r in each.requests if r.reason == "worker lost"]
        if lost:
            raise RunError(f"{len(lost)} requests ended early, since a worker was lost")


@app.command()
def validate(
    scenarios: Annotated[list[Path], typer.Argument(metavar="SCENARIO.toml...")],
    calibrate_on: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="PROMPTS", help="Calibrate acceptance on these, as workload.prompts."),
    ] = None,
    json: JsonTarget = None,
    against: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="EARLIER.json", help="Say what got better or worse since then."),
    ] = None,
    timelines: TimelineFolder = None,
    report: ReportFolder = None,
    seed: Seed = None,
    runs: Runs = None,
    settings: Settings = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Predict, execute, and explain how far off the prediction was."""
    need_executor("treepipe validate")
    from treepipe.validation.validate import Request, perform

    changed = changes(settings, seed, runs)
    page = report, command_line(), force
    perform(Request(scenarios, changed, calibrate_on, json, against, timelines, quiet, *page))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for tables, plots and traces.")] = Path(
        "treepipe-demo"
    ),
    report: ReportFolder = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Predict four schedules, run them on real processes, and compare."""
    need_executor("treepipe demo")
    from treepipe.results.show import Progress
    from treepipe.validation.demo import claim_folder, demo_report, run_demo, show_demo, write_demo

    claim_folder(out)
    check_outputs({"--report": report}, keep=() if force else ("--report",))
    with Progress(quiet) as say:
        rows = run_demo(say)
    with Faults() as faults:
        faults.attempt(write_demo, rows, out)
        if report is not None:
            from treepipe.report.page import write_report

            faults.attempt(write_report, demo_report(rows, command_line()), report)
        faults.attempt(show_demo, rows, out, quiet)
        if not all(row.lossless for row in rows):
            raise RunError("a schedule's text differs from plain greedy decoding")


@app.command()
def study(
    name: Annotated[Optional[str], typer.Argument(help="Which one; see --list.")] = None,  # noqa: UP045
    listed: Annotated[bool, typer.Option("--list", help="Show all studies.")] = False,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder for tables and plots; default treepipe-study-NAME."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The whole job, not the short one.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run points of it on real processes, too.")
    ] = False,
    json: JsonTarget = None,
    report: ReportFolder = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Answer a question with a table and a plot: predictions beside runs."""
    from treepipe.studies.study import find_study, perform, show_studies

    if listed:
        show_studies()
        return
    if name is None:
        raise UserError("treepipe study needs a name; treepipe study --list shows them")
    found = find_study(name)
    if found.needs_executor or measure:
        need_executor("treepipe study")
    perform(
        found,
        out,
        full=full,
        measure=measure,
        json=json,
        report=report,
        command=command_line(),
        force=force,
        quiet=quiet,
    )


def _write_report(
    folder: Path, found: Result | Comparison, a: Scenario, b: Scenario | None = None
) -> None:
    """Write the page of ``--report``. Args: ``a``, ``b``: what was simulated or run."""
    from treepipe.report.page import write_report
    from treepipe.report.result_report import comparison_report, result_report
    from treepipe.results.result import Result

    if isinstance(found, Result):
        page = result_report(found, a, command_line())
    else:
        assert b is not None
        page = comparison_report(found, a, b, command_line())
    write_report(page, folder)


def _pictures(plot: Path | None, where_time_goes: bool) -> dict[str, Path | None]:
    """The pictures that are asked for, by option."""
    from treepipe.results.where import picture_beside

    beside = picture_beside(plot) if plot is not None and where_time_goes else None
    return {"--plot": plot, "--where-time-goes": beside}


def _complain(sentence: str) -> None:
    text = Text.assemble(("treepipe:", "red"), f" {visible(sentence)}")
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)
