"""Requests of ``treepipe calibrate``: each field of a record is an option, with its help.

This module loads no numbers and no PyTorch, so that the command line starts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from treepipe.core.errors import UserError

LONGEST_S = 1e6
"""Upper bound of ``--seconds``; it only excludes infinity."""
TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256)
CONTEXTS = (0, 256, 1024, 4096)
TEXTS = 4
"""Number of texts that each turn of a run continues."""

MODEL = "DIR|config.json|PROFILE"
Counts: TypeAlias = Sequence[int]
Seconds = Annotated[float, typer.Option(min=1, max=LONGEST_S, help="Time to spend at most.")]
Prompts = Annotated[
    str, typer.Option(metavar="FILE.json", help="A list of texts, or a reference set.")
]
Profile = Annotated[Path, typer.Option("--out", metavar="FILE.toml", help="The profile.")]
Profiles = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE.toml|DIR", help="The profile, or the folder of all."),
]
ScenarioOut = Annotated[
    Path | None,
    typer.Option(metavar="FILE.toml", help="Write the scenario with what was measured."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]


def numbers(option: str, least: int) -> Callable[[str | Sequence[int]], tuple[int, ...]]:
    """Make the reader of an option with numbers separated by commas; it sorts them.

    >>> numbers("--tokens", 1)("8,1,8")
    (1, 8)

    The reader raises ``UserError`` for anything else.
    """

    def read(given: str | Sequence[int]) -> tuple[int, ...]:
        try:
            parts = given.split(",") if isinstance(given, str) else given
            found = sorted({int(part) for part in parts})
        except ValueError:
            found = []
        if not found or found[0] < least:
            raise UserError(
                f"{option} {given}: must be whole numbers of at least {least}, separated by commas"
            )
        return tuple(found)

    return read


@dataclass(frozen=True, kw_only=True)
class DeviceRequest:
    """A device of this machine, and the passes to time on it."""

    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="What is measured.")] = "cpu"
    model: Annotated[
        str, typer.Option(metavar=MODEL, help="A checkpoint, or sizes for random weights.")
    ] = "reference"
    draft: Annotated[
        str | None, typer.Option(metavar=MODEL, help="Measure passes of this draft, too.")
    ] = None
    dtype: Annotated[
        str | None, typer.Option(help="Type to compute in; default float32, on a GPU float16.")
    ] = None
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; a worker has one.")] = 1
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers of the timed block; default at most 4.")
    ] = None
    tokens: Annotated[
        Counts, typer.Option(parser=numbers("--tokens", 1), metavar="N,…", help="Rows per pass.")
    ] = TOKENS
    contexts: Annotated[
        Counts,
        typer.Option(
            "--context", parser=numbers("--context", 0), metavar="N,…", help="Cached tokens."
        ),
    ] = CONTEXTS
    seconds: Seconds = 120.0
    out: Profile = Path("calibrated-device.toml")
    force: Force = False


@dataclass(frozen=True, kw_only=True)
class LinksRequest:
    """One link from this host, or all links between the hosts of a scenario."""

    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO.toml", help="Measure all links of its hosts.")
    ] = None
    peer: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="A `treepipe calibrate peer`; default one of this host."
        ),
    ] = None
    seconds: Annotated[
        float, typer.Option(min=1, max=LONGEST_S, help="Time to spend on each link at most.")
    ] = 20.0
    together: Annotated[
        bool, typer.Option("--together", help="A scenario's links all at the same time.")
    ] = False
    scenario_out: ScenarioOut = None
    out: Profiles = None
    force: Force = False


@dataclass(frozen=True, kw_only=True)
class AcceptanceRequest:
    """A target, a draft and texts along which acceptance is recorded.

    ``settings`` are keys of a scenario's tables ``drafts`` and ``sampling``, e.g.
    ``drafts.source=ngram``.
    """

    model: Annotated[str, typer.Option(metavar="DIR", help="The target.")] = "reference"
    draft: Annotated[
        str | None, typer.Option(metavar="DIR", help="The language model that drafts.")
    ] = None
    head: Annotated[
        str | None, typer.Option(metavar="DIR", help="An EAGLE head that drafts, instead.")
    ] = None
    prompts: Prompts = "reference:calibration"
    new_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of each text.")] = 128
    task: Annotated[
        str | None, typer.Option(help="The kind of text; default the name of the prompts.")
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A key drafts.… or sampling.… of a scenario."
        ),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="For sampled texts and wrong tokens.")] = 0
    out: Profile = Path("calibrated-acceptance.toml")
    force: Force = False


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A scenario whose own workers are run, regardless of its schedule."""

    scenario: Annotated[str, typer.Argument(metavar="SCENARIO.toml")]
    prompts: Prompts = "reference:calibration"
    seconds: Seconds = 60.0
    scenario_out: ScenarioOut = None
    out: Profiles = None
    force: Force = False
