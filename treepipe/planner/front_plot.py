"""The plot of the Pareto front: every ranked plan as a mark, by the goal and one other each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil
from typing import Any

from matplotlib.figure import Figure

from treepipe.planner.front import Front
from treepipe.planner.halving import SearchResult
from treepipe.results.metrics import in_words, metric
from treepipe.results.plots import AMBER, BLACK, BLUE, GREY, clean

ON = {"marker": "o", "color": BLUE, "ms": 8, "mec": "white", "label": "on the front"}
BEATEN = {"marker": "D", "color": AMBER, "ms": 6, "mec": BLACK, "mew": 0.5, "label": "beaten"}
DOUBTED = {**BEATEN, "mfc": "white", "label": "beaten, not beyond doubt"}
ACROSS = 2
"""Number of panels side by side."""
LABELLED = 12
"""Largest number of marks that are all numbered; of more, only the front's are."""
SIZE = 8
"""Font size of a number (points); a digit is less than 0.65 as wide, a line 1.3 as high."""
BESIDE = (6, 4)
"""Offset of a number from the middle of its mark (points)."""


def search_figure(result: SearchResult) -> Figure:
    """Plot the front of a search."""
    title = f"{result.cluster.name}: plans by their places in the ranking ({result.runs} runs)"
    return front_figure(result.front, result.goal.name, title)


def front_figure(front: Front, goal: str, title: str) -> Figure:
    """Plot a panel per goal against ``goal``, the vertical axis of all; marks have the plans'
    places in the ranking. With two goals a line connects the front; plans beyond are beaten."""
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
    certain = {each.plan: each.beyond_doubt for each in front.beaten}
    groups: list[tuple[dict[str, Any], Sequence[int]]] = [
        (DOUBTED, [plan for plan in certain if not certain[plan]]),
        (BEATEN, [plan for plan in certain if certain[plan]]),
        (ON, front.members),
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
    few = len(front.values) <= LABELLED
    points = panel.figure.dpi / 72
    groups = list[_Numbers]()
    for plan, values in enumerate(front.values):
        if few or plan in front.members:
            mark = values[across], values[up]
            x, y = panel.transData.transform(mark) / points
            own = _Numbers([plan + 1], mark, x, y)
            while met := next((each for each in groups if own.meets(each)), None):
                groups.remove(met)
                own = own.with_those_of(met)
            groups.append(own)
    for each in groups:
        panel.annotate(
            _listed(each.plans),
            each.mark,
            xytext=BESIDE,
            textcoords="offset points",
            fontsize=SIZE,
            color=BLACK,
        )


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A text of plans' numbers, with their mark and the text's position (points)."""

    plans: Sequence[int]
    mark: tuple[float, float]
    x: float
    y: float

    def meets(self, other: _Numbers) -> bool:
        """Return whether two texts at the same offset from their marks would overlap."""
        left, right = sorted((self, other), key=lambda each: each.x)
        wide = 0.65 * SIZE * len(_listed(left.plans))
        return right.x - left.x < wide and abs(self.y - other.y) < 1.3 * SIZE

    def with_those_of(self, other: _Numbers) -> _Numbers:
        return replace(
            max(self, other, key=lambda each: each.x), plans=sorted([*self.plans, *other.plans])
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
    return f"{in_words(goal)} ({metric(goal).unit}), {side} is better"
