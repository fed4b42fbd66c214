"""The report of a result, or of the comparison of two, chapter by chapter."""

from __future__ import annotations

from treepipe.report.background import background, file_chapter
from treepipe.report.page import Chapter, Picture, Report
from treepipe.results import show
from treepipe.results.metrics import METRIC
from treepipe.results.result import MetricValue, Result
from treepipe.results.statistics import CONFIDENCE
from treepipe.results.timeline import timelines_figure
from treepipe.results.versus import Comparison
from treepipe.results.where import shares
from treepipe.results.where_plot import shares_figure
from treepipe.scenario.scenario import Scenario

SECOND = "throughput_tokens_s"
"""Metric of the answer's second figure, after the time between tokens."""


def result_report(result: Result, scenario: Scenario, command: str = "") -> Report:
    """Make the report of a result; ``command`` is the shell command that it quotes."""
    asks = "was measured of" if result.source == "execution" else "is predicted of"
    losses = () if result.lossless else (show.NOT_LOSSLESS,)
    path, form = result.critical_path, result.closed_form
    return Report(
        f"{result.source.capitalize()}: {result.scenario}",
        [f"What {asks} {scenario.schedule.name} in the scenario {result.scenario!r}?"],
        _answer(result),
        [
            Chapter("Figures", tables=show.result_tables(result)),
            Chapter("Closed form", tables=[] if form is None else [show.terms_table(form)]),
            Chapter("What binds", [] if path is None else path.sentences),
            _timeline([result]),
            _where(result),
            *background(scenario, [*losses, *result.warnings], command),
        ],
    )


def comparison_report(found: Comparison, a: Scenario, b: Scenario, command: str = "") -> Report:
    """Make the report of a comparison of scenarios ``a`` and ``b``."""
    names = f"{found.a.scenario!r} (A) and {found.b.scenario!r} (B)"
    chapters = background(a, show.versus_warnings(found), command, [a, b])
    if b.path != a.path:
        chapters.append(file_chapter(b))
    return Report(
        f"{found.a.scenario} and {found.b.scenario}",
        [f"By how much do {names} differ on common random numbers?"],
        _difference(found),
        [
            Chapter("Figures", tables=[show.versus_table(found)]),
            _timeline([found.a, found.b]),
            *chapters,
        ],
    )


def _answer(result: Result) -> list[str]:
    """Return two figures in two sentences, and their basis."""
    known = [result.metrics[name] for name in (METRIC, SECOND) if name in result.metrics]
    if not known:
        return [f"There is no figure: {result.failure or 'no request got a token'}."]
    over = f"over {result.intervals_over}" if result.intervals_over else ""
    words = [f"{each.name} is {_said(each, over)}." for each in known]
    return words if result.runs else [words[0], "It is the expected value of a closed form."]


def _said(metric: MetricValue, over: str) -> str:
    ends = f" ({metric.fixed})" if metric.fixed else ""
    if metric.low is not None and metric.high is not None:
        between = f"{show.number(metric.low)} … {show.number(metric.high)}"
        ends = f" ({CONFIDENCE:.0%} interval {over}: {between})"
    return f"{show.number(metric.mean)} {metric.unit}{ends}"


def _difference(found: Comparison) -> list[str]:
    each = found.differences.get(METRIC)
    if each is None:
        return [f"They share no {METRIC}; the table has what both have."]
    low, high = each.difference.ends
    means = f"{METRIC} is {show.number(each.a)} ms in A and {show.number(each.b)} ms in B."
    if low is None or high is None:
        return [means, "So few pairs of observations leave the difference without an interval."]
    sure = "B cannot be told from A" if low <= 0 <= high else "the two differ beyond doubt"
    between = f"{show.number(low)} … {show.number(high)} ms"
    if each.difference.fixed:
        where = "is the same in every run" if low else "is none"
        return [means, f"The difference B - A {where} ({each.difference.fixed}): {sure}."]
    return [means, f"The difference B - A lies in {between} ({CONFIDENCE:.0%} interval): {sure}."]


def _timeline(results: list[Result]) -> Chapter:
    """Show each device's work over time in the first run of each result."""
    traces = [(each.scenario, each.traces[0]) for each in results if each.traces]
    if not traces:
        return Chapter("Timeline")
    names = ", ".join(name for name, _ in traces)
    picture = Picture(timelines_figure(traces), f"what every device does when: {names}")
    return Chapter("Timeline", pictures=[picture])


def _where(result: Result) -> Chapter:
    """Show the components of every worker's time."""
    found = shares(result.traces)
    if not found:
        return Chapter("Where time goes")
    picture = Picture(
        shares_figure(found, result.scenario), "a stacked bar per worker: what its time went to"
    )
    return Chapter("Where time goes", tables=[show.shares_table(found)], pictures=[picture])
