"""Plots of the study of SpecPipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from treepipe.results.metrics import METRIC
from treepipe.results.plots import BLUE, GREY, HATCHED, LEGEND, MARKS, ORANGE, clean, doubling
from treepipe.sim.points import Outcome
from treepipe.studies.layered import LEAP, WIDTH, curve
from treepipe.studies.specpipe.testbed import Found, Server

SIMULATED = {"color": BLUE, "label": "simulated (95 % interval of the mean)"}
NAMES = {
    "pp": "plain pipeline",
    "eagle": "EAGLE tree, drafting\ntakes a pipeline pass",
    "eagle_own_device": "EAGLE tree,\nhead on its own device",
    "specinfer": "SpecInfer's tree",
    "specinfer_draft_in_sequence": "SpecInfer's tree,\ndrafted in sequence",
    "specinfer_hidden_draft": "SpecInfer's tree,\ndrafting hidden",
    "specpipe": "SpecPipe",
}


def width_figure(found: Found) -> Figure:
    """Time between tokens, hit rate and a stage's time against the width."""
    figure = Figure(figsize=(9, 8.4), layout="constrained")
    axes: Any = figure.subplots(3, 1, sharex=True, height_ratios=(4, 2, 2))
    widths = list(found.widths)
    for panel, metric in ((axes[0], METRIC), (axes[1], "hit_rate")):
        curve(panel, found.widths, metric, SIMULATED)
    equation = [found.equation_ms(width) for width in widths]
    labels = ("equation 2, N - 1 steps lost by a miss", "equation 2, N steps lost")
    for each, style, label in zip(zip(*equation, strict=True), ("--", ":"), labels, strict=True):
        axes[0].plot(widths, each, color=ORANGE, ls=style, label=label)
    fine = range(min(widths), max(widths) + 1)
    stage = [found.cluster.slowest_ms(width) for width in fine]
    axes[2].plot(list(fine), stage, color=GREY)
    for panel, label in zip(
        axes, ("time between tokens (ms)", "hit rate P(w)", "slowest stage (ms)"), strict=True
    ):
        panel.set_ylabel(label)
        panel.axvline(LEAP, color=GREY, ls=":", lw=1)
        clean(panel)
    axes[2].set_ylim(bottom=0)
    axes[0].legend(**LEGEND)
    doubling(axes[2], widths)
    axes[2].set_xlabel(
        f"width w: most nodes of a tree layer (dotted: {LEAP} rows, where times leap)"
    )
    figure.suptitle(
        f"SpecPipe on 8 RTX 3090: wide is nearly free up to {LEAP} rows, then it is not"
    )
    return figure


def schedule_figure(servers: Mapping[str, Server]) -> Figure:
    """Bars of time between tokens on HumanEval-X, and the six levels as speed-up."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    bars, lines = figure.subplots(1, 2, width_ratios=(3, 2))
    height = 0.38
    for offset, (name, server), colour, bar in zip(
        (-height / 2, height / 2), servers.items(), (BLUE, ORANGE), ({}, HATCHED), strict=True
    ):
        times = {"pp": server.plain_ms, **{k: v.mean for k, v in server.code.items()}}
        places = [index + offset for index, _ in enumerate(NAMES)]
        drawn = bars.barh(
            places, [times[n] for n in NAMES], height, color=colour, label=name, **bar
        )
        bars.bar_label(drawn, fmt="%.0f", padding=3, fontsize=8)
        slower = [server.plain_ms / time.mean for time in server.specpipe]
        mark = {"color": colour, "marker": MARKS[colour]}
        lines.plot(range(1, len(slower) + 1), slower, label=name, **mark)
        static = [server.plain_ms / time.mean for time in server.specinfer]
        lines.plot(range(1, len(static) + 1), static, ls=":", mfc="w", **mark)
    bars.set_yticks(range(len(NAMES)), list(NAMES.values()))
    bars.invert_yaxis()
    bars.set_xlabel("time between tokens (ms)")
    bars.set_title("by schedule, on HumanEval-X", fontsize=10)
    bars.legend(**LEGEND)
    clean(bars, "x")
    lines.set_xticks(range(1, 1 + max(len(each.specpipe) for each in servers.values())))
    lines.set_xlabel("level: from the most misses to the fewest")
    lines.set_ylabel("times as fast as the plain pipeline")
    lines.set_title("by level; filled: SpecPipe, open: SpecInfer's tree", fontsize=10)
    lines.set_ylim(bottom=0)
    clean(lines)
    figure.suptitle("SpecPipe against plain decoding and static trees, on one server and on two")
    return figure


def batch_figure(batches: Mapping[int, Outcome]) -> Figure:
    """SpecPipe-DB's throughput and a request's time between tokens against the batch."""
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    axes: Any = figure.subplots(2, 1, sharex=True)
    for panel, metric, label in (
        (axes[0], "throughput_tokens_s", "throughput (tokens/s)"),
        (axes[1], METRIC, "time between tokens (ms)"),
    ):
        curve(panel, batches, metric, SIMULATED)
        panel.set_ylabel(label)
        panel.set_ylim(bottom=0)
        clean(panel)
    doubling(axes[1], list(batches))
    axes[1].set_xlabel(f"requests that share the steps (B), width {WIDTH} each")
    figure.suptitle("SpecPipe-DB on 8 RTX 3090")
    return figure
