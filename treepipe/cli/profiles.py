"""``treepipe profiles``: its arguments; lists, shows, checks and imports profiles."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from treepipe.cli.options import Force, Quiet, Settings, command
from treepipe.core.errors import UserError
from treepipe.extras import need_executor
from treepipe.files.outputs import check_outputs, write_file

if TYPE_CHECKING:
    from treepipe.files.section import Section


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
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="drafts.source or drafts.capture."),
    ] = None,
) -> None:
    """Try whether a head reads the states of the target that it was trained on."""
    need_executor("treepipe profiles check")
    from treepipe.executor.models.checkpoint import Checkpoint
    from treepipe.executor.models.offsets import head_settings, measure_offsets, refuse
    from treepipe.results.show import console

    offsets = measure_offsets(head_settings(head, *settings or ()), Checkpoint.open(target))
    for each in offsets:
        console().print(f"offset {each.by:+d}: accepted are {each}", highlight=False)
    refuse(offsets)


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Settings):
    """Options of ``treepipe profiles import``; ``ELSEWHERE`` says which have no effect where.

    ``settings`` are keys of the profile that is made, e.g. ``draft=llama-3.2-1b`` or
    ``origin.source=…``.
    """

    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="vllm, llama-cpp, sglang, llama-bench, …")
    ]
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="What the engine exported; hop: ONE.json SPLIT.json."),
    ]
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.toml", help="Default imported-KIND.toml."),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="The engine's name of the model, where the file tells of several."),
    ] = None
    draft_tokens: Annotated[
        int | None, typer.Option(min=1, help="Drafted in a step, where the file does not tell.")
    ] = None
    assume_ranks: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=10,
            metavar="U",
            help="For trees: each further candidate hits alike; uncertain by U, relative.",
        ),
    ] = None
    config: Annotated[
        str | None,
        typer.Option(metavar="config.json|PROFILE", help="Of times: the model's sizes."),
    ] = None
    dtype: Annotated[
        str | None, typer.Option(help="Of times: the weights' type; default the file's.")
    ] = None
    force: Force = False
    quiet: Quiet = False

    @property
    def file(self) -> Path:
        return self.files[0]

    def target(self, made: str) -> Path:
        """Return the file to write, once it is known that it can be written."""
        out, keep = self.out or Path(f"imported-{made}.toml"), () if self.force else ("--out",)
        check_outputs({"--out": out}, inputs=self.files, keep=keep)
        return out

    def text(self, content: dict[str, Any], profile: type[Section], out: Path) -> str:
        """Return the text of a profile with this content and the settings. Raises ``UserError``."""
        from treepipe.files.toml_file import toml_text, validated
        from treepipe.scenario.scenario import override_key

        for setting in self.changes:
            override_key(content, setting)
        validated(profile, content, out)
        return toml_text(content, [f"Imported from {self.file.name}."])


ELSEWHERE = {
    "device": ("draft_tokens", "assume_ranks"),
    "acceptance": ("config", "dtype"),
    "hop": ("draft_tokens", "assume_ranks", "config", "dtype"),
}
"""Options without effect, by what is made of a file."""


@app.command("import")
@command(ImportOptions)
def import_(options: ImportOptions) -> None:
    """Make an acceptance profile of what a serving engine exports, or of a published table, a
    device profile of the times of passes that a benchmark prints, or an engine's hop of two."""
    from treepipe.profiles.cost_tables import COSTS
    from treepipe.profiles.engines import KINDS
    from treepipe.results.show import console

    makers = {
        **dict.fromkeys(KINDS, ("acceptance", _import_acceptance)),
        **dict.fromkeys(COSTS, ("device", _import_device)),
        "hop": ("hop", _import_hop),
    }
    if options.kind not in makers:
        raise UserError(f"profiles import {options.kind}: there are {', '.join(makers)}")
    made, make = makers[options.kind]
    if len(options.files) != 1 + (made == "hop"):
        raise UserError(
            f"profiles import {options.kind}: takes "
            f"{'two files, of one device and of the split' if made == 'hop' else 'one file'}, not "
            f"{len(options.files)}"
        )
    for name in ELSEWHERE[made]:
        if getattr(options, name) is not None:
            option = name.replace("_", "-")
            raise UserError(f"--{option}: has no effect; {options.kind} makes a profile of {made}")
    lines = make(options, options.target(made))
    if not options.quiet:
        for line in lines:
            console().print(line, highlight=False)


def _import_device(options: ImportOptions, out: Path) -> list[str]:
    from treepipe.profiles.cost_tables import device_content, read_costs
    from treepipe.profiles.library import find_model
    from treepipe.profiles.schema import DeviceProfile, EmulatedProfile

    if options.dtype is not None and options.config is None:
        raise UserError("--dtype: has no effect without --config, the model's sizes")
    config = None if options.config is None else find_model(options.config, "--config")
    content = device_content(
        read_costs(options.kind, options.file, options.model),
        config,
        model=options.config or UNSAID,
        dtype=options.dtype,
        source=f"{options.kind}: {options.file.name}",
    )
    text = options.text(content, EmulatedProfile if config is None else DeviceProfile, out)
    write_file(out, text, "--out")
    return [content["origin"]["note"], f"device profile: {out}"]


def _import_hop(options: ImportOptions, out: Path) -> list[str]:
    from treepipe.profiles.cost_tables import hop_content
    from treepipe.profiles.schema import HopProfile

    content = hop_content(options.files[0], options.files[1], options.model)
    write_file(out, options.text(content, HopProfile, out), "--out")
    return [
        f"{content['hop_ms']:.4g} ms per message",
        content["origin"]["note"],
        f"hop profile: {out}; a scenario names it behind a link: links.default = 'LINK+{out}'",
    ]


def _import_acceptance(options: ImportOptions, out: Path) -> list[str]:
    from treepipe.profiles.chains import Wanted
    from treepipe.profiles.engines import profile_content, read_export
    from treepipe.profiles.schema import AcceptanceProfile

    found = read_export(options.kind, options.file, Wanted(options.model, options.draft_tokens))
    content = profile_content(
        found,
        source=f"{options.kind}: {options.file.name}",
        date=date.today(),
        draft=UNSAID,
        target=found.model or UNSAID,
        task=UNSAID,
        temperature=0.0,
        uncertainty=options.assume_ranks,
    )
    text = options.text(content, AcceptanceProfile, out)
    write_file(out, text, "--out")
    return [
        f"accepted, given all above: {', '.join(f'{share:.3g}' for share in found.shares)}",
        f"tokens per step: {found.tokens:.4g}",
        content["origin"]["note"],
        f"acceptance profile: {out}",
    ]
