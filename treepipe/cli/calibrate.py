"""``treepipe calibrate``: its arguments; the measuring is done in ``executor/measure``."""

from __future__ import annotations

from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from treepipe.cli.options import Force, Quiet, command
from treepipe.core.drafts import drafters
from treepipe.core.errors import UserError
from treepipe.core.registry import keys_of
from treepipe.extras import need_executor

app = typer.Typer(invoke_without_command=True)

LONGEST_S = 1e6
"""No measurement takes longer; that it is a number is all that it says."""
Seconds = Annotated[float, typer.Option(min=1, max=LONGEST_S, help="Time to spend at most.")]
Out = Annotated[Path, typer.Option("--out", metavar="FILE.toml", help="The profile.")]


@app.callback()
def device(
    context: typer.Context,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="What is measured.")] = "cpu",
    model: Annotated[
        str,
        typer.Option(
            metavar="DIR|config.json|PROFILE",
            help="A checkpoint, or the sizes of one: then its weights are random.",
        ),
    ] = "reference",
    draft: Annotated[
        Optional[str],  # noqa: UP045  (typer reads the annotation on Python 3.10, too)
        typer.Option(metavar="DIR|config.json|PROFILE", help="Measure passes of this draft, too."),
    ] = None,
    dtype: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="To compute in; default float32 on a CPU, float16 on a GPU."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; a worker has one.")] = 1,
    layers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Of the block that is timed; default at most 4."),
    ] = None,
    tokens: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="N,N,...", help="Rows per pass; default 14 counts, 1 to 256."),
    ] = None,
    contexts: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--context", metavar="N,N,...", help="Default 0,256,1024,4096."),
    ] = None,
    seconds: Seconds = 120.0,
    out: Out = Path("calibrated-device.toml"),
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Measure this machine as a device; `links` and `acceptance` measure those."""
    if context.invoked_subcommand is not None:
        _refuse_options(context, context.invoked_subcommand)
        return
    need_executor("treepipe calibrate")
    from treepipe.executor.measure.calibrate import DeviceRequest, calibrate_device, numbers
    from treepipe.executor.measure.device import CONTEXTS, TOKENS
    from treepipe.results.show import Progress

    asked = DeviceRequest(
        model=model,
        draft=draft,
        device=device,
        dtype=dtype,
        threads=threads,
        layers=layers,
        tokens=TOKENS if tokens is None else numbers(tokens, "--tokens", 1),
        contexts=CONTEXTS if contexts is None else numbers(contexts, "--context", 0),
        seconds=seconds,
    )
    with Progress(quiet) as say:
        calibrate_device(asked, out, say, force=force)
    _show(out, quiet)


@app.command()
def links(
    scenario: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="SCENARIO.toml", help="Measure the links between all of its hosts."),
    ] = None,
    peer: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="HOST:PORT",
            help="Where `treepipe calibrate peer` listens; default a process of this host.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, max=LONGEST_S, help="Per link, at most.")] = 20.0,
    together: Annotated[
        bool, typer.Option("--together", help="A scenario's links all at the same time.")
    ] = False,
    scenario_out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE.toml", help="Write the scenario with its measured links."),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="FILE.toml|DIR", help="The profile, or the folder of all."),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Measure links by ping-pong (latency, bandwidth, overhead, jitter): one, or a scenario's."""
    need_executor("treepipe calibrate")
    from treepipe.executor.measure.calibrate import LinkRequest, calibrate_link
    from treepipe.results.show import Progress

    if scenario is not None:
        if peer is not None:
            raise UserError(f"--peer {peer}: a scenario names the hosts itself; give one of both")
        folder = out or Path("calibrated-links")
        _scenario_links(scenario, seconds, together, scenario_out, folder, force, quiet)
        return
    for option, given in (("--together", together), ("--scenario-out", scenario_out is not None)):
        if given:
            raise UserError(f"{option}: is for a scenario's links, and no scenario is given")
    out = out or Path("calibrated-link.toml")
    with Progress(quiet) as say:
        calibrate_link(LinkRequest(peer, seconds), out, say, force=force)
    _show(out, quiet)


def _scenario_links(
    scenario: str,
    seconds: float,
    together: bool,
    scenario_out: Path | None,
    out: Path,
    force: bool,
    quiet: bool,
) -> None:
    from treepipe.executor.measure.calibrate import TABLE, PairsRequest, calibrate_pairs
    from treepipe.results.show import Progress

    asked = PairsRequest(scenario, seconds, together, scenario_out)
    with Progress(quiet) as say:
        calibrate_pairs(asked, out, say, force=force)
    if not quiet:
        typer.echo((out / TABLE).read_text(encoding="utf-8"), nl=False)


