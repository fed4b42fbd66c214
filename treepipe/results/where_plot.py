"""The picture of each worker's shares of time: a stacked bar per worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from treepipe.results import plots, timeline
from treepipe.results.where import IDLE_NAME, NAMES, UNNAMED, Shares

STYLES: Mapping[str, tuple[str, str]] = {
    "compute": (timeline.COLORS["compute"], ""),
    "draft": (timeline.COLORS["draft"], ""),
    "evaluate": (timeline.COLORS["evaluate"], "///"),
    "decide": (timeline.COLORS["decide"], ""),
    "prune": (timeline.COLORS["prune"], "xxx"),
    "mask": (plots.YELLOW, "xxx"),
    "receive": (plots.DEEP, "///"),
    "send": (timeline.COLORS["transfer"], "\\\\\\"),
    "desk": (plots.GREY, "---"),
    "control": (plots.PALE, "///"),
    "wake": (plots.SKY, "\\\\\\"),
    "gauge": (plots.BROWN, "+++"),
    "wait": (plots.SILVER, "\\\\\\"),
    IDLE_NAME: (plots.IDLE, ""),
    UNNAMED: ("white", "---"),
}
"""Colour and hatching of each kind; colours that are similar in grey differ by their hatching."""
LIGHT = frozenset({plots.YELLOW, plots.PALE, plots.SILVER, plots.IDLE, "white"})
"""Colours with grey hatching and edges, as white would not show."""


def shares_figure(found: Shares, title: str) -> Figure:
    """Draw a bar per worker, the first one on top."""
    figure = Figure(figsize=(10, 1.8 + 0.4 * len(found)), layout="constrained")
    panel: Any = figure.subplots()
    left = dict.fromkeys(found, 0.0)
    for kind, label in NAMES.items():
        widths = [100 * parts.get(kind, 0.0) for parts in found.values()]
        if any(widths):
            color, hatch = STYLES[kind]
            edge = plots.GREY if color in LIGHT else "white"
            style: dict[str, Any] = {"color": color, "hatch": hatch, "edgecolor": edge, "lw": 0}
            panel.barh(
                list(found), widths, left=list(left.values()), label=label, height=0.7, **style
            )
            left = {d: left[d] + w for d, w in zip(found, widths, strict=True)}
    panel.invert_yaxis()
    panel.set_xlim(0, 100)
    panel.set_xlabel("share of the wall time (%)")
    panel.set_title(title, loc="left", fontsize=10)
    plots.clean(panel, "x")
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    return figure
