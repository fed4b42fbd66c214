"""The tornado plot: a pair of bars per input, the input with the largest effect on top."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from treepipe.planner.gaps import shown
from treepipe.results.metrics import in_words
from treepipe.results.plots import AMBER, BLACK, BLUE, clean

if TYPE_CHECKING:
    from treepipe.planner.sensitivity import Sensitivity

THICK = 0.36
"""Height of a bar; rows are 1 high."""
WIDTH = 80
"""Width of a title in characters; a plan's label may be longer than the panel."""


def tornado_figure(rows: Sequence[Sensitivity], title: str, goal: str, step: float) -> Figure:
    """Plot both changes by ``step`` as bars with labels, the larger one with its interval."""
    figure = Figure(figsize=(9, 1.8 + 0.55 * len(rows)), layout="constrained")
    panel: Any = figure.subplots()
    styles: dict[str, dict[str, Any]] = {
        "down": {"color": AMBER, "hatch": "///", "edgecolor": "white", "lw": 0},
        "up": {"color": BLUE},
    }
    for side, style in styles.items():
        sign = -1 if side == "down" else 1
        places = [row + sign * THICK / 2 for row in range(len(rows))]
        changes = [getattr(row, side) for row in rows]
        name = f"input {sign * step:+.0%}"
        panel.barh(places, [100 * each for each in changes], THICK, label=name, **style)
        for place, row, change in zip(places, rows, changes, strict=True):
            _mark(panel, place, row, change, larger=row.larger == side)
    panel.set_yticks(range(len(rows)), [row.label for row in rows])
    panel.invert_yaxis()
    panel.axvline(0, color=BLACK, lw=0.8)
    panel.margins(x=0.15)
    panel.set_xlabel(f"change of {in_words(goal)} (%); lines: 95 % intervals of the larger changes")
    panel.set_title(fill(title, WIDTH), loc="left", fontsize=10)
    clean(panel, "x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _mark(panel: Any, place: float, row: Sensitivity, change: float, *, larger: bool) -> None:
    """Write the change beyond the bar's end; draw the interval if the bar is the larger one."""
    ends = [change]
    if larger and row.size and row.low is not None and row.high is not None:
        panel.plot([100 * row.low, 100 * row.high], [place] * 2, color=BLACK, lw=1.2)
        ends += [row.low, row.high]
    right = change >= 0
    panel.annotate(
        shown(change),
        (100 * (max(ends) if right else min(ends)), place),
        xytext=(4 if right else -4, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        fontsize=8,
        color=BLACK,
    )
