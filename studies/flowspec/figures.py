"""Plots of the study ``flowspec-table``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from treepipe.results.plots import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    LEGEND,
    MARKS,
    ORANGE,
    PURPLE,
    SKY,
    clean,
    doubling,
)
from treepipe.studies.flowspec.curves import Curves
from treepipe.studies.flowspec.testbed import METHODS, MODELS, PROMPT_TOKENS, WITHOUT_SLIP, Size
from treepipe.studies.study import Entry

COLORS = {
    "naive_pp": GREY,
    "pruned_pp": GREEN,
    "flowspec_without_score_segmentation": PURPLE,
    "flowspec_with_score_expansion": SKY,
    "pipedec": ORANGE,
    WITHOUT_SLIP: AMBER,
    "flowspec": BLUE,
}
MAIN = ("naive_pp", "pipedec", "flowspec")
NAMES = {
    "mt_bench": "MT-bench",
    "humaneval": "HumanEval",
    "gsm8k": "GSM8K",
    "alpaca": "Alpaca",
    "cnn_dm": "CNN/DM",
    "natural_questions": "Nat. Ques.",
}
TOP1 = "share of positions where the draft's first candidate is right"


def table(entries: Sequence[Entry]) -> Figure:
    """Table 1, a panel per model and temperature."""
    cells = {e.key: e for e in entries}
    figure = Figure(figsize=(14, 7), layout="constrained")
    axes: Any = figure.subplots(2, len(MODELS), sharex=True)
    for column, model in enumerate(MODELS):
        for row, temperature in enumerate(("t0", "t1")):
            panel = axes[row][column]
            for number, method in enumerate(MAIN):
                own = [cells[f"{model}/{temperature}/{method}/{d}"] for d in PROMPT_TOKENS]
                _marks(panel, own, method, 0.22 * (number - 1))
            panel.set_title(f"{model}, T = {temperature[1:]}", fontsize=10)
            panel.set_ylim(bottom=0)
            panel.set_xticks(range(len(NAMES)), list(NAMES.values()), rotation=35, ha="right")
            clean(panel)
        axes[0][column].tick_params(labelbottom=False)
    for row in axes:
        row[0].set_ylabel("tokens per second")
    _legend(figure, axes[0][0])
    return figure


def _marks(panel: Any, entries: Sequence[Entry], method: str, shift: float) -> None:
    """Predictions with their intervals, published figures as crosses on them."""
    places = np.arange(len(entries)) + shift
    values = np.array([e.predicted for e in entries], float)
    low = np.array([e.predicted if e.low is None else e.low for e in entries], float)
    high = np.array([e.predicted if e.high is None else e.high for e in entries], float)
    style: dict[str, Any] = {"color": COLORS[method], "label": f"{method}, predicted"}
    panel.errorbar(
        places,
        values,
        (values - low, high - values),
        fmt=MARKS[COLORS[method]],
        ms=5,
        capsize=2,
        **style,
    )
    known = [(x, e.published) for x, e in zip(places, entries, strict=True) if e.published]
    marks: dict[str, Any] = {"color": "black", "marker": "x", "ls": "none", "ms": 6, "zorder": 4}
    panel.plot([x for x, _ in known], [y for _, y in known], label="published", **marks)


def _legend(figure: Figure, panel: Any) -> None:
    """One for all panels, each label once."""
    handles = dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, **LEGEND)


def ablation_and_sweep(ablation: Sequence[Entry], sweep: Sequence[Entry]) -> Figure:
    """Table 2 at both temperatures; throughput against link bandwidth."""
    figure = Figure(figsize=(14, 4.8), layout="constrained")
    axes: Any = figure.subplots(1, 3)
    cells = {e.key: e for e in ablation}
    methods = [m for m in METHODS if m not in ("pipedec", WITHOUT_SLIP)]
    order = sorted(methods, key=list(COLORS).index)
    datasets = [d for d in NAMES if f"ablation/t0/naive_pp/{d}" in cells]
    for panel, temperature in zip(axes, ("t0", "t1"), strict=False):
        for number, method in enumerate(order):
            own = [cells[f"ablation/{temperature}/{method}/{d}"] for d in datasets]
            _marks(panel, own, method, 0.16 * (number - 2))
        panel.set_xticks(range(len(datasets)), [NAMES[d] for d in datasets])
        panel.set_title(f"ablation, llama2-chat-7b, T = {temperature[1:]}", fontsize=10)
        panel.set_ylim(bottom=0)
        panel.set_ylabel("tokens per second")
        clean(panel)
    _sweep(axes[2], sweep)
    handles: dict[str, Any] = {}
    for panel in (axes[0], axes[2]):
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, **LEGEND)
    return figure


def _sweep(panel: Any, sweep: Sequence[Entry]) -> None:
    rates = sorted({int(e.key.split("/")[0].split("=")[1]) for e in sweep})
    cells = {e.key: e for e in sweep}
    for method in MAIN:
        own = [cells[f"bandwidth={rate}/{method}"] for rate in rates]
        values = [e.predicted for e in own]
        style = {"color": COLORS[method], "marker": MARKS[COLORS[method]]}
        panel.plot(rates, values, label=f"{method}, predicted", **style)
    doubling(panel, rates)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("link bandwidth (Mbit/s)")
    panel.set_title("llama2-chat-7b, MT-bench, T = 0", fontsize=10)
    clean(panel)


def curves(by_size: Mapping[Size, Curves]) -> Figure:
    """What was simulated, and the parabolas through it that the cells are read off."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes: Any = figure.subplots(1, len(by_size), squeeze=False)[0]
    for panel, (size, own) in zip(axes, by_size.items(), strict=True):
        for method, curve in own.items():
            top1 = [x for x, _ in curve.points]
            fine = np.linspace(min(top1), max(top1), 100)
            color = COLORS[method]
            panel.plot(fine, [curve(x) for x in fine], color=color)
            panel.plot(
                top1, [y for _, y in curve.points], MARKS[color], color=color, ms=4, label=method
            )
        panel.set_title(f"{size} models", fontsize=10)
        panel.set_xlabel(TOP1)
        panel.set_ylim(bottom=0)
        clean(panel)
    axes[0].set_ylabel("time between tokens (ms)")
    _legend(figure, axes[0])
    return figure


def depths(grid: Mapping[tuple[int, int], float]) -> Figure:
    """FlowSpec's throughput by the depths of its first tree and of its expansions."""
    first, second = sorted({a for a, _ in grid}), sorted({b for _, b in grid})
    values = np.array([[grid[a, b] for b in second] for a in first])
    figure = Figure(figsize=(6.6, 5.2), layout="constrained")
    panel: Any = figure.subplots()
    image = panel.imshow(values, origin="lower", cmap="viridis", aspect="auto")
    middle = (values.min() + values.max()) / 2
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            color = "black" if value > middle else "white"
            panel.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)
    panel.set_xticks(range(len(second)), [str(b) for b in second])
    panel.set_yticks(range(len(first)), [str(a) for a in first])
    panel.set_xlabel("d_exp: depth of an expansion")
    panel.set_ylabel("d0: depth of a round's first tree")
    panel.set_title("FlowSpec, llama2-chat-7b, MT-bench, T = 0: tokens per second", fontsize=10)
    figure.colorbar(image, ax=panel, label="tokens per second")
    return figure
