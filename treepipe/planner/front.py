"""The Pareto front: the plans that no other one beats in every goal.

A plan beats another one if it is as good in all goals and better in one, by the means over the same
runs (to nine digits, so that rounding makes no difference). Each beaten plan names one of the front
that beats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from treepipe.planner.cluster import FrontGoal
from treepipe.planner.gaps import Simulated, may_be_equal, relative_gap
from treepipe.results.metrics import metric
from treepipe.results.statistics import ROUNDING

USUAL: tuple[FrontGoal, ...] = (
    "time_between_tokens_ms",
    "throughput_tokens_s",
    "time_to_first_token_ms",
    "usd_per_million_tokens",
    "price_usd",
    "joules_per_token",
)
"""Default goals of the front, of which those apply that all plans have."""


@dataclass(frozen=True, slots=True)
class Beaten:
    """A plan that another one beats, both as places in the ranking.

    Attributes:
        relative: the beaten plan's figure over the other's, less 1, by goal; None if one of them is
            not positive.
        beyond_doubt: whether the 95 % interval over the paired runs leaves out 0 in every goal in
            which they differ, for all pairs of plans and all goals together.
    """

    plan: int
    by: int
    relative: dict[str, float | None]
    beyond_doubt: bool


@dataclass(frozen=True, slots=True)
class Front:
    """The plans that no other one beats.

    Attributes:
        values: by goal, the figures of every plan of the ranking.
        members: places in the ranking, ascending.
        beaten: all other plans, ascending.
    """

    goals: tuple[str, ...] = ()
    values: tuple[Mapping[str, float], ...] = ()
    members: tuple[int, ...] = ()
    beaten: tuple[Beaten, ...] = ()

    def as_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return the keys ``front`` and ``dominated`` of a plan's file."""
        return {
            "front": [{"plan": plan, "goals": dict(self.values[plan])} for plan in self.members],
            "dominated": [asdict(each) for each in self.beaten],
        }


def pareto_front(plans: Sequence[Simulated], goals: Sequence[FrontGoal]) -> Front:
    """Find the front of a ranking in ``goals``, which all plans have; by default the usual ones."""
    if not plans:
        return Front()
    known = [goal for goal in USUAL if all(plan.value(goal) is not None for plan in plans)]
    goals = tuple(goals or known)
    table = _table(plans, goals)
    members = _members(table)
    beaten = [
        _beaten(plans, place, next(each for each in members if _beats(table[each], row)), goals)
        for place, row in enumerate(table)
        if place not in members
    ]
    values = tuple({str(goal): plan.value(goal) or 0.0 for goal in goals} for plan in plans)
    return Front(goals, values, tuple(members), tuple(beaten))


def front_members(plans: Sequence[Simulated], goals: Sequence[FrontGoal]) -> list[Simulated]:
    """Return the plans that no other one beats in ``goals``, which all of them have."""
    return [plans[place] for place in _members(_table(plans, goals))] if plans else []


def _table(plans: Sequence[Simulated], goals: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return figures [plans, goals], rounded to nine digits, of which less is better."""
    return np.array(
        [
            [metric(goal).cost(float(f"{plan.value(goal) or 0.0:.9g}")) for goal in goals]
            for plan in plans
        ]
    )


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


def _beaten(plans: Sequence[Simulated], place: int, by: int, goals: Sequence[str]) -> Beaten:
    comparisons = max(1, comb(len(plans), 2) * len(goals))
    gaps = {
        goal: relative_gap(plans[by].runs(goal), plans[place].runs(goal), comparisons)
        for goal in goals
    }
    certain = all(
        gap is not None
        and gap.ends[0] is not None
        and (abs(gap.mean) <= ROUNDING or not may_be_equal(gap))
        for gap in gaps.values()
    )
    relative = {goal: None if gap is None else gap.mean for goal, gap in gaps.items()}
    return Beaten(place, by, relative, certain)
