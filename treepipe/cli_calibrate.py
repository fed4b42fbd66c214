"""``treepipe calibrate``: its arguments; the measuring is done in ``profiles/measure``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from treepipe.extras import need_executor

app = typer.Typer(invoke_without_command=True)

Out = Annotated[Path, typer.Option("--out", metavar="FILE.toml", help="The profile.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite FILE.toml.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No table and no progress.")]


@app.callback()
def device(
    context: typer.Context,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="What is measured.")] = "cpu",
    model: Annotated[
        str,
        typer.Option(
            metavar="DIR|config.json",
            help="A checkpoint, or the sizes of one: then its weights are random.",
        ),
    ] = "reference",
    draft: Annotated[
        Optional[str],  # noqa: UP045  (typer reads the annotation on Python 3.10, too)
        typer.Option(metavar="DIR|config.json", help="Measure passes of this draft, too."),
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
    seconds: Annotated[float, typer.Option(min=1, help="Time to spend at most.")] = 120.0,
    out: Out = Path("calibrated-device.toml"),
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Measure this machine as a device; `links` and `acceptance` measure those."""
    if context.invoked_subcommand is not None:
        return
    need_executor("calibrate")
    from treepipe.presentation import Progress, console
    from treepipe.profiles.display import show_profile
    from treepipe.profiles.measure.calibrate import calibrate_device, numbers
    from treepipe.profiles.measure.device import CONTEXTS, TOKENS

    with Progress(quiet) as say:
        calibrate_device(
            model,
            draft,
            out,
            say,
            device=device,
            dtype=dtype,
            threads=threads,
            layers=layers,
            tokens=TOKENS if tokens is None else numbers(tokens, "--tokens", 1),
            contexts=CONTEXTS if contexts is None else numbers(contexts, "--context", 0),
            seconds=seconds,
            force=force,
        )
    if not quiet:
        show_profile(str(out.absolute()), None, console())
