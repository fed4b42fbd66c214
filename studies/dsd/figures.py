"""The plots of the study ``dsd-region``; numbers come in, figures go out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from treepipe.results.plots import BLUE, GREEN, GREY, LEGEND, MIST, ORANGE, clean
from treepipe.studies.dsd.adaptive import Relaxed
from treepipe.studies.dsd.claims import REGION_NODES, REGION_RATIO
from treepipe.studies.dsd.testbed import Cell, Measured
from treepipe.studies.reproduction import published

LINES = ((ORANGE, "--"), (BLUE, "-"), (GREEN, "-."), (GREY, ":"))
"""Colour and dashes of a way of decoding."""


def map_figure(
    cells: Sequence[Cell], seen: Mapping[str, Measured], varied: Mapping[str, Measured]
) -> Figure:
    """Gain over N and t1/t0: by the formula, simulated, and with links that vary."""
    figure = Figure(figsize=(12.5, 5.2), layout="constrained")
    axes: Any = figure.subplots(1, 3, sharey=True)
    formula = {cell.label: cell.gain for cell in cells}
    simulated = {label: each.gain.mean for label, each in seen.items()}
    disturbed = {label: each.gain.mean for label, each in varied.items()}
    limits = min(simulated.values()), max(*simulated.values(), *formula.values())
    titles = ("the paper's formula", "simulated", "simulated, links with jitter and loss")
    for panel, values, title in zip(axes, (formula, simulated, disturbed), titles, strict=True):
        image = _map(panel, cells, values, limits)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("t1 / t0")
    axes[0].set_ylabel("N, nodes")
    figure.colorbar(image, ax=axes, label="gain over plain decoding", shrink=0.9)
    figure.suptitle("DSD: gain of speculation (black frame: the claimed best region)")
    return figure


def _map(
    panel: Any, cells: Sequence[Cell], values: Mapping[str, float], limits: tuple[float, float]
) -> Any:
    nodes = sorted({cell.nodes for cell in cells})
    ratios = sorted({cell.ratio for cell in cells})
    grid = np.full((len(nodes), len(ratios)), np.nan)
    middle = sum(limits) / 2
    for cell in cells:
        value = values.get(cell.label)
        if value is None:
            continue
        row, column = nodes.index(cell.nodes), ratios.index(cell.ratio)
        grid[row, column] = value
        color = "white" if value < middle else "black"
        text = {"ha": "center", "va": "center", "fontsize": 7.5}
        panel.text(column, row, f"{value:.2f}", color=color, **text)
    image = panel.imshow(
        grid, origin="lower", aspect="auto", cmap="viridis", vmin=limits[0], vmax=limits[1]
    )
    panel.set_xticks(range(len(ratios)), [f"{ratio:g}" for ratio in ratios], fontsize=8)
    panel.set_yticks(range(len(nodes)), [str(n) for n in nodes])
    left, right = _places(ratios, REGION_RATIO)
    low, high = _places(nodes, REGION_NODES)
    panel.add_patch(
        Rectangle(
            (left - 0.5, low - 0.5), right - left + 1, high - low + 1, fill=False, ec="black", lw=2
        )
    )
    return image


def _places(values: Sequence[float], bounds: tuple[float, float]) -> tuple[int, int]:
    inside = [i for i, value in enumerate(values) if bounds[0] <= value <= bounds[1]]
    return inside[0], inside[-1]


def ways_figure(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    cells: Sequence[Cell],
    seen: Mapping[str, Measured],
) -> Figure:
    """All cells on one axis: N and t1/t0 matter by (N - 1) t1 / t0 only."""
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    panel: Any = figure.subplots()
    low = (REGION_NODES[0] - 1) * REGION_RATIO[0]
    high = (REGION_NODES[1] - 1) * REGION_RATIO[1]
    panel.axvspan(low, high, color=MIST, lw=0, label="the claimed region")
    for (name, curve), (color, dashes) in zip(curves.items(), LINES, strict=False):
        panel.plot(*zip(*curve, strict=True), color=color, ls=dashes, label=name)
    points = [(cell.ways, seen[cell.label].gain.mean) for cell in cells if cell.label in seen]
    panel.plot(*zip(*points, strict=True), "o", color=BLUE, ms=4, mec="white", label="simulated")
    panel.set_xscale("log")
    panel.set_xlabel("(N - 1) t1 / t0: communication of a pass over its compute")
    panel.set_ylabel("gain over plain decoding")
    panel.legend(loc="lower right", **LEGEND)
    clean(panel, "both")
    figure.suptitle("DSD: gain against communication over compute")
    return figure


def adaptive_figure(runs: Sequence[Relaxed]) -> Figure:
    """Speed-up over the exact rule, and the tokens it is paid with."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes: Any = figure.subplots(2, 1, sharex=True)
    taus = [each.tau_max for each in runs]
    base = runs[0]
    style = {"marker": "o", "ms": 7, "mec": "white"}
    low, high = published()["dsd"]["adaptive_gain"]
    axes[0].axhspan(low, high, color=MIST, lw=0, label=f"claimed: {low - 1:.0%} to {high - 1:.0%}")
    speed = [base.token_ms / each.token_ms for each in runs]
    axes[0].plot(taus, speed, color=BLUE, label="measured time", **style)
    windows = [each.tokens / base.tokens for each in runs]
    axes[0].plot(taus, windows, color=GREY, ls="--", label="tokens per window", **style)
    axes[0].set_ylabel("over the exact rule")
    axes[1].plot(taus, [each.differing for each in runs], color=ORANGE, **style)
    axes[1].set_ylabel("share of tokens that\nexact decoding would not choose")
    axes[1].set_xlabel("tau_max (0: exact)")
    axes[0].legend(loc="lower right", **LEGEND)
    for panel in axes:
        clean(panel)
    figure.suptitle("Adaptive verification on the bundled pair")
    return figure
