"""``treepipe plan``: its arguments; the searching is done in ``planner``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from treepipe.cli.options import Force, JsonTarget, Quiet, Seed, Settings, changes
from treepipe.files.outputs import Faults, check_outputs


def plan(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER.toml")],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="BEST.toml", help="The best plan; default CLUSTER-best.toml."),
    ] = None,
    json: JsonTarget = None,
    seed: Seed = None,
    runs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=2, help="Of the last rung, instead of the file's."),
    ] = None,
    settings: Settings = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Search schedules, parameters and partitions for a cluster and a goal."""
    from treepipe.planner.cluster import Cluster
    from treepipe.planner.halving import search
    from treepipe.planner.report import (
        check_feasible,
        default_out,
        plan_content,
        show_plan,
        write_best,
    )
    from treepipe.results.result import write_json
    from treepipe.results.show import Progress, console

    out = default_out(cluster) if out is None else out
    check_outputs(
        {"--out": out, "--json": json}, inputs=(cluster,), keep=() if force else ("--out",)
    )
    loaded = Cluster.load(cluster, changes(settings, seed, runs))
    with Progress(quiet) as say:
        found = search(loaded, say)
    with Faults() as faults:
        faults.attempt(write_best, found, out)
        if json is not None:
            faults.attempt(write_json, plan_content(found), json)
        if not quiet and json != "-":
            show_plan(found, out, console())
    check_feasible(found)
