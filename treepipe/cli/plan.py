"""``treepipe plan``: its arguments; the searching is done in ``planner``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from treepipe.cli.options import Force, JsonTarget, Quiet, Seed, Settings, changes
from treepipe.core.errors import UserError
from treepipe.files.outputs import Faults, check_outputs


def plan(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER.toml")],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="BEST.toml", help="The best plan; default CLUSTER-best.toml."),
    ] = None,
    json: JsonTarget = None,
    sensitivity: Annotated[
        bool,
        typer.Option("--sensitivity", help="Show what 10 % of each input does to the best plan."),
    ] = False,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--plot", metavar="FILE.png", help="Draw the sensitivity here (a tornado)."),
    ] = None,
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
        sensitivity_title,
        show_plan,
        show_sensitivity,
        write_best,
    )
    from treepipe.planner.sensitivity import sensitivities
    from treepipe.results.result import write_json
    from treepipe.results.show import Progress, console

    out = default_out(cluster) if out is None else out
    check_outputs(
        {"--out": out, "--json": json, "--plot": plot},
        inputs=(cluster,),
        keep=() if force else ("--out",),
    )
    if plot is not None and not sensitivity:
        raise UserError("--plot draws the sensitivity; add --sensitivity")
    if sensitivity and quiet and json is None and plot is None:
        raise UserError("--sensitivity --quiet shows nothing; add --json or --plot")
    loaded = Cluster.load(cluster, changes(settings, seed, runs))
    with Progress(quiet) as say:
        found = search(loaded, say)
        rows = sensitivities(found, say) if sensitivity else []
    with Faults() as faults:
        faults.attempt(write_best, found, out)
        if json is not None:
            faults.attempt(write_json, plan_content(found, rows), json)
        if plot is not None and rows:
            from treepipe.planner.sensitivity_plot import draw_tornado

            title, goal = sensitivity_title(found), loaded.search.goal
            faults.attempt(draw_tornado, rows, title, goal, plot)
        if not quiet and json != "-":
            show_plan(found, out, console())
            show_sensitivity(found, rows, console())
    check_feasible(found)
