"""``treepipe profiles``: its arguments; lists, shows, checks and imports profiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from treepipe.cli.options import Force, Quiet, command
from treepipe.core.errors import UserError
from treepipe.files.outputs import check_outputs

if TYPE_CHECKING:
    from treepipe.profiles.engines import Imported


class ShowByDefault(TyperGroup):
    """A group that takes any other name as a profile's: ``treepipe profiles rtx-3090``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = args and args[0] in self.commands
        return super().parse_args(ctx, args if known else ["show", *args])


app = typer.Typer(cls=ShowByDefault, help="List, show, check and import profiles.")


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE", help="Show this one; a config.json is a model's."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Validate NAME, or all; say what is odd.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw NAME's times here.")
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
    """Options of ``treepipe profiles import``."""

    kind: Annotated[str, typer.Argument(metavar="KIND", help="vllm, llama-cpp, sglang, …")]
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What the engine exported.")]
    out: Annotated[Path, typer.Option("--out", metavar="FILE.toml", help="The profile.")] = Path(
        "imported-acceptance.toml"
    )
    target: Annotated[
        str | None, typer.Option(help="What decodes; default the engine's name of the model.")
    ] = None
    draft: Annotated[str, typer.Option(help="What drafts.")] = "not stated"
    task: Annotated[str, typer.Option(help="What kind of text it is.")] = "not stated"
    temperature: Annotated[float, typer.Option(min=0, help="Of the target's text.")] = 0.0
    source: Annotated[
        str | None,
        typer.Option(help="Who published it, and where; default the engine and the file."),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="The engine's name of the model, where the file tells of several."),
    ] = None
    assume_ranks: Annotated[
        bool,
        typer.Option("--assume-ranks", help="For trees: each further candidate hits alike."),
    ] = False
    uncertainty: Annotated[
        float | None,
        typer.Option(min=0.01, max=10, help="Relative, of the misses; of --assume-ranks."),
    ] = None
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Ordered steps as a recording, to replay them."),
    ] = None
    force: Force = False
    quiet: Quiet = False


@app.command("import")
@command(ImportOptions)
def import_(asked: ImportOptions) -> None:
    """Make an acceptance profile of what a serving engine exports, or of a published table."""
    from treepipe.files.outputs import Failures, write_file
    from treepipe.files.toml_file import toml_text, validated
    from treepipe.profiles.engines import profile_content, read_export
    from treepipe.profiles.schema import AcceptanceProfile
    from treepipe.results.recording import chain_recording
    from treepipe.results.show import console

    if asked.assume_ranks != (asked.uncertainty is not None):
        raise UserError(
            "--assume-ranks is an assumption: it needs --uncertainty, and --uncertainty needs it"
        )
    out, replay = asked.out, asked.replay
    keep = () if asked.force else ("--out",)
    check_outputs({"--out": out, "--replay": replay}, inputs=(asked.file,), keep=keep)
    found = read_export(asked.kind, asked.file, asked.model)
    if replay is not None and not found.replay:
        raise UserError(f"--replay {replay}: {asked.file} does not tell the steps in their order")
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
    validated(AcceptanceProfile, content, out)
    with Failures() as failures:
        text = toml_text(content, [f"Imported from {asked.file.name}."])
        failures.attempt(write_file, out, text, "--out")
        if replay is not None:
            failures.attempt(chain_recording(found.replay, found.prompts).save, replay)
    if not asked.quiet:
        for line in _said(found, content["origin"]["note"], asked):
            console().print(line, highlight=False)


def _said(found: Imported, note: str, asked: ImportOptions) -> Iterator[str]:
    yield f"accepted, given all above: {', '.join(f'{share:.3g}' for share in found.shares)}"
    yield f"tokens per step: {found.tokens:.4g}"
    yield note
    yield f"acceptance profile: {asked.out}"
    if asked.replay is not None:
        drafted = max(length for steps in found.replay for length, _ in steps)
        yield f"recording: {asked.replay}; replay it with schedule chain, gamma = {drafted}"
