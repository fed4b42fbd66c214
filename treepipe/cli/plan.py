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
from treepipe.planner.analysis import ALL, ANALYSES, option_of

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
            help="Draw the sensitivity (a tornado), or else the Pareto front here.",
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
            metavar="depth|saturation|split|worth",
            help="Answer by a formula, without a search: tokens to draft by streams, how many "
            "targets a draft feeds, how to split the model, or whether speculation pays.",
        ),
    ] = None

    @property
    def analyses(self) -> dict[str, Sequence[str]]:
        """The values given to each requested analysis: ``ALL`` for its flag, and its other ones."""
        values = {
            each.name: [ALL] * getattr(self, each.name)
            + list(getattr(self, each.also) or () if each.also else ())
            for each in ANALYSES.values()
        }
        return {name: given for name, given in values.items() if given}

    def kept(self, *options: str) -> tuple[str, ...]:
        """Those of the options whose file must not exist yet."""
        return () if self.force else ("--report", *options)


def _analysis_options() -> list[tuple[str, Any, Any]]:
    """Return the options of each analysis: name, type with its help, default."""
    found: list[tuple[str, Any, Any]] = []
    for name, each in ANALYSES.items():
        found.append((name, Annotated[bool, typer.Option(each.option, help=each.help)], False))
        if each.also:
            also = typer.Option(option_of(each.also), metavar=each.takes, help=each.also_help)
            found.append((each.also, Annotated[list[str] | None, also], None))
    return found


@command(
    make_dataclass("Options", _analysis_options(), bases=(PlanOptions,), frozen=True, kw_only=True)
)
def plan(options: PlanOptions) -> None:
    """Find the best schedule, parameters and split for a cluster.

    Ctrl-C shows and writes the best so far, and ends with exit code 130.
    """
    from treepipe.planner.candidates import search_warnings
    from treepipe.planner.cluster import Cluster
    from treepipe.planner.halving import SearchInterrupted
    from treepipe.planner.plan import search
    from treepipe.planner.report import (
        check_feasible,
        default_out,
        is_written,
        plan_content,
        plan_screen,
        write_best,
    )
    from treepipe.results.result import write_json
    from treepipe.results.show import ProgressBars
    from treepipe.sim.engine import engine

    _check(options)
    if options.question is not None:
        _answer(options, options.question)
        return
    out = default_out(options.cluster) if options.out is None else options.out
    files = {"--out": out, "--plot": options.plot, "--report": options.report}
    ours = options.out is None and is_written(out)  # replaced, as nobody named it
    options.check(files, options.cluster, keep=options.kept() if ours else options.kept("--out"))
    loaded = Cluster.load(options.cluster, options.changes)
    for name, given in options.analyses.items():
        ANALYSES[name].finding.check(loaded, given)
    for sentence in search_warnings(loaded):
        typer.echo(f"treepipe: {visible(sentence)}", err=True)
    done: dict[str, Finding] = {}
    with engine(jobs=options.jobs):
        try:
            with ProgressBars(options.quiet) as say:
                result: SearchResult = search(loaded, say)
        except SearchInterrupted as cut:
            result = cut.found
        stopped = result.interrupted
        if not options.silent:
            options.show(plan_screen(result))()
        try:
            for name, given in {} if stopped else options.analyses.items():
                with ProgressBars(options.quiet) as say:  # closed before anything is printed
                    done[name] = ANALYSES[name].finding.run(result, say, given)
                if (below := done[name].screen(result)) and not options.silent:
                    options.show(below)()
        except KeyboardInterrupt:
            stopped = True
    options.emit(
        None if options.report is None else partial(_report, result, done, options.report),
        partial(write_best, result, out),
        None
        if options.json is None
        else partial(write_json, plan_content(result, done), options.json),
        None if options.plot is None else partial(_draw, result, done, options.plot),
    )
    if result.feasible and not options.silent:
        typer.echo(f"best plan as a scenario: {visible(str(out))}")
    if stopped:
        raise KeyboardInterrupt
    check_feasible(result)


def _answer(options: PlanOptions, name: str) -> None:
    """Answer a question without a search."""
    from treepipe.planner.cluster import Cluster
    from treepipe.planner.questions import question
    from treepipe.report.page import write_report

    options.check({"--report": options.report}, options.cluster)
    answer = question(name)(Cluster.load(options.cluster, options.changes))
    page = partial(answer.page, command_line())
    options.emit(
        None if options.report is None else partial(write_report, page, options.report),
        *options.results(answer.content, options.show(answer.screen)),
    )


def _report(result: SearchResult, done: Mapping[str, Finding], folder: Path) -> None:
    from treepipe.planner.page import plan_report
    from treepipe.report.page import write_report

    write_report(partial(plan_report, result, done, command_line()), folder)


def _draw(result: SearchResult, done: Mapping[str, Finding], plot: Path) -> None:
    """Write the picture of ``--plot``: an analysis's, else the Pareto front; no picture if no plan
    keeps the limits."""
    from treepipe.results.plots import save_figure

    figures = [picture.figure for each in done.values() for picture in each.pictures(result)]
    if not figures and result.feasible:
        figures = [result.front_figure()]
    if figures:
        save_figure(figures[0], plot, 110, "--plot")


def _check(options: PlanOptions) -> None:
    """Raise ``UserError`` if options contradict each other or nothing shows an analysis."""
    if options.question is not None:
        of_search = {"--out": options.out, "--plot": options.plot, "--runs": options.runs}
        of_search["--seed"] = options.seed
        idle = [option for option, value in of_search.items() if value is not None]
        idle += [ANALYSES[name].option for name in options.analyses]
        if idle:
            raise UserError(f"{idle[0]} has no effect with --question, which does not search")
    if options.quiet and options.json is None and options.report is None:
        for each in (ANALYSES[name] for name in options.analyses):
            if not each.finding.draws:
                raise UserError(f"{each.option} --quiet shows nothing; add --json")
            if options.plot is None:
                raise UserError(f"{each.option} --quiet shows nothing; add --json or --plot")
