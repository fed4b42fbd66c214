"""``treepipe profiles``: its arguments; lists, shows, checks and imports profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from treepipe.cli.options import Force, Quiet, command
from treepipe.core.errors import UserError
from treepipe.extras import need_executor
from treepipe.files.outputs import check_outputs


class ShowByDefault(TyperGroup):
    """A group that takes any other name as a profile's: ``treepipe profiles rtx-3090``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = args and args[0] in self.commands
        return super().parse_args(ctx, args if known else ["show", *args])


UNSAID = "not stated"

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
) -> None:
    """List the profiles, show one as tables, or check them; profiles import KIND FILE
    makes one of what a serving engine exports."""
    from treepipe.cli.show_profiles import check_profiles, show_profile, show_profiles
    from treepipe.results.show import console

    if check:
        check_profiles(name, console())
    elif name is None:
        show_profiles(console())
    else:
        show_profile(name, console())


@app.command("check")
def check_(
    head: Annotated[Path, typer.Argument(metavar="HEAD", help="Directory of a head.")],
    target: Annotated[Path, typer.Option(metavar="DIR", help="The target's checkpoint.")],
    source: Annotated[str | None, typer.Option(help="As drafts.source; default eagle3.")] = None,
    capture: Annotated[str, typer.Option(help="As drafts.capture.")] = "auto",
) -> None:
    """Try whether a head reads the states of the target that it was trained on."""
    need_executor("treepipe profiles check")
    from treepipe.executor.checkpoint import Checkpoint
    from treepipe.executor.offsets import head_settings, measure_offsets, refuse
    from treepipe.results.show import console

    offsets = measure_offsets(head_settings(head, source, capture), Checkpoint.open(target))
    for each in offsets:
        console().print(f"offset {each.by:+d}: accepted are {each}", highlight=False)
    refuse(offsets)


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Options of ``treepipe profiles import``; ``TAKEN`` says what each is for."""

    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="vllm, llama-cpp, sglang, llama-bench, …")
    ]
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What the engine exported.")]
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.toml", help="Default imported-KIND.toml."),
    ] = None
    target: Annotated[
        str | None, typer.Option(help="What decodes; default the engine's name of the model.")
    ] = None
    draft: Annotated[str, typer.Option(help="What drafts.")] = UNSAID
    task: Annotated[str, typer.Option(help="What kind of text it is.")] = UNSAID
    temperature: Annotated[float, typer.Option(min=0, help="Of the target's text.")] = 0.0
    source: Annotated[
        str | None,
        typer.Option(help="Who published it, and where; default the engine and the file."),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="The engine's name of the model, where the file tells of several."),
    ] = None
    draft_tokens: Annotated[
        int | None, typer.Option(min=1, help="Drafted in a step, where the file does not tell.")
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
    config: Annotated[
        str | None,
        typer.Option(metavar="config.json|PROFILE", help="Of times: the model's sizes."),
    ] = None
    dtype: Annotated[
        str | None, typer.Option(help="Of times: the weights' type; default the file's.")
    ] = None
    hardware: Annotated[
        str | None, typer.Option(help="Of times: what was measured; default the file's.")
    ] = None
    force: Force = False
    quiet: Quiet = False


COMMON = {"kind", "file", "out", "force", "quiet"}
TAKEN: Mapping[str, set[str]] = {
    "a device profile": {*COMMON, "source", "model", "config", "dtype", "hardware"},
    "an acceptance profile": {each.name for each in fields(ImportOptions)}
    - {"config", "dtype", "hardware"},
}
"""Options that have an effect, by what is made of a file."""


@app.command("import")
@command(ImportOptions)
def import_(asked: ImportOptions) -> None:
    """Make an acceptance profile of what a serving engine exports, or of a published table, or a
    device profile of the times of passes that a benchmark prints."""
    from treepipe.profiles.cost_tables import COSTS
    from treepipe.profiles.engines import KINDS
    from treepipe.results.show import console

    makers = {
        **dict.fromkeys(KINDS, ("an acceptance profile", _import_acceptance)),
        **dict.fromkeys(COSTS, ("a device profile", _import_device)),
    }
    if asked.kind not in makers:
        raise UserError(f"profiles import {asked.kind}: there are {', '.join(makers)}")
    made, make = makers[asked.kind]
    for each in fields(asked):
        if each.name not in TAKEN[made] and getattr(asked, each.name) != each.default:
            option = each.name.replace("_", "-")
            raise UserError(f"--{option}: has no effect; {asked.kind} makes {made}")
    lines = make(asked)
    if not asked.quiet:
        for line in lines:
            console().print(line, highlight=False)


def _out(asked: ImportOptions, default: str, replay: Path | None = None) -> Path:
    """Return the file to write, once it is known that it can be written."""
    out, keep = asked.out or Path(default), () if asked.force else ("--out",)
    check_outputs({"--out": out, "--replay": replay}, inputs=(asked.file,), keep=keep)
    return out


def _import_device(asked: ImportOptions) -> list[str]:
    from treepipe.files.outputs import write_file
    from treepipe.files.toml_file import toml_text, validated
    from treepipe.profiles.cost_tables import device_content, read_costs
    from treepipe.profiles.library import find_model
    from treepipe.profiles.schema import DeviceProfile, EmulatedProfile
    from treepipe.profiles.shapes import BYTES

    dtype = next((each for each in BYTES if each == asked.dtype), None)
    if asked.dtype != dtype:
        raise UserError(f"--dtype {asked.dtype}: must be one of {', '.join(BYTES)}")
    if dtype is not None and asked.config is None:
        raise UserError("--dtype: has no effect without --config, the model's sizes")
    out = _out(asked, "imported-device.toml")
    found = read_costs(asked.kind, asked.file, asked.model)
    config = None if asked.config is None else find_model(asked.config, "--config")
    origin = {"source": asked.source or f"{asked.kind}: {asked.file.name}"}
    if asked.hardware is not None:
        origin["hardware"] = asked.hardware
    named = asked.config or UNSAID
    content = device_content(found, config, model=named, dtype=dtype, **origin)
    validated(EmulatedProfile if config is None else DeviceProfile, content, out)
    write_file(out, toml_text(content, [f"Imported from {asked.file.name}."]), "--out")
    return [content["origin"]["note"], f"device profile: {out}"]


def _import_acceptance(asked: ImportOptions) -> list[str]:
    from treepipe.files.outputs import Failures, write_file
    from treepipe.files.toml_file import toml_text, validated
    from treepipe.profiles.chains import Wanted
    from treepipe.profiles.engines import profile_content, read_export
    from treepipe.profiles.schema import AcceptanceProfile
    from treepipe.results.recording import chain_recording

    if asked.assume_ranks != (asked.uncertainty is not None):
        raise UserError(
            "--assume-ranks is an assumption: it needs --uncertainty, and --uncertainty needs it"
        )
    replay = asked.replay
    out = _out(asked, "imported-acceptance.toml", replay)
    wanted = Wanted(asked.model, asked.draft_tokens)
    found = read_export(asked.kind, asked.file, wanted)
    if replay is not None and not found.replay:
        raise UserError(f"--replay {replay}: {asked.file} does not tell the steps in their order")
    content = profile_content(
        found,
        source=asked.source or f"{asked.kind}: {asked.file.name}",
        date=date.today(),
        draft=asked.draft,
        target=asked.target or found.model or UNSAID,
        task=asked.task,
        temperature=asked.temperature,
        uncertainty=asked.uncertainty,
    )
    validated(AcceptanceProfile, content, out)
    lines = [
        f"accepted, given all above: {', '.join(f'{share:.3g}' for share in found.shares)}",
        f"tokens per step: {found.tokens:.4g}",
        content["origin"]["note"],
        f"acceptance profile: {out}",
    ]
    with Failures() as failures:
        text = toml_text(content, [f"Imported from {asked.file.name}."])
        failures.attempt(write_file, out, text, "--out")
        if replay is not None:
            failures.attempt(chain_recording(found.replay, found.prompts).save, replay)
            drafted = max(length for steps in found.replay for length, _ in steps)
            lines.append(f"recording: {replay}; replay it with schedule chain, gamma = {drafted}")
    return lines
