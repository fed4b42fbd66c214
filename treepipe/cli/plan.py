"""``treepipe plan``: its arguments; the searching is done in ``planner``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from treepipe.cli.options import (
    BackendName,
    ClusterAddress,
    Force,
    Jobs,
    JsonTarget,
    Quiet,
    ReportFolder,
    Seed,
    Settings,
    changes,
    command_line,
)
from treepipe.core.errors import UserError
from treepipe.files.outputs import Faults, check_outputs

if TYPE_CHECKING:
    from treepipe.planner.explored import Explored
    from treepipe.planner.halving import Found


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
    break_even: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--break-even",
            metavar="KEY[=LOW:HIGH]",
            help="Find where another schedule becomes the best; twice: a map over both.",
        ),
    ] = None,
    capacity: Annotated[
        bool,
        typer.Option("--capacity", help="Find the largest arrival rate that keeps the limits."),
    ] = False,
    robust: Annotated[
        bool,
        typer.Option("--robust", help="Show what jitter, bursts, slow and lost devices do to it."),
    ] = False,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--plot",
            metavar="FILE.png",
            help="Draw the sensitivity (a tornado), the map, or else the Pareto front here.",
        ),
    ] = None,
    report: ReportFolder = None,
    seed: Seed = None,
    runs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=2, help="Of the last rung, instead of the file's."),
    ] = None,
    settings: Settings = None,
    jobs: Jobs = None,
    backend: BackendName = "joblib",
    address: ClusterAddress = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Search schedules, parameters and partitions for a cluster and a goal."""
    from treepipe.planner.break_even import axes_of
    from treepipe.planner.capacity import check_capacity
    from treepipe.planner.cluster import Cluster
    from treepipe.planner.explored import NOTHING_MORE, Explored, analyses
    from treepipe.planner.halving import rank, with_cases
    from treepipe.planner.report import (
        check_feasible,
        default_out,
        plan_content,
        show_cases,
        show_explored,
        show_plan,
        write_best,
    )
    from treepipe.results.result import write_json
    from treepipe.results.show import Progress, console
    from treepipe.sim.engine import engine

    out = default_out(cluster) if out is None else out
    check_outputs(
        {"--out": out, "--json": json, "--plot": plot, "--report": report},
        inputs=(cluster,),
        keep=() if force else ("--out", "--report"),
    )
    keys = break_even or []
    asked = {
        "--sensitivity": sensitivity,
        "--break-even": bool(keys),
        "--capacity": capacity,
        "--robust": robust,
    }
    _check_asked(asked, keys, plot, json, report, quiet=quiet)
    loaded = Cluster.load(cluster, changes(settings, seed, runs))
    if capacity:
        check_capacity(loaded)
    axes = axes_of(keys, loaded)
    shown, more = None if quiet or json == "-" else console(), NOTHING_MORE
    with engine(backend, jobs, address):
        with Progress(quiet) as say:
            found = rank(loaded, say)
        if shown is not None:
            show_plan(found, shown)
        with Progress(quiet) as say:
            found = with_cases(found, say)
        if shown is not None:
            show_cases(found, shown)
        flags = {"sensitivity": sensitivity, "capacity": capacity, "robust": robust}
        for analysis in analyses(found, axes, **flags):
            with Progress(quiet) as say:  # closed before anything is printed
                part = analysis(say)
            more = replace(more, **part)
            if shown is not None:
                show_explored(found, Explored(**part), shown)
    with Faults() as faults:
        faults.attempt(write_best, found, out)
        if json is not None:
            faults.attempt(write_json, plan_content(found, more), json)
        if plot is not None:
            faults.attempt(_draw, found, more, plot)
        if report is not None:
            from treepipe.planner.page import plan_report
            from treepipe.report.page import write_report

            faults.attempt(write_report, plan_report(found, more, command_line()), report)
    if shown is not None and found.feasible:
        shown.print(f"best plan as a scenario: {out}", highlight=False)
    check_feasible(found)


def _draw(found: Found, more: Explored, plot: Path) -> None:
    """Write the one picture of ``--plot``; none where no plan keeps the limits."""
    from treepipe.planner.front_plot import draw_front
    from treepipe.planner.regions_plot import draw_regions
    from treepipe.planner.report import front_title, regions_title, sensitivity_title
    from treepipe.planner.sensitivity_plot import draw_tornado

    goal, rows, mapped = found.cluster.search.goal, more.sensitivities, more.regions
    if rows:
        draw_tornado(rows, sensitivity_title(found), goal, plot)
    elif mapped is not None:
        draw_regions(mapped, regions_title(found, mapped), plot)
    elif found.feasible:
        draw_front(found.front, goal, front_title(found), plot)


def _check_asked(
    asked: Mapping[str, bool],
    keys: Sequence[str],
    plot: Path | None,
    json: str | None,
    report: Path | None,
    *,
    quiet: bool,
) -> None:
    """Raises ``UserError`` where options contradict each other, or nothing shows what is asked.

    Args: ``keys``: of the break-even.
    """
    sensitivity = asked["--sensitivity"]
    if plot is not None and sensitivity and len(keys) == 2:
        raise UserError("--plot draws one picture: leave out --sensitivity or a --break-even")
    if len(keys) == 2 and plot is None and json is None and report is None:
        raise UserError(
            "a map of two --break-even is shown by --plot, --json and --report; add one"
        )
    silent = quiet and json is None and report is None
    unheard = [option for option, each in asked.items() if each] if silent else []
    if unheard and plot is None:
        raise UserError(f"{unheard[0]} --quiet shows nothing; add --json or --plot")
    undrawn = [option for option in unheard if option in ("--capacity", "--robust")]
    if undrawn:
        raise UserError(f"{undrawn[0]} --quiet shows nothing; add --json")
