"""``treepipe plan``: its arguments; the searching is done in ``planner``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from treepipe.cli.options import Changes, Distributed, Reported, command, command_line
from treepipe.core.errors import UserError
from treepipe.files.outputs import Faults

if TYPE_CHECKING:
    from treepipe.planner.analysis import Analysis
    from treepipe.planner.halving import Found


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Reported, Distributed, Changes):
    """What ``treepipe plan`` takes."""

    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER.toml")]
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="BEST.toml", help="The best plan; default CLUSTER-best.toml."),
    ] = None
    sensitivity: Annotated[
        bool,
        typer.Option("--sensitivity", help="Show what 10 % of each input does to the best plan."),
    ] = False
    break_even: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--break-even",
            metavar="KEY[=LOW:HIGH]",
            help="Find where another schedule becomes the best; twice: a map over both.",
        ),
    ] = None
    capacity: Annotated[
        bool,
        typer.Option("--capacity", help="Find the largest arrival rate that keeps the limits."),
    ] = False
    robust: Annotated[
        bool,
        typer.Option("--robust", help="Show what jitter, bursts, slow and lost devices do to it."),
    ] = False
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--plot",
            metavar="FILE.png",
            help="Draw the sensitivity (a tornado), the map, or else the Pareto front here.",
        ),
    ] = None
    runs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=2, help="Of the last rung, instead of the file's."),
    ] = None

    @property
    def analyses(self) -> dict[str, bool]:
        """Whether each analysis is asked for, by option."""
        return {
            "--sensitivity": self.sensitivity,
            "--break-even": bool(self.break_even),
            "--capacity": self.capacity,
            "--robust": self.robust,
        }


@command(PlanOptions)
def plan(asked: PlanOptions) -> None:
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

    out = default_out(asked.cluster) if asked.out is None else asked.out
    asked.check({"--out": out, "--plot": asked.plot}, asked.cluster, keep=("--out",))
    _check(asked)
    loaded = Cluster.load(asked.cluster, asked.changes)
    if asked.capacity:
        check_capacity(loaded)
    axes = axes_of(asked.break_even or [], loaded)
    runs_of: dict[str, Callable[[Found, Progress], Analysis]] = {
        "--sensitivity": SensitivityAnalysis.run,
        "--break-even": partial(BreakEvenAnalysis.run, axes=axes),
        "--capacity": CapacityAnalysis.run,
        "--robust": RobustnessAnalysis.run,
    }
    shown, done = None if asked.silent else console(), []
    with engine(asked.backend, asked.jobs, asked.address):
        with Progress(asked.quiet) as say:
            found = rank(loaded, say)
        if shown is not None:
            show_plan(found, shown)
        with Progress(asked.quiet) as say:
            found = with_cases(found, say)
        if shown is not None:
            show_cases(found, shown)
        for analysis in (runs_of[option] for option, wanted in asked.analyses.items() if wanted):
            with Progress(asked.quiet) as say:  # closed before anything is printed
                done.append(analysis(found, say))
            if shown is not None:
                show_analysis(found, done[-1], shown)
    with Faults() as faults:
        faults.attempt(write_best, found, out)
        if asked.json is not None:
            faults.attempt(write_json, plan_content(found, done), asked.json)
        if asked.plot is not None:
            faults.attempt(_draw, found, done, asked.plot)
        if asked.report is not None:
            from treepipe.planner.page import plan_report
            from treepipe.report.page import write_report

            faults.attempt(write_report, plan_report(found, done, command_line()), asked.report)
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


def _check(asked: PlanOptions) -> None:
    """Raises ``UserError`` where options contradict each other, or nothing shows what is asked."""
    if asked.plot is not None and asked.sensitivity and len(asked.break_even or ()) == 2:
        raise UserError("--plot draws one picture: leave out --sensitivity or a --break-even")
    silent = asked.quiet and asked.json is None and asked.report is None
    unheard = [option for option, each in asked.analyses.items() if each] if silent else []
    if unheard and asked.plot is None:
        raise UserError(f"{unheard[0]} --quiet shows nothing; add --json or --plot")
    undrawn = [option for option in unheard if option in ("--capacity", "--robust")]
    if undrawn:
        raise UserError(f"{undrawn[0]} --quiet shows nothing; add --json")
