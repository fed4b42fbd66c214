"""``treepipe calibrate``: its commands. ``executor/measure`` defines their options and measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from treepipe.cli.options import Quiet, command
from treepipe.core.errors import RunError, UserError
from treepipe.executor.measure.requests import (
    AcceptanceRequest,
    DeviceRequest,
    LinksRequest,
    RunRequest,
    SelfTestRequest,
)
from treepipe.extras import need_executor
from treepipe.files.outputs import check_outputs

app = typer.Typer(invoke_without_command=True)


@dataclass(frozen=True, kw_only=True)
class Verbosity:
    """Options of what a command shows of its work."""

    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The rest of the command line."""

    context: typer.Context


@app.callback()
@command(DeviceRequest, Verbosity, CommandLine)
def device(request: DeviceRequest, verbosity: Verbosity, line: CommandLine) -> None:
    """Measure this machine as a device, or links, acceptance, a run."""
    if line.context.invoked_subcommand is not None:
        _refuse_options(line.context, line.context.invoked_subcommand)
        return
    need_executor("treepipe calibrate")
    from treepipe.executor.measure.calibrate import calibrate_device

    _measure(calibrate_device, request, verbosity)


@app.command()
@command(LinksRequest, Verbosity)
def links(request: LinksRequest, verbosity: Verbosity) -> None:
    """Measure links by ping-pong (latency, bandwidth, overhead, jitter): one, or a scenario's."""
    need_executor("treepipe calibrate")
    from treepipe.executor.measure.calibrate import calibrate_links

    _measure(
        calibrate_links, request, verbosity, _show if request.scenario is None else _show_table
    )


@app.command()
@command(AcceptanceRequest, Verbosity)
def acceptance(request: AcceptanceRequest, verbosity: Verbosity) -> None:
    """Run target and draft over prompts: a recorded pool, and its profile."""
    need_executor("treepipe calibrate")
    from treepipe.executor.measure.calibrate import calibrate_acceptance

    _measure(calibrate_acceptance, request, verbosity)


@app.command()
@command(RunRequest, Verbosity)
def run(request: RunRequest, verbosity: Verbosity) -> None:
    """Run a scenario's own workers, not emulated: what hosts add to their devices' times."""
    need_executor("treepipe calibrate")
    from treepipe.executor.measure.run import calibrate_run

    _measure(calibrate_run, request, verbosity)


@app.command()
@command(SelfTestRequest)
def selftest(request: SelfTestRequest) -> None:
    """Try a device (3 minutes): right states and texts, graphs, costs, predicted runs."""
    need_executor("treepipe calibrate")
    from treepipe.results.result import write_json
    from treepipe.results.show import ProgressBars, console, print_sheet
    from treepipe.validation.selftest import selftest, sheets

    check_outputs({"--out": request.out}, keep=("--out",))
    with ProgressBars(quiet=False) as say:
        content = selftest(request.device, say)
    write_json(content, str(request.out), "--out")
    for sheet in sheets(content):
        print_sheet(console(), sheet)
    if content["failed"]:
        raise RunError("; ".join(content["failed"]))


def _show(files: list[Path]) -> None:
    from treepipe.cli.show_profiles import show_profile
    from treepipe.results.show import console

    for file in files:
        show_profile(str(file.absolute()), console())


def _show_table(files: list[Path]) -> None:
    """Print the table of a scenario's links, the last of their files."""
    typer.echo(files[-1].read_text(encoding="utf-8"), nl=False)


def _measure(
    calibrate: Callable[[Any, Any], list[Path]],
    request: Any,
    verbosity: Verbosity,
    show: Callable[[list[Path]], None] = _show,
) -> None:
    from treepipe.results.show import ProgressBars

    with ProgressBars(verbosity.quiet) as say:
        files = calibrate(request, say)
    if not verbosity.quiet:
        show(files)


def _refuse_options(context: typer.Context, command: str) -> None:
    """Raise ``UserError`` for options before a command, which would have no effect."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            raise UserError(
                f"{option}: stands before {command!r} and would not count; options of "
                f"'treepipe calibrate {command}' come after it"
            )
