"""The Pareto front: every plan of the ranking as a mark, by the goal and one other at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from treepipe.planner.front import Front
from treepipe.planner.limits import is_least_best
from treepipe.results.metrics import UNITS
from treepipe.results.plots import AMBER, BLACK, BLUE, GREY, clean, save_figure

ON = {"marker": "o", "color": BLUE, "ms": 8, "mec": "white", "label": "on the front"}
BEATEN = {"marker": "D", "color": AMBER, "ms": 6, "mec": BLACK, "mew": 0.5, "label": "beaten"}
DOUBTED = {**BEATEN, "mfc": "white", "label": "beaten, not beyond doubt"}
ACROSS = 2
"""Panels side by side."""
LABELLED = 12
"""Most marks of a panel that have a number; of more only those of the front do."""


def draw_front(front: Front, goal: str, title: str, path: Path) -> None:
    """Write the picture. Raises ``WriteError``."""
    save_figure(front_figure(front, goal, title), path, 110, "--plot")


def front_figure(front: Front, goal: str, title: str) -> Figure:
    """A panel per goal beside ``goal``, which is the vertical axis of all; marks have the plans'
    places in the ranking. Two goals have a line through their front: what lies above or behind it
    is beaten."""
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
    return figure


def _draw(panel: Any, front: Front, across: str, up: str) -> None:
    certain = {each.plan: each.certain for each in front.beaten}
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
    _number(panel, front, across, up)


def _number(panel: Any, front: Front, across: str, up: str) -> None:
    """Places in the ranking beside the marks, plans of the same figures together."""
    few = len(front.values) <= LABELLED
    together: dict[tuple[float, float], list[int]] = {}
    for plan, values in enumerate(front.values):
        if few or plan in front.members:
            together.setdefault((values[across], values[up]), []).append(plan + 1)
    for place, plans in together.items():
        panel.annotate(
            ", ".join(map(str, plans)),
            place,
            xytext=(6, 4),
            textcoords="offset points",
            fontsize=8,
            color=BLACK,
        )


def _label(goal: str) -> str:
    unit = {"price_usd": "USD", "price_usd_per_hour": "USD/h"}.get(goal) or UNITS[goal]
    return f"{goal} ({unit}), {'less' if is_least_best(goal) else 'more'} is better"
