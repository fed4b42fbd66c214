"""``treepipe profiles``: its arguments; lists, shows, checks and imports profiles."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup

from treepipe.cli.options import Force, Quiet, command
from treepipe.core.errors import UserError
from treepipe.files.outputs import check_outputs


class ShowByDefault(TyperGroup):
    """Whatever is no command's name is a profile's: ``treepipe profiles rtx-3090``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = args and args[0] in self.commands
        return super().parse_args(ctx, args if known else ["show", *args])


app = typer.Typer(cls=ShowByDefault, help="List, show, check and import profiles.")


@app.command()
def show(
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="NAME|FILE", help="Show this one; a config.json is a model's."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Validate NAME, or all; say what is odd.")
    ] = False,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--plot", metavar="FILE.png", help="Draw NAME's times here."),
    ] = None,
) -> None:
    """List the profiles, show one as a table and a plot, or check them; profiles import KIND FILE
    makes one of what a serving engine exports."""
    from treepipe.cli.show_profiles import check_profiles, show_profile, show_profiles
    from treepipe.results.show import console

    if plot is not None and (name is None or check):
        raise UserError("--plot needs the name of one profile, and no --check")
    check_outputs({"--plot": plot})
    if check:
        check_profiles(name, console())
    elif name is None:
        show_profiles(console())
    else:
        show_profile(name, plot, console())


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What ``treepipe profiles import`` takes."""

    kind: Annotated[str, typer.Argument(metavar="KIND", help="vllm, llama-cpp, sglang, …")]
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What the engine exported.")]
    out: Annotated[Path, typer.Option("--out", metavar="FILE.toml", help="The profile.")] = Path(
        "imported-acceptance.toml"
    )
    target: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="What decodes; default the engine's name of the model."),
    ] = None
    draft: Annotated[str, typer.Option(help="What drafts.")] = "not stated"
    task: Annotated[str, typer.Option(help="What kind of text it is.")] = "not stated"
    temperature: Annotated[float, typer.Option(min=0, help="Of the target's text.")] = 0.0
    source: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Who published it, and where; default the engine and the file."),
    ] = None
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The engine's name of the model, where the file tells of several."),
    ] = None
    assume_ranks: Annotated[
        bool,
        typer.Option("--assume-ranks", help="For trees: each further candidate hits alike."),
    ] = False
    uncertainty: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(min=0.01, max=10, help="Relative, of the misses; of --assume-ranks."),
    ] = None
    replay: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE.json", help="Ordered steps as a recording, to replay them."),
    ] = None
    force: Force = False
    quiet: Quiet = False


@app.command("import")
@command(ImportOptions)
def import_(asked: ImportOptions) -> None:
    """Make an acceptance profile of what a serving engine exports, or of a published table."""
    from treepipe.files.outputs import Faults, write_file
    from treepipe.files.toml_file import toml_text, validated
    from treepipe.profiles.engines import profile_content, read_export
    from treepipe.profiles.schema import AcceptanceProfile
    from treepipe.results.recording import chain_recording
    from treepipe.results.show import console

    if asked.assume_ranks != (asked.uncertainty is not None):
        raise UserError(
            "--assume-ranks is an assumption: it needs --uncertainty, and --uncertainty needs it"
        )
    check_outputs(
        {"--out": asked.out, "--replay": asked.replay},
        inputs=(asked.file,),
        keep=() if asked.force else ("--out",),
    )
    found = read_export(asked.kind, asked.file, asked.model)
    if asked.replay is not None and not found.replay:
        raise UserError(
            f"--replay {asked.replay}: {asked.file} does not tell the steps in their order"
        )
    content = profile_content(
        found,
        source=asked.source or f"{asked.kind}: {asked.file.name}",
        date=date.today(),
        draft=asked.draft,
        target=asked.target or found.model or "not stated",
        task=asked.task,
        temperature=asked.temperature,
        uncertainty=asked.uncertainty,
    )
    validated(AcceptanceProfile, content, asked.out)
    with Faults() as faults:
        faults.attempt(
            write_file,
            asked.out,
            toml_text(content, [f"Imported from {asked.file.name}."]),
            "--out",
        )
        if asked.replay is not None:
            faults.attempt(chain_recording(found.replay, found.prompts).save, asked.replay)
    if not asked.quiet:
        say = console()
        by_depth = ", ".join(f"{share:.3g}" for share in found.shares)
        say.print(f"accepted, given all above: {by_depth}", highlight=False)
        say.print(f"tokens per step: {found.tokens:.4g}", highlight=False)
        say.print(content["origin"]["note"], highlight=False)
        say.print(f"acceptance profile: {asked.out}", highlight=False)
        if asked.replay is not None:
            drafted = max(length for steps in found.replay for length, _ in steps)
            say.print(
                f"recording: {asked.replay}; replay it with schedule chain, gamma = {drafted}",
                highlight=False,
            )
