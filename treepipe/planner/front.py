"""The Pareto front, the plans that no other one beats in every goal, and its picture.

A plan beats another one if it is as good in all goals and better in one, by the means over the same
runs (to nine digits, so that rounding makes no difference). Each beaten plan names one of the front
that beats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, groupby
from math import ceil, comb
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from treepipe.planner.cluster import FrontGoal
from treepipe.planner.gaps import Simulated, may_be_equal, relative_gap
from treepipe.results.metrics import in_words, metric
from treepipe.results.statistics import ROUNDING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 2
"""Number of panels side by side."""
LABELLED = 12
"""Largest number of marks that are all numbered; of more, only the front's are."""
SIZE = 8
"""Font size of a number (points); a digit is less than 0.65 as wide, a line 1.3 as high."""
BESIDE = (6, 4)
"""Offset of a number from the middle of its mark (points)."""
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


# --- its picture: every ranked plan as a mark, by the goal and one other each --------------------


def front_figure(front: Front, goal: str, title: str) -> Figure:
    """Plot a panel per goal against ``goal``, the vertical axis of all; marks have the plans'
    places in the ranking. With two goals a line connects the front; plans beyond are beaten."""
    from matplotlib.figure import Figure

    from treepipe.results.plots import clean

    vertical = goal if goal in front.goals else front.goals[0]
    others = [each for each in front.goals if each != vertical] or [vertical]
    rows, columns = ceil(len(others) / ACROSS), min(ACROSS, len(others))
    figure = Figure(figsize=(9, 1.2 + 3.4 * rows), layout="constrained")
    panels: list[Any] = [*figure.subplots(rows, columns, squeeze=False).flat]
    for panel, other in zip(panels, others, strict=False):
        _draw(panel, front, other, vertical)
        panel.set_xlabel(_label(other))
        panel.set_ylabel(_label(vertical))
        panel.margins(0.12)
        clean(panel, "both")
    for panel in panels[len(others) :]:
        panel.set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.draw_without_rendering()  # fixes the marks' positions
    for panel, other in zip(panels, others, strict=False):
        _number(panel, front, other, vertical)
    return figure


def _draw(panel: Any, front: Front, across: str, up: str) -> None:
    from treepipe.results.plots import AMBER, BLACK, BLUE, GREY

    on = {"marker": "o", "color": BLUE, "ms": 8, "mec": "white", "label": "on the front"}
    beaten = {"marker": "D", "color": AMBER, "ms": 6, "mec": BLACK, "mew": 0.5, "label": "beaten"}
    doubted = {**beaten, "mfc": "white", "label": "beaten, not beyond doubt"}
    certain = {each.plan: each.beyond_doubt for each in front.beaten}
    groups: list[tuple[dict[str, Any], Sequence[int]]] = [
        (doubted, [plan for plan in certain if not certain[plan]]),
        (beaten, [plan for plan in certain if certain[plan]]),
        (on, front.members),
    ]
    if len(front.goals) == 2:
        ends = sorted((front.values[p][across], front.values[p][up]) for p in front.members)
        panel.plot(*zip(*ends, strict=True), color=GREY, lw=1, ls="--", zorder=1)
    for style, plans in groups:
        if plans:
            points = [(front.values[p][across], front.values[p][up]) for p in plans]
            panel.plot(*zip(*points, strict=True), ls="none", **style)


def _number(panel: Any, front: Front, across: str, up: str) -> None:
    """Put places in the ranking beside the marks; numbers that would overlap are joined to one text
    beside the rightmost of their marks."""
    from treepipe.results.plots import BLACK

    few, points = len(front.values) <= LABELLED, panel.figure.dpi / 72
    marks = {n: (each[across], each[up]) for n, each in enumerate(front.values, 1)}
    places = {n: panel.transData.transform(mark) / points for n, mark in marks.items()}
    groups = [[n] for n in marks if few or n - 1 in front.members]

    def rightmost(plans: Sequence[int]) -> int:
        return max(plans, key=lambda n: places[n][0])

    def meet(pair: tuple[list[int], list[int]]) -> bool:
        left, right = sorted(pair, key=lambda plans: places[rightmost(plans)][0])
        x, y = places[rightmost(right)] - places[rightmost(left)]
        return bool(x < 0.65 * SIZE * len(_listed(left)) and abs(y) < 1.3 * SIZE)

    while pair := next(filter(meet, combinations(groups, 2)), None):
        groups = [each for each in groups if each not in pair] + [sorted([*pair[0], *pair[1]])]
    for plans in sorted(groups):
        panel.annotate(
            _listed(plans),
            marks[rightmost(plans)],
            xytext=BESIDE,
            textcoords="offset points",
            fontsize=SIZE,
            color=BLACK,
        )


def _listed(places: Sequence[int]) -> str:
    """
    >>> _listed([1, 2, 5, 6, 7, 9])
    '1, 2, 5-7, 9'
    """
    parts = list[str]()
    for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0]):
        numbers = [place for _, place in run]
        long = len(numbers) > 2
        parts += [f"{numbers[0]}-{numbers[-1]}"] if long else map(str, numbers)
    return ", ".join(parts)


def _label(goal: str) -> str:
    side = "less" if metric(goal).less_is_better else "more"
    return f"{in_words(goal)} ({metric(goal).in_unit}), {side} is better"
