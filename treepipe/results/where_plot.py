"""The picture of each worker's shares of time: a stacked bar per worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from treepipe.results import plots, timeline
from treepipe.results.where import IDLE_NAME, NAMES, UNNAMED, Shares

COLORS: Mapping[str, str] = {
    **timeline.COLORS,
    "mask": plots.YELLOW,
    "receive": plots.DEEP,
    "send": timeline.COLORS["transfer"],
    "desk": plots.GREY,
    "control": plots.PALE,
    "wake": plots.SKY,
    "gauge": plots.BROWN,
    "wait": plots.SILVER,
    IDLE_NAME: plots.IDLE,
    UNNAMED: "white",
}

HATCHES: Mapping[str, str] = {
    "evaluate": "///",
    "prune": "xxx",
    "mask": "xxx",
    "receive": "///",
    "send": "\\\\\\",
    "desk": "---",
    "control": "///",
    "wake": "\\\\\\",
    "gauge": "+++",
    "wait": "\\\\\\",
    UNNAMED: "---",
}
"""Hatching of kinds whose colours are similar in grey."""
LIGHT = frozenset({"mask", "control", "wait", IDLE_NAME, UNNAMED})
"""Kinds with grey hatching and edges, as white would not show."""


def draw_shares(found: Shares, title: str, path: Path, option: str = "") -> None:
    """Write the stacked bars. Raises ``WriteError``; ``option`` asked for the picture."""
    plots.save_figure(shares_figure(found, title), path, 110, option)


def shares_figure(found: Shares, title: str) -> Figure:
    """Draw a bar per worker, the first one on top."""
    figure = Figure(figsize=(10, 1.8 + 0.4 * len(found)), layout="constrained")
    panel: Any = figure.subplots()
    left = dict.fromkeys(found, 0.0)
    for kind, label in NAMES.items():
        widths = [100 * parts.get(kind, 0.0) for parts in found.values()]
        if any(widths):
            panel.barh(
                list(found),
                widths,
                left=list(left.values()),
                color=COLORS[kind],
                hatch=HATCHES.get(kind, ""),
                edgecolor=plots.GREY if kind in LIGHT else "white",
                lw=0,
                label=label,
                height=0.7,
            )
            left = {d: left[d] + w for d, w in zip(found, widths, strict=True)}
    panel.invert_yaxis()
    panel.set_xlim(0, 100)
    panel.set_xlabel("share of the wall time (%)")
    panel.set_title(title, loc="left", fontsize=10)
    plots.clean(panel, "x")
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    return figure
