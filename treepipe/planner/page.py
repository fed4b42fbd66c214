"""A search as a report: the question, the answer, and all that ``treepipe plan`` has found.

Law of this file: figures and sentences are those of ``planner/report.py``; only their order is made
here, and the timeline, for which the best plan is simulated once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.planner.analysis import Analysis
from treepipe.planner.front_plot import front_figure
from treepipe.planner.halving import Found
from treepipe.planner.report import (
    binding,
    cases_table,
    front_table,
    front_title,
    in_two_sentences,
    plan_warnings,
    prices,
    ranking_notes,
    ranking_table,
    refusals,
    with_empty,
)
from treepipe.report.background import background
from treepipe.report.page import Chapter, Picture, Report
from treepipe.results.metrics import in_words, metric
from treepipe.results.timeline import timelines_figure
from treepipe.sim.predict import predict


def plan_report(found: Found, analyses: Sequence[Analysis] = (), command: str = "") -> Report:
    """Args: ``command``: what made the report, quoted for a shell."""
    cluster = found.cluster
    used = [each.candidate.scenario for each in found.ranking]
    tables = [ranking_table(found), *([] if found.cases is None else [cases_table(found)])]
    chapters = [
        Chapter("Plans", [*ranking_notes(found), *prices(found)], tables),
        Chapter("What binds", binding(found)),
        _front(found),
        *(
            Chapter(each.heading, each.sentences(), each.tables(found), each.pictures(found))
            for each in with_empty(analyses)
        ),
        _timeline(found),
        Chapter("Refused plans", refusals(found)),
    ]
    warnings = plan_warnings(found)
    return Report(
        f"Plan: {cluster.name}",
        question(found),
        in_two_sentences(found),
        [*chapters, *background(cluster, warnings, command, used)],
    )


def question(found: Found) -> list[str]:
    """What was asked: the goal, the cluster, what was tried, and within which limits."""
    cluster = found.cluster
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
    asked = cluster.workload.requests
    return [
        f"Which schedule, with which parameters and which layers per stage, has the {side} "
        f"{in_words(goal)} on the cluster {cluster.name!r}?",
        f"Tried: {', '.join(search.schedules)} ({found.rungs[0].candidates} plans simulated, "
        f"{len(found.refused)} refused), {asked} {'request' if asked == 1 else 'requests'} a run.",
        f"Limits: {'; '.join(limits)}.",
    ]


def _front(found: Found) -> Chapter:
    """The plans that no other one beats, as far as there is a choice."""
    table = front_table(found.front)
    if table is None:
        return Chapter("Pareto front")
    front, goal = found.front, found.cluster.search.goal
    on = ", ".join(str(place + 1) for place in front.members)
    picture = Picture(
        front_figure(front, goal, front_title(found)),
        f"every plan by {in_words(goal)} and each other goal; on the front: {on}",
    )
    return Chapter(
        "Pareto front",
        [f"no other plan beats these in every goal (places in the ranking): {on}"],
        [table],
        [picture],
    )


def _timeline(found: Found) -> Chapter:
    """What every device does when in the best plan, simulated once."""
    candidate = found.best.candidate
    trace, _ = predict(candidate.scenario.with_(runs=2))  # texts of a single one are not resampled
    figure = timelines_figure([(candidate.label, trace)], candidate.label)
    which = "best" if found.feasible else "nearest"
    picture = Picture(figure, f"what every device does when, in the {which} plan")
    return Chapter(f"Timeline of the {which} plan", pictures=[picture])
