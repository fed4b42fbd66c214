"""Styles of all plots: one palette, and the same styles for the same things.

Invariant: no other file defines a colour. The colours are those of Okabe and Ito (2008), which
colour-blind readers can distinguish; a plot also varies marks, lines, hatching or direct labels
where colours are similar in grey.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from treepipe.files.outputs import write_file
from treepipe.results.statistics import Interval

BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY, AMBER = "#56b4e9", "#e69f00"
BLACK, GREY, SILVER, IDLE, MIST = "#222222", "#777777", "#dddddd", "#ebebeb", "#f2f2f2"
"""Colours of text and marks, of lighter lines, of grids, and of backgrounds."""
PAPER, DIM, NIGHT, DUSK = "#ffffff", "#5c5c5c", "#17191c", "#26292e"
"""Colours of reports' pages: background and captions, and the same two in dark mode."""
PAGE = ["BLACK", "GREY", "SILVER", "IDLE", "MIST", "BLUE", "SKY", "PAPER", "DIM", "NIGHT", "DUSK"]
"""Names of the colours of reports' pages."""
MARKS = {BLUE: "o", ORANGE: "s", GREEN: "^", PURPLE: "D", SKY: "v", AMBER: "P", GREY: "X"}
"""The mark of each colour on a line: some colours look alike in grey."""
CIRCLE = {"color": ORANGE, "marker": "o", "ls": "none", "ms": 7, "mec": "white"}
"""Style of single values beside a line."""
LEGEND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "framealpha": 1.0}
"""Style of a legend with an opaque background."""


def save_figure(figure: Figure, path: Path, dpi: float, option: str = "") -> None:
    """Write a picture in the format of its file name. Raises ``WriteError`` if it cannot."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=dpi)
    write_file(path, drawn.getvalue(), option)


def band(panel: Any, x: Sequence[float], values: Sequence[Interval], style: dict[str, Any]) -> None:
    """Draw a line through the means, and the intervals as a band where they exist."""
    means = [value.mean for value in values]
    panel.plot(x, means, marker=MARKS[style["color"]], ms=4, **style)
    low = [value.mean if value.low is None else value.low for value in values]
    high = [value.mean if value.high is None else value.high for value in values]
    panel.fill_between(x, low, high, color=style["color"], alpha=0.2, lw=0)


def whiskers(values: Sequence[Interval]) -> list[list[float]]:
    """Return the lengths of error bars below and above means; 0 where an interval has no end."""
    below = [0.0 if each.low is None else each.mean - each.low for each in values]
    above = [0.0 if each.high is None else each.high - each.mean for each in values]
    return [below, above]


def doubling(panel: Any, values: Sequence[float]) -> None:
    """Set a horizontal axis on which doublings have equal length; ticks at the values only."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(values, [f"{value:g}" for value in values])
    panel.minorticks_off()


def clean(panel: Any, axis: str = "y") -> None:
    """Draw a light grid along the values' axis, without a frame above and to the right."""
    panel.grid(axis=axis, color=SILVER, lw=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
