"""A search as a report, chapter by chapter; simulates the best plan again for its timeline."""

from __future__ import annotations

from collections.abc import Mapping

from treepipe.planner.analysis import ANALYSES, Finding, with_empty
from treepipe.planner.halving import SearchResult
from treepipe.planner.report import (
    all_taken_as_exact,
    binding,
    cases_table,
    front_table,
    in_two_sentences,
    plan_warnings,
    prices,
    ranking_notes,
    ranking_table,
    refusals,
)
from treepipe.report.page import Chapter, Picture, Report, background
from treepipe.results.metrics import in_words, metric
from treepipe.results.timeline import timelines_figure
from treepipe.sim.predict import predict


def plan_report(
    result: SearchResult, done: Mapping[str, Finding] | None = None, command: str = ""
) -> Report:
    """Make the report of a search; ``command`` is the shell command that it quotes."""
    cluster, of = result.cluster, ANALYSES
    used = [each.candidate.scenario for each in result.ranking]
    tables = [ranking_table(result), *([] if result.cases is None else [cases_table(result)])]
    chapters = [
        Chapter("Plans", [*ranking_notes(result), *prices(result)], tables),
        Chapter("What binds", binding(result)),
        _front(result),
        *(
            Chapter(of[name].heading, each.sentences(), each.tables(result), each.pictures(result))
            for name, each in with_empty(done or {}).items()
        ),
        _timeline(result),
        Chapter("Refused plans", refusals(result)),
    ]
    warnings = plan_warnings(result)
    return Report(
        f"Plan: {cluster.name}",
        question(result),
        in_two_sentences(result),
        [*chapters, *background(cluster, warnings, command, used)],
    )


def question(result: SearchResult) -> list[str]:
    """Describe the task: the goal, the cluster, the search space, and the limits."""
    cluster = result.cluster
    search, goal = cluster.search, cluster.search.goal
    side = "least" if metric(goal).less_is_better else "largest"
    limits = [
        f"{each.in_words} at {'most' if each.less_is_better else 'least'} {bound:g} {each.unit}"
        for each, bound in ((metric(n), b) for n, b in search.limits.of_metrics.items())
    ]
    costs = {"price_usd": "USD", "price_usd_per_hour": "USD per hour"}
    for name, unit in costs.items():
        if (price := getattr(search.limits, name)) is not None:
            limits.append(f"all devices together at most {price:g} {unit}")
    limits.append(f"at most {search.limits.memory_share:.0%} of each device's memory")
    taken, requests = all_taken_as_exact(result), cluster.workload.requests
    few = 0 if result.cases is None else result.cases.simulated % result.cases.count
    in_a_run = "1 request" if requests == 1 else f"{requests} requests"
    return [
        f"Which schedule, with which parameters and which layers per stage, has the {side} "
        f"{in_words(goal)} on the cluster {cluster.name!r}?",
        f"Tried: {', '.join(search.schedules)} ({result.rungs[0].candidates} plans simulated, "
        f"{len(result.refused)} refused), {in_a_run} a run.",
        f"Limits: {'; '.join(limits)}.",
        *(f"Taken as exact: {each}." for each in taken),
        *([f"Uncertain inputs: {few} simulated cases, whose slopes tell the others."] * bool(few)),
    ]


def _front(result: SearchResult) -> Chapter:
    """Show the plans that no other one beats, if there is a choice."""
    table = front_table(result.front)
    if table is None:
        return Chapter("Pareto front")
    goal, on = result.goal.name, ", ".join(str(n + 1) for n in result.front.members)
    description = f"every plan by {in_words(goal)} and each other goal; on the front: {on}"
    return Chapter(
        "Pareto front",
        [f"no other plan beats these in every goal (places in the ranking): {on}"],
        [table],
        [Picture(result.front_figure(), description)],
    )


def _timeline(result: SearchResult) -> Chapter:
    """Show each device's work over time in one simulated run of the best plan."""
    candidate = result.winner.candidate
    trace, _ = predict(candidate.scenario.with_(runs=2))  # a single run would not resample texts
    figure = timelines_figure([(candidate.label, trace)])
    which = "best" if result.feasible else "nearest"
    picture = Picture(figure, f"what every device does when, in the {which} plan")
    return Chapter(f"Timeline of the {which} plan", pictures=[picture])
