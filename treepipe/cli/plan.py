"""``treepipe plan``: its arguments; the searching is done in ``planner``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    from treepipe.planner.analysis import Analysis
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
    from treepipe.planner.break_even import BreakEvenAnalysis, axes_of
    from treepipe.planner.capacity import CapacityAnalysis, check_capacity
    from treepipe.planner.cluster import Cluster
    from treepipe.planner.halving import rank, with_cases
    from treepipe.planner.report import (
        check_feasible,
        default_out,
        plan_content,
        show_analysis,
        show_cases,
        show_plan,
        write_best,
    )
    from treepipe.planner.robustness import RobustnessAnalysis
    from treepipe.planner.sensitivity import SensitivityAnalysis
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
    runs_of: dict[str, Callable[[Found, Progress], Analysis]] = {
        "--sensitivity": SensitivityAnalysis.run,
        "--break-even": partial(BreakEvenAnalysis.run, axes=axes),
        "--capacity": CapacityAnalysis.run,
        "--robust": RobustnessAnalysis.run,
    }
    shown, done = None if quiet or json == "-" else console(), []
    with engine(backend, jobs, address):
        with Progress(quiet) as say:
            found = rank(loaded, say)
        if shown is not None:
            show_plan(found, shown)
        with Progress(quiet) as say:
            found = with_cases(found, say)
        if shown is not None:
            show_cases(found, shown)
        for analysis in (runs_of[option] for option, wanted in asked.items() if wanted):
            with Progress(quiet) as say:  # closed before anything is printed
                done.append(analysis(found, say))
            if shown is not None:
                show_analysis(found, done[-1], shown)
    with Faults() as faults:
        faults.attempt(write_best, found, out)
        if json is not None:
            faults.attempt(write_json, plan_content(found, done), json)
        if plot is not None:
            faults.attempt(_draw, found, done, plot)
        if report is not None:
            from treepipe.planner.page import plan_report
            from treepipe.report.page import write_report

            faults.attempt(write_report, plan_report(found, done, command_line()), report)
    if shown is not None and found.feasible:
        shown.print(f"best plan as a scenario: {out}", highlight=False)
    check_feasible(found)


def _draw(found: Found, done: Sequence[Analysis], plot: Path) -> None:
    """Write the picture of ``--plot``: an analysis's, else the Pareto front; none where no plan
    keeps the limits."""
    from treepipe.planner.front_plot import front_figure
    from treepipe.planner.report import front_title
    from treepipe.results.plots import save_figure

    figures = [picture.figure for each in done for picture in each.pictures(found)]
    if not figures and found.feasible:
        figures = [front_figure(found.front, found.cluster.search.goal, front_title(found))]
    if figures:
        save_figure(figures[0], plot, 110, "--plot")


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
    silent = quiet and json is None and report is None
    unheard = [option for option, each in asked.items() if each] if silent else []
    if unheard and plot is None:
        raise UserError(f"{unheard[0]} --quiet shows nothing; add --json or --plot")
    undrawn = [option for option in unheard if option in ("--capacity", "--robust")]
    if undrawn:
        raise UserError(f"{undrawn[0]} --quiet shows nothing; add --json")