@app.command()
def peer(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="An address of this host.")],
) -> None:
    """Answer `treepipe calibrate links` of another host, until interrupted."""
    need_executor("treepipe calibrate")
    from treepipe.executor.keys import parse_address

    host, port = parse_address(listen, "--listen")  # before PyTorch, which takes seconds to load
    from treepipe.executor.measure.peer import listen as listen_at
    from treepipe.results.show import console

    listen_at(host, port, lambda address: console().print(f"listening at {address}"))


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What is to be recorded."""

    model: Annotated[str, typer.Option(metavar="DIR", help="The target.")] = "reference"
    draft: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="DIR", help="A language model that drafts; default reference."),
    ] = None
    head: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="DIR", help="An EAGLE head that drafts, instead."),
    ] = None
    prompts: Annotated[
        str, typer.Option(metavar="FILE.json", help="A list of texts, or a reference set.")
    ] = "reference:calibration"
    new_tokens: Annotated[int, typer.Option(min=2, help="Of the target's text, each.")] = 128
    task: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="What kind of text it is; default the name of the prompts."),
    ] = None
    source: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="|".join(drafters()), help="What drafts; default what is given."),
    ] = None
    temperature: Annotated[float, typer.Option(help="Of the target's text; 0: greedy.")] = 0.0
    top_p: Annotated[float, typer.Option(help="As sampling.top_p.")] = 1.0
    top_k: Annotated[int, typer.Option(help="As sampling.top_k.")] = 0
    rule: Annotated[str, typer.Option(help="As sampling.rule.")] = "exact"
    relaxed_top_p: Annotated[float, typer.Option(help="As sampling.relaxed_top_p.")] = 0.9
    tau_max: Annotated[float, typer.Option(help="As sampling.tau_max.")] = 0.5
    contrast_weight: Annotated[float, typer.Option(help="As sampling.contrast_weight.")] = 1.0
    matches_weight: Annotated[float, typer.Option(help="As sampling.matches_weight.")] = 1.0
    agreement_weight: Annotated[float, typer.Option(help="As sampling.agreement_weight.")] = 1.0
    seed: Annotated[int, typer.Option(min=0, help="Of sampled texts, and of wrong tokens.")] = 0
    out: Out = Path("calibrated-acceptance.toml")
    force: Force = False
    quiet: Quiet = False


def _draft_keys() -> list[tuple[str, Any, Any]]:
    """The keys of all draft sources as options: name, type with its help, default."""
    return [
        (
            name,
            Annotated[hint, typer.Option(help=f"As drafts.{name}: {each.metadata['help']}.")],
            each.default,
        )
        for name, (hint, each) in keys_of(d.parameters for d in drafters().values()).items()
    ]


@app.command()
@command(make_dataclass("Options", _draft_keys(), bases=(Acceptance,), frozen=True, kw_only=True))
def acceptance(asked: Acceptance) -> None:
    """Run target and draft over prompts: a recorded pool, and its profile."""
    need_executor("treepipe calibrate")
    from treepipe.executor.measure.calibrate import AcceptanceRequest, calibrate_acceptance
    from treepipe.results.show import Progress

    given, own = vars(asked), {each.name for each in fields(AcceptanceRequest)}
    keys = {name: given[name] for name, *_ in _draft_keys()}
    request = AcceptanceRequest(**{name: given[name] for name in own - {"keys"}}, keys=keys)
    with Progress(asked.quiet) as say:
        calibrate_acceptance(request, asked.out, say, force=asked.force)
    _show(asked.out, asked.quiet)


@app.command()
def run(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO.toml")],
    prompts: Annotated[
        str, typer.Option(metavar="FILE.json", help="A list of texts, or a reference set.")
    ] = "reference:calibration",
    seconds: Seconds = 60.0,
    scenario_out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE.toml", help="Write the scenario with its measured hosts."),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="FILE.toml|DIR", help="The profile, or the folder of all."),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Run a scenario's own workers, not emulated: what hosts add to their devices' times."""
    need_executor("treepipe calibrate")
    from treepipe.executor.measure.profile_file import claim_profiles
    from treepipe.executor.measure.run_request import RunRequest, profile_files
    from treepipe.results.show import Progress

    asked = RunRequest(scenario, prompts, seconds, scenario_out)
    files = profile_files(asked.load(), out)  # at once: what comes next loads PyTorch
    claim_profiles(files, force)
    from treepipe.executor.measure.calibrate import calibrate_run

    with Progress(quiet) as say:
        calibrate_run(asked, out, say, force=force)
    for file in files.values():
        _show(file, quiet)


def _refuse_options(context: typer.Context, command: str) -> None:
    """Options before a command would measure nothing; raises ``UserError`` at the first."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            raise UserError(
                f"{option}: stands before {command!r} and would not count; options of "
                f"'treepipe calibrate {command}' come after it"
            )


def _show(out: Path, quiet: bool) -> None:
    from treepipe.cli.show_profiles import show_profile
    from treepipe.results.show import console

    if not quiet:
        show_profile(str(out.absolute()), None, console())
