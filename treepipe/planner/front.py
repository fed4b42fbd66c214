"""The Pareto front: the plans that no other one beats in every goal.

A plan beats another one if it is as good in all goals and better in one, by the means over the same
runs (to nine digits, so that rounding makes no difference). Each beaten plan names one of the front
that beats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from treepipe.planner.candidates import Candidate
from treepipe.planner.cluster import FrontGoal
from treepipe.planner.gaps import Runs, relative_gap
from treepipe.results.metrics import metric
from treepipe.results.statistics import ROUNDING
from treepipe.sim.points import Outcome

USUAL: tuple[FrontGoal, ...] = (
    "time_between_tokens_ms",
    "throughput_tokens_s",
    "time_to_first_token_ms",
    "usd_per_million_tokens",
    "price_usd",
    "joules_per_token",
)
"""What plans are weighed by where a file does not say it, as far as all of them have it."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A plan and its figures."""

    candidate: Candidate
    outcome: Outcome

    def value(self, goal: str) -> float | None:
        """The mean of a figure, or a price; None where the plan has none."""
        if goal in self.candidate.prices:
            return self.candidate.prices[goal]
        found = self.outcome.metrics.get(goal)
        return None if found is None else found.mean

    def runs(self, goal: str) -> Runs:
        """The figure in every run; a price is the same in all of them."""
        if goal in self.candidate.prices:
            count = max((len(each) for each in self.outcome.observations.values()), default=1)
            return Runs([self.candidate.prices[goal]] * count)
        return Runs.of(self.outcome, goal)


@dataclass(frozen=True, slots=True)
class Beaten:
    """A plan that another one beats, both as places in the ranking.

    Attributes:
        relative: the beaten one's figure over the other's, less 1, by goal; None where one of them
            is not positive.
        certain: in every goal in which they differ the 95 % interval over the paired runs leaves
            out 0, all pairs of plans and all goals together.
    """

    plan: int
    by: int
    relative: dict[str, float | None]
    certain: bool


@dataclass(frozen=True, slots=True)
class Front:
    """The plans that no other one beats.

    Attributes:
        goals: what they are weighed by.
        values: by goal, of every plan of the ranking.
        members: places in the ranking, ascending.
        beaten: all others, ascending.
    """

    goals: tuple[str, ...] = ()
    values: tuple[Mapping[str, float], ...] = ()
    members: tuple[int, ...] = ()
    beaten: tuple[Beaten, ...] = ()

    def as_dict(self) -> dict[str, list[dict[str, Any]]]:
        """The keys ``front`` and ``dominated`` of a plan's file."""
        return {
            "front": [{"plan": plan, "goals": dict(self.values[plan])} for plan in self.members],
            "dominated": [
                {
                    "plan": each.plan,
                    "by": each.by,
                    "relative": each.relative,
                    "beyond_doubt": each.certain,
                }
                for each in self.beaten
            ],
        }


def pareto_front(plans: Sequence[Weighed], goals: Sequence[FrontGoal]) -> Front:
    """The front of a ranking. Args: ``goals``: that all have; none: the usual ones."""
    if not plans:
        return Front()
    known = [goal for goal in USUAL if all(plan.value(goal) is not None for plan in plans)]
    chosen = tuple(goals or known)
    table = _table(plans, chosen)
    members = _members(table)
    beaten = []
    for index in range(len(plans)):
        if index not in members:
            by = next(each for each in members if _beats(table[each], table[index]))
            beaten.append(_beaten(plans, index, by, chosen))
    values = tuple(
        {str(goal): value for goal in chosen if (value := plan.value(goal)) is not None}
        for plan in plans
    )
    return Front(chosen, values, tuple(members), tuple(beaten))


def front_members(plans: Sequence[Weighed], goals: Sequence[FrontGoal]) -> list[int]:
    """Places of the plans that no other one beats. Args: ``goals``: that all of them have."""
    return _members(_table(plans, goals)) if plans else []


def _table(plans: Sequence[Weighed], goals: Sequence[str]) -> npt.NDArray[np.float64]:
    """[plans, goals] figures without what may be rounding, of which less is better."""
    rows = []
    for plan in plans:
        values = [plan.value(goal) for goal in goals]
        rows.append([float(f"{value:.9g}") for value in values if value is not None])
    signs = [1.0 if metric(goal).less_is_better else -1.0 for goal in goals]
    return np.asarray(np.array(rows) * np.array(signs), float)


def _members(table: npt.NDArray[np.float64]) -> list[int]:
    return [i for i, row in enumerate(table) if not any(_beats(other, row) for other in table)]


def _beats(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> bool:
    """
    >>> _beats(np.array([1.0, 2.0]), np.array([1.0, 3.0]))
    True
    >>> _beats(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    False
    """
    return bool((one <= other).all() and (one < other).any())


def _beaten(plans: Sequence[Weighed], index: int, by: int, goals: Sequence[str]) -> Beaten:
    better, worse = plans[by], plans[index]
    comparisons = max(1, comb(len(plans), 2) * len(goals))
    relative = dict[str, float | None]()
    certain = True
    for goal in goals:
        gap = relative_gap(better.runs(goal), worse.runs(goal), comparisons)
        relative[goal] = None if gap is None else gap.mean
        if gap is None or gap.low is None or gap.high is None:
            certain = False
        elif abs(gap.mean) > ROUNDING:
            certain = certain and not gap.low <= 0 <= gap.high
    return Beaten(index, by, relative, certain)
