"""Requests of ``treepipe calibrate``: each field of a record is an option, with its help.

This module loads no numbers and no PyTorch, so that the command line starts at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

LONGEST_S = 1e6
"""Upper bound of ``--seconds``; it only excludes infinity."""
TEXTS = 4
"""Number of texts that each turn of a run continues."""

MODEL = "DIR|config.json|PROFILE"
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
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key (docs/calibration.md)."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]


@dataclass(frozen=True, kw_only=True)
class DeviceRequest:
    """A device of this machine, and the passes to time on it.

    ``settings`` are keys of ``work.Points``, e.g. ``tokens=[1,4]``.
    """

    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="What is measured.")] = "cpu"
    model: Annotated[
        str, typer.Option(metavar=MODEL, help="A checkpoint, or sizes for random weights.")
    ] = "reference"
    draft: Annotated[
        str | None, typer.Option(metavar=MODEL, help="Measure passes of this draft, too.")
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(help="Type to compute in; default float32, on a GPU the model's of 16 bits."),
    ] = None
    settings: Settings = None
    eager: Annotated[
        bool, typer.Option("--eager", help="Beside graphs time eager passes, too, and tell both.")
    ] = False
    seconds: Seconds = 120.0
    out: Profile = Path("calibrated-device.toml")
    force: Force = False


@dataclass(frozen=True, kw_only=True)
class SelfTestRequest:
    """A device that is tried, and the file of the result."""

    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="What is tried.")] = "cpu"
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE.json", help="The result, to be sent.")
    ] = Path("selftest.json")


@dataclass(frozen=True, kw_only=True)
class LinksRequest:
    """One link from this host, or all links between the hosts of a scenario."""

    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO.toml", help="Measure all links of its hosts.")
    ] = None
    peer: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="A `treepipe worker`; default another process of this host."
        ),
    ] = None
    key: Annotated[
        Path | None, typer.Option(help="The key that the peer holds; not needed on the loopback.")
    ] = None
    seconds: Annotated[
        float, typer.Option(min=1, max=LONGEST_S, help="Time to spend on each link at most.")
    ] = 20.0
    scenario_out: ScenarioOut = None
    out: Profiles = None
    force: Force = False


@dataclass(frozen=True, kw_only=True)
class AcceptanceRequest:
    """A target, a draft and texts along which acceptance is recorded.

    ``settings`` are keys of ``acceptance.Recorded``: of a scenario's tables ``drafts`` and
    ``sampling``, e.g. ``drafts.source=ngram``, and ``new_tokens``, ``task`` and ``seed``.
    """

    model: Annotated[str, typer.Option(metavar="DIR", help="The target.")] = "reference"
    draft: Annotated[
        str | None, typer.Option(metavar="DIR", help="The language model that drafts.")
    ] = None
    head: Annotated[
        str | None, typer.Option(metavar="DIR", help="An EAGLE head that drafts, instead.")
    ] = None
    prompts: Prompts = "reference:calibration"
    settings: Settings = None
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
