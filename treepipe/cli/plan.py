"""``treepipe plan``: its arguments; ``planner`` does the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treepipe.cli.options import Changes, Distributed, Force, Output, command, command_line
from treepipe.core.errors import UserError
from treepipe.files.reading import visible
from treepipe.planner.analysis import ANALYSES

if TYPE_CHECKING:
    from treepipe.planner.analysis import Finding
    from treepipe.planner.halving import SearchResult


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Output, Distributed, Changes):
    """Options of ``treepipe plan`` besides one for each analysis."""

    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER.toml")]
    out: Annotated[
        Path | None,
        typer.Option(metavar="BEST.toml", help="The best plan; default CLUSTER-best.toml."),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE.png",
            help="Draw the sensitivity (a tornado), the map, or else the Pareto front here.",
        ),
    ] = None
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="DIR", help="Write all of it as a page, DIR/index.html."),
    ] = None
    force: Force = False
    runs: Annotated[
        int | None,
        typer.Option(min=2, help="Of the last rung, instead of the file's."),
    ] = None
    question: Annotated[
        str | None,
        typer.Option(
            metavar="depth|worth",
            help="Answer by a formula, without a search: tokens to draft by streams, or whether "
            "speculation pays.",
        ),
    ] = None

    @property
    def analyses(self) -> dict[str, Sequence[str]]:
        """The values given to the option of each requested analysis; empty for a flag."""
        asked = {name: getattr(self, name) for name in ANALYSES}
        return {n: given if isinstance(given, list) else () for n, given in asked.items() if given}

    def kept(self, *options: str) -> tuple[str, ...]:
        """Those of the options whose file must not exist yet."""
        return () if self.force else ("--report", *options)


def _analysis_options() -> list[tuple[str, Any, Any]]:
    """Return an option for each analysis: name, type with its help, default."""
    found: list[tuple[str, Any, Any]] = []
    for name, each in ANALYSES.items():
        if each.takes:
            option = typer.Option(each.option, metavar=each.takes, help=each.help)
            found.append((name, Annotated[list[str] | None, option], None))
        else:
            found.append((name, Annotated[bool, typer.Option(each.option, help=each.help)], False))
    return found


@command(
    make_dataclass("Options", _analysis_options(), bases=(PlanOptions,), frozen=True, kw_only=True)
)
def plan(asked: PlanOptions) -> None:
    """Search schedules, parameters and partitions for a cluster and a goal.

    Ctrl-C shows and writes the best so far, and ends with exit code 130.
    """
    from treepipe import library
    from treepipe.planner.candidates import search_warnings
    from treepipe.planner.cluster import Cluster
    from treepipe.planner.halving import SearchInterrupted
    from treepipe.planner.report import (
        check_feasible,
        default_out,
        is_written,
        plan_content,
        show_finding,
        show_plan,
        write_best,
    )
    from treepipe.results.result import write_json
    from treepipe.results.show import ProgressBars, console
    from treepipe.sim.engine import engine

    _check(asked)
    if asked.question is not None:
        _answer(asked, asked.question)
        return
    out = default_out(asked.cluster) if asked.out is None else asked.out
    files = {"--out": out, "--plot": asked.plot, "--report": asked.report}
    ours = asked.out is None and is_written(out)  # replaced, as nobody named it
    asked.check(files, asked.cluster, keep=asked.kept() if ours else asked.kept("--out"))
    loaded = Cluster.load(asked.cluster, asked.changes)
    for name, given in asked.analyses.items():
        ANALYSES[name].finding.check(loaded, given)
    for sentence in search_warnings(loaded):
        typer.echo(f"treepipe: {visible(sentence)}", err=True)
    shown = None if asked.silent else console()
    done: dict[str, Finding] = {}
    with engine(asked.backend, asked.jobs):
        try:
            with ProgressBars(asked.quiet) as say:
                found = library.plan(loaded, say).found
        except SearchInterrupted as cut:
            found = cut.found
        stopped = found.interrupted
        if shown is not None:
            show_plan(found, shown)
        try:
            for name, given in {} if stopped else asked.analyses.items():
                with ProgressBars(asked.quiet) as say:  # closed before anything is printed
                    done[name] = library.Plan(found).examine(name, *given, say=say)
                if shown is not None:
                    show_finding(found, done[name], shown)
        except KeyboardInterrupt:
            stopped = True
    asked.emit(
        None if asked.report is None else partial(_report, found, done, asked.report),
        partial(write_best, found, out),
        None if asked.json is None else partial(write_json, plan_content(found, done), asked.json),
        None if asked.plot is None else partial(_draw, found, done, asked.plot),
    )
    if shown is not None and found.feasible:
        shown.print(f"best plan as a scenario: {out}", highlight=False)
    if stopped:
        raise KeyboardInterrupt
    check_feasible(found)


def _answer(asked: PlanOptions, name: str) -> None:
    """Answer a question without a search."""
    from treepipe.planner.cluster import Cluster
    from treepipe.planner.questions import question
    from treepipe.report.page import write_report
    from treepipe.results.result import write_json
    from treepipe.results.show import console, print_sheet

    asked.check({"--report": asked.report}, asked.cluster)
    chosen, cluster = question(name), Cluster.load(asked.cluster, asked.changes)
    answer = chosen.answer(cluster)
    if not asked.silent:
        for sentence in answer.sentences:
            console().print(sentence, highlight=False)
        for table in answer.tables:
            print_sheet(console(), table)
        for each in answer.warnings:
            console().print(f"Warning: {each}.", highlight=False)
    page = partial(chosen.page, answer, command_line())
    asked.emit(
        None if asked.report is None else partial(write_report, page, asked.report),
        None if asked.json is None else partial(write_json, answer.content, asked.json),
    )


def _report(found: SearchResult, done: Mapping[str, Finding], folder: Path) -> None:
    from treepipe.planner.page import plan_report
    from treepipe.report.page import write_report

    write_report(partial(plan_report, found, done, command_line()), folder)


def _draw(result: SearchResult, done: Mapping[str, Finding], plot: Path) -> None:
    """Write the picture of ``--plot``: an analysis's, else the Pareto front; no picture if no plan
    keeps the limits."""
    from treepipe.planner.front_plot import search_figure
    from treepipe.results.plots import save_figure

    figures = [picture.figure for each in done.values() for picture in each.pictures(result)]
    if not figures and result.feasible:
        figures = [search_figure(result)]
    if figures:
        save_figure(figures[0], plot, 110, "--plot")


def _check(asked: PlanOptions) -> None:
    """Raise ``UserError`` if options contradict each other or nothing shows an analysis."""
    if asked.question is not None:
        of_search = {"--out": asked.out, "--plot": asked.plot, "--runs": asked.runs}
        idle = [option for option, value in of_search.items() if value is not None]
        idle += [ANALYSES[name].option for name in asked.analyses]
        if idle:
            raise UserError(f"{idle[0]} has no effect with --question, which does not search")
    silent = asked.quiet and asked.json is None and asked.report is None
    drawn = []
    for name, given in asked.analyses.items():
        each = ANALYSES[name]
        if each.finding.draws(given):
            drawn.append(each.option)
            if silent and asked.plot is None:
                raise UserError(f"{each.option} --quiet shows nothing; add --json or --plot")
        elif silent:
            raise UserError(f"{each.option} --quiet shows nothing; add --json")
    if asked.plot is not None and len(drawn) > 1:
        raise UserError(f"--plot draws one picture: leave out {' or '.join(drawn)}")
