"""A search as a report, chapter by chapter; simulates the best plan again for its timeline."""

from __future__ import annotations

from collections.abc import Mapping

from treepipe.planner.analysis import ANALYSES, Finding, with_empty
from treepipe.planner.halving import SearchResult
from treepipe.planner.report import (
    best_table,
    binding,
    front_table,
    plan_screen,
    prices,
    ranking_table,
    refusals,
    verdict,
)
from treepipe.report.page import Chapter, Picture, Report, background
from treepipe.results.metrics import in_words, metric
from treepipe.results.timeline import timelines_figure
from treepipe.sim.predict import predict


def plan_report(
    result: SearchResult, done: Mapping[str, Finding] | None = None, command: str = ""
) -> Report:
    """Make the report of a search; ``command`` is the shell command that it quotes."""
    cluster, of, screen = result.cluster, ANALYSES, plan_screen(result)
    used = [each.candidate.scenario for each in result.ranking]
    tables, path = [best_table(result), ranking_table(result)], result.winner.path
    chapters = [
        Chapter("Plans", [*verdict(result), *prices(result)], tables),
        Chapter("What binds", [*binding(result), *path.sentences[:1]]),
        _front(result),
        *(
            Chapter(of[name].heading, (), each.tables(result), each.pictures(result))
            for name, each in with_empty(done or {}).items()
        ),
        _timeline(result),
        Chapter("What was tried", [*_tried(result), *refusals(result)]),
    ]
    background_of = background(cluster, [*screen.warnings, *screen.exact], command, used)
    return Report(f"Plan: {cluster.name}", screen.answer, [*chapters, *background_of])


def _tried(result: SearchResult) -> list[str]:
    """Describe the search space, and the limits."""
    search, requests = result.cluster.search, result.cluster.workload.requests
    limits = [
        f"{each.in_words} at {'most' if each.less_is_better else 'least'} {bound:g} {each.in_unit}"
        for each, bound in ((metric(n), b) for n, b in search.limits.of_metrics.items())
    ]
    for name, unit in {"price_usd": "USD", "price_usd_per_hour": "USD per hour"}.items():
        if (price := getattr(search.limits, name)) is not None:
            limits.append(f"all devices together at most {price:g} {unit}")
    limits.append(f"at most {search.limits.memory_share:.0%} of each device's memory")
    few = 0 if result.cases is None else result.cases.simulated % result.cases.count
    return [
        f"Tried: {', '.join(search.schedules)} ({result.rungs[0].candidates} plans simulated, "
        f"{len(result.refused)} refused), {requests} request{'s' * (requests != 1)} a run.",
        f"Limits: {'; '.join(limits)}.",
        *([f"Uncertain inputs: {few} simulated cases, whose slopes tell the others."] * bool(few)),
    ]


def _front(result: SearchResult) -> Chapter:
    """Show the plans that no other one beats, if there is a choice."""
    table, goal = front_table(result.front), in_words(result.goal.name)
    if table is None:
        return Chapter("Pareto front")
    on = ", ".join(str(n + 1) for n in result.front.members)
    says = f"no other plan beats these in every goal (places in the ranking): {on}"
    picture = Picture(result.front_figure(), f"every plan by {goal} and each other goal; {says}")
    return Chapter("Pareto front", [says], [table], [picture])


def _timeline(result: SearchResult) -> Chapter:
    """Show each device's work over time in one simulated run of the best plan."""
    candidate = result.winner.candidate
    trace, _ = predict(candidate.scenario.with_(runs=2))  # a single run would not resample texts
    figure = timelines_figure([(candidate.label, trace)])
    which = "best" if result.feasible else "nearest"
    picture = Picture(figure, f"what every device does when, in the {which} plan")
    return Chapter(f"Timeline of the {which} plan", pictures=[picture])
