"""How much a system gains: over plain decoding, and of what the winner gains."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import TypeAlias

from treepipe.planner.halving import Found, Ranked
from treepipe.results.metrics import metric
from treepipe.results.statistics import Interval, ratio_observations
from treepipe.scenario.schema import ScheduleName
from treepipe.studies.which_system.places import PLAIN, Goal, Place, Settings

BUSY = 0.9
"""A server that is busy for a larger share of the time limits what depends on it."""
Results: TypeAlias = dict[tuple[Place, Goal], Found]


def gain(found: Found, schedule: ScheduleName, over: ScheduleName = PLAIN) -> Interval:
    """How many times better a system's best plan is than another's, on the same runs; the interval
    includes what the inputs' uncertainty leaves of it."""
    goal, least = found.cluster.search.goal, metric(found.cluster.search.goal).less_is_better
    above, below = (over, schedule) if least else (schedule, over)
    best = found.best_of_each
    sampled = Interval.over(
        ratio_observations(*(best[name].outcome.observations[goal] for name in (above, below)))
    )
    if found.cases is None or schedule == over:
        return sampled
    return found.cases.ratio_widened(above, below, sampled)


def shares_of(found: Results, schedule: ScheduleName, goal: Goal) -> list[float]:
    """The shares of the winner's gain that a system reaches, a cluster each."""
    shares = []
    for (_, its_goal), each in found.items():
        if its_goal == goal and schedule in each.best_of_each:
            shares.append(gain(each, schedule, winner(each)).mean)
    return shares


def geometric_mean(shares: list[float]) -> float:
    """
    >>> round(geometric_mean([0.5, 2.0]), 6)
    1.0
    """
    return exp(fmean(map(log, shares)))


def winner(found: Found) -> ScheduleName:
    return found.best.candidate.schedule


def rivals(found: Found) -> list[str]:
    """Other systems that cannot be told from the best, by the runs or within the inputs'
    uncertainty."""
    best = winner(found)
    others = [name for name in found.best_of_each if name != best]
    return [name for name in others if found.best_of_each[name].tied or _may_win(found, name, best)]


def _may_win(found: Found, schedule: ScheduleName, best: ScheduleName) -> bool:
    high = gain(found, schedule, best).high
    return high is None or high >= 1


def best_in(found: Found) -> float | None:
    """The share of the inputs' cases in which the winner is the best; None without any."""
    if found.cases is None:
        return None
    shares = found.cases.best_in(least=metric(found.cluster.search.goal).less_is_better)
    return shares[winner(found)]


def draft_busy(ranked: Ranked) -> float:
    """Utilization of the draft server (there is one)."""
    return ranked.outcome.utilization["draft0"].mean


def slower_than_plain(found: Results, goal: Goal) -> list[Ranked]:
    """The best plans of systems that even so lose to plain decoding."""
    return [
        ranked
        for (_, its_goal), each in found.items()
        if its_goal == goal
        for name, ranked in each.best_of_each.items()
        if name != PLAIN and gain(each, name).mean < 1
    ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The winner for a goal.

    Attributes:
        who: clusters by the system that is best there.
        clear: clusters where no other system can be taken for it.
        first: the best choice if one system must serve all clusters.
        mean, worst: of the winner's gain that it reaches.
        slower: of ``plans``, those that lose to plain decoding; None if none does.
        busy: of these, those with a draft server that is busy for more than ``BUSY``.
    """

    who: str
    clear: str
    first: str
    mean: float
    worst: float
    slower: int | None
    plans: int
    busy: int

    @classmethod
    def of(cls, settings: Settings, found: Results, goal: Goal) -> Verdict:
        places = {place.name: each for (place, its), each in found.items() if its == goal}
        won: dict[str, list[str]] = {}
        for name, each in places.items():
            won.setdefault(winner(each), []).append(name)
        shares = {name: shares_of(found, name, goal) for name in settings.schedules}
        means = {n: geometric_mean(s) for n, s in shares.items() if len(s) == len(places)}
        first = max(means, key=lambda name: means[name])
        losers = slower_than_plain(found, goal)
        return cls(
            "; ".join(f"{name}: {', '.join(names)}" for name, names in won.items()),
            ", ".join(name for name, each in places.items() if not rivals(each)) or "nowhere",
            first,
            means[first],
            min(shares[first]),
            len(losers) or None,
            sum(len(each.best_of_each) - 1 for each in places.values()),
            sum(draft_busy(ranked) > BUSY for ranked in losers),
        )
