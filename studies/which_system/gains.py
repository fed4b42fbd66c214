"""How much a system gains: over plain decoding, and of what the winner gains."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import TypeAlias

from treepipe.planner.halving import Found, Ranked
from treepipe.planner.limits import is_least_best
from treepipe.results.statistics import Interval, ratio_observations
from treepipe.scenario.schema import ScheduleName
from treepipe.studies.which_system.places import METRICS, PLAIN, Goal, Place, Settings

BUSY = 0.9
"""A server that is busy for a larger share of the time limits what depends on it."""
Results: TypeAlias = dict[tuple[Place, Goal], Found]


def gain(ranked: Ranked, plain: Ranked, metric: str) -> Interval:
    """How many times better than plain decoding, on the same runs."""
    ours, theirs = (each.outcome.observations[metric] for each in (ranked, plain))
    above, below = (theirs, ours) if is_least_best(metric) else (ours, theirs)
    return Interval.over(ratio_observations(above, below))


def shares_of(found: Results, schedule: ScheduleName, goal: Goal) -> list[float]:
    """The shares of the winner's gain that a system reaches, a cluster each."""
    shares = []
    for (_, its_goal), each in found.items():
        ranked = each.best_of_each.get(schedule)
        if its_goal == goal and ranked is not None:
            metric, plain = METRICS[goal], each.best_of_each[PLAIN]
            shares.append(gain(ranked, plain, metric).mean / gain(each.best, plain, metric).mean)
    return shares


def geometric_mean(shares: list[float]) -> float:
    """
    >>> round(geometric_mean([0.5, 2.0]), 6)
    1.0
    """
    return exp(fmean(map(log, shares)))


def rivals(found: Found) -> list[str]:
    """Other systems that cannot be told from the best."""
    best = found.best.candidate.schedule
    return [name for name, each in found.best_of_each.items() if each.tied and name != best]


def draft_busy(ranked: Ranked) -> float:
    """Utilization of the draft server (there is one)."""
    return ranked.outcome.utilization["draft0"].mean


def slower_than_plain(found: Results, goal: Goal) -> list[Ranked]:
    """The best plans of systems that even so lose to plain decoding."""
    return [
        ranked
        for (_, its_goal), each in found.items()
        if its_goal == goal
        for ranked in each.best_of_each.values()
        if gain(ranked, each.best_of_each[PLAIN], METRICS[goal]).mean < 1
        and ranked.candidate.schedule != PLAIN
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
            won.setdefault(each.best.candidate.schedule, []).append(name)
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
