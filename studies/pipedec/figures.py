"""Plots of the study of PipeDec."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from treepipe.results.metrics import METRIC
from treepipe.results.plots import (
    BLUE,
    DEEP,
    GREY,
    LEGEND,
    MARKS,
    ORANGE,
    PALE,
    band,
    clean,
    doubling,
)
from treepipe.studies.layered import curve, right
from treepipe.studies.pipedec.testbed import THROUGHPUT, Found

COLOURS = {"7-stage": PALE, "14-stage": BLUE, "21-stage": DEEP, "stpp": ORANGE}
NAMES = {"7-stage": "7 groups of 2", "14-stage": "14 stages", "21-stage": "21 stages"}
METHODS = {"pp": GREY, "stpp": ORANGE, "pipedec": BLUE}


def speedup_figure(found: Found) -> Figure:
    """Speed-up over the plain pipeline and over the static tree, against acceptance."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    shares = [right(level) for level in found.levels.six]
    for name, label in NAMES.items():
        style = {"color": COLOURS[name], "label": f"PipeDec, {label}"}
        band(axes[0], shares, found.over_plain(name), style)
        band(axes[1], shares, found.over_static(name), style)
    band(axes[0], shares, found.over_plain("stpp"), {"color": ORANGE, "label": "static tree"})
    axes[0].set_ylabel("times as fast as the plain pipeline")
    axes[1].set_ylabel("times as fast as the static tree")
    for panel in axes:
        panel.set_xlabel("share of tokens that are the draft's first candidate")
        panel.set_ylim(bottom=0)
        clean(panel)
    axes[0].legend(**LEGEND)
    figure.suptitle("PipeDec on RTX 3090 (21 stages: with RTX 4090 and L40)")
    return figure


def grid_figure(found: Found) -> Figure:
    """Time between tokens and hit rate against the width, a line per number of candidates."""
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    axes: Any = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    widths = sorted({width for width, _ in found.grid})
    counts = sorted({count for _, count in found.grid})
    shades = [GREY, ORANGE, PALE, BLUE][-len(counts) :]
    for panel, metric, label in (
        (axes[0], METRIC, "time between tokens (ms)"),
        (axes[1], "hit_rate", "hit rate"),
    ):
        for count, colour in zip(counts, shades, strict=True):
            values = [found.grid[width, count].metrics[metric].mean for width in widths]
            style = {"color": colour, "marker": MARKS[colour], "ms": 4}
            panel.plot(widths, values, label=f"{count} candidates", **style)
        panel.set_ylabel(label)
        clean(panel)
    axes[0].legend(**LEGEND)
    doubling(axes[1], widths)
    axes[1].set_xlabel("width w: most nodes of a tree layer")
    figure.suptitle("PipeDec, 14 stages: candidates per node and width")
    return figure


def together_figure(found: Found) -> Figure:
    """Throughput against the number of requests side by side."""
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    panel: Any = figure.subplots()
    ks = sorted({count for _, count in found.together})
    for method, colour in METHODS.items():
        outcomes = {k: found.together[method, k] for k in ks}
        curve(panel, outcomes, THROUGHPUT, {"color": colour, "label": method})
    panel.set_xticks(ks)
    panel.set_xlabel("requests side by side (k)")
    panel.set_ylabel("throughput (tokens/s)")
    panel.set_ylim(bottom=0)
    panel.legend(**LEGEND)
    clean(panel)
    figure.suptitle("14 cards: PipeDec serves one request after another")
    return figure
