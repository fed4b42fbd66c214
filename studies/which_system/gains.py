"""Systems against each other on a cluster: gains, winners, and what the new ones would need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from treepipe.planner.plan import Plan
from treepipe.progress import Progress
from treepipe.results.statistics import Interval, ratio_observations
from treepipe.scenario.schema import ScheduleName
from treepipe.sim.points import Point, simulate_points
from treepipe.studies.which_system import places
from treepipe.studies.which_system.places import Goal, Place

Results: TypeAlias = dict[tuple[Place, Goal], Plan]
Needs: TypeAlias = Mapping[ScheduleName, Mapping[str, Interval]]
"""A new system's gain over the best of the five, as stated and with each better draft."""
NeedsOf: TypeAlias = Mapping[tuple[Place, Goal], Needs]
BETTER: Mapping[str, Mapping[str, float]] = {
    "a quarter of the misses": {"scale.misses": 0.25},
    "a quarter of the draft's time": {"scale.drafts": 0.25},
    "both": {"scale.misses": 0.25, "scale.drafts": 0.25},
}
"""Drafts that the new systems alone are given."""
STATED = "as stated"


def gain(found: Plan, schedule: ScheduleName, over: ScheduleName = places.PLAIN) -> Interval:
    """Return the ratio of a system's best plan to another's, on the same runs; its interval
    includes the inputs' uncertainty."""
    best, goal = found.best_of_each, found.goal.name
    observed = [best[name].outcome.observations[goal] for name in (schedule, over)]
    sampled = _ratio(found, *observed)
    if found.cases is None or schedule == over:
        return sampled
    above, below = (over, schedule) if found.goal.less_is_better else (schedule, over)
    return found.cases.ratio_widened(above, below, sampled)


def _ratio(found: Plan, own: Sequence[float], others: Sequence[float]) -> Interval:
    """Return how many times as good as ``others`` the goal of the same runs is."""
    pair = (others, own) if found.goal.less_is_better else (own, others)
    return Interval.over(ratio_observations(*pair))


def winner(found: Plan) -> ScheduleName:
    return found.winner.candidate.schedule


def rivals(found: Plan) -> list[str]:
    """Return other systems indistinguishable from the best, by runs or inputs' uncertainty."""
    best, names = winner(found), []
    for name, ranked in found.best_of_each.items():
        if name != best:
            high = gain(found, name, best).ends[1]
            if ranked.tied or high is None or high >= 1:
                names.append(name)
    return names


def shares_of(found: Results, schedule: ScheduleName, goal: Goal) -> list[float]:
    """Return the share of the winner's gain that a system reaches, for each cluster."""
    return [
        gain(each, schedule, winner(each)).mean
        for (_, its), each in found.items()
        if its == goal and schedule in each.best_of_each
    ]


def best_of_five(found: Plan) -> ScheduleName | None:
    """Return the best of the papers' five systems; None if the search had none of them."""
    return next((name for name in found.best_of_each if name in places.FIVE), None)


def needs(found: Plan, say: Progress) -> Needs:
    """Compare each new system's best plan with that of the best of the five; then give the new one
    a better draft, on the same texts. Its parameters are not searched again.

    Raises:
        RunError: see ``simulate_points``.
    """
    five, plans = best_of_five(found), found.best_of_each
    new = [name for name in places.NEW if name in plans]
    if five is None:
        return {}
    points = [
        Point(f"{name}, {what}", plans[name].candidate.scenario.with_(**changes, runs=found.runs))
        for name in new
        for what, changes in BETTER.items()
    ]
    better = simulate_points(points, say, f"better drafts for {len(new)} plans")
    goal = found.goal.name
    stated = plans[five].outcome.observations[goal]
    told = {name: {STATED: gain(found, name, five)} for name in new}
    for name in new:
        for what in BETTER:
            own = better[f"{name}, {what}"].observations[goal]
            told[name][what] = _ratio(found, own, stated)
    return told
