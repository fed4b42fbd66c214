"""Options that several commands have, each under the same name with the same meaning."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO.toml")]
JsonTarget = Annotated[
    Optional[str],  # noqa: UP045  (typer reads the annotation on Python 3.10, too)
    typer.Option("--json", metavar="FILE|-", help="Write the result here; - is standard output."),
]
TraceFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--trace", help="Write Chrome/Perfetto trace events of the first run here."),
]
PlotFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--plot", metavar="FILE.png", help="Draw the first run's timeline here."),
]
WhereTimeGoes = Annotated[
    bool,
    typer.Option(
        "--where-time-goes",
        help="Show what every worker's time went to; with --plot also as FILE-where-time-goes.png.",
    ),
]
TimelineFolder = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(metavar="DIR", help="Write pictures and traces of both worlds here."),
]
Seed = Annotated[Optional[int], typer.Option(min=0, help="Instead of the scenario's.")]  # noqa: UP045
Runs = Annotated[Optional[int], typer.Option(min=1, help="Instead of the scenario's.")]  # noqa: UP045
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, e.g. schedule.tree_size=40."),
]
Versus = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--versus", metavar="B.toml", help="Report this scenario's difference (B - A)."),
]
VersusSettings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--versus-set", metavar="KEY=VALUE", help="Change a key in B only."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No table and no progress.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]
ReportFolder = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--report", metavar="DIR", help="Write all of it as one page, DIR/index.html."),
]
Jobs = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--jobs", min=1, metavar="N", help="Simulations at once; default: all cores."),
]
BackendName = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="joblib|ray|dask",
        help="Processes of this machine, or a cluster (--address).",
    ),
]
ClusterAddress = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Of a running Ray or Dask cluster.",
    ),
]


def command_line() -> str:
    """What was typed, for a shell to take it again."""
    return shlex.join(["treepipe", *sys.argv[1:]])


def changes(settings: list[str] | None, seed: int | None, runs: int | None) -> list[str]:
    """All changes to a scenario, as ``Scenario.load`` takes them."""
    given: dict[str, Any] = {"seed": seed, "runs": runs}
    return [*(settings or []), *(f"{k}={v}" for k, v in given.items() if v is not None)]
