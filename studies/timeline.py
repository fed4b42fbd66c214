"""The picture of a run: what every device did when, simulated above executed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from treepipe.studies.plots import save_figure
from treepipe.trace import BUSY, Span, Trace

COLORS = {
    "compute": "#3b75af",
    "draft": "#ee8636",
    "evaluate": "#8d69b8",
    "decide": "#84584e",
    "prune": "#c53a32",
    "transfer": "#7fbf7b",
    "idle": "#eeeeee",
}


def draw_timelines(
    traces: Sequence[tuple[str, Trace]],
    title: str,
    path: Path,
    window_ms: float = 700.0,
    option: str = "",
) -> None:
    """Draw traces one above the other, each from its first request's first token on.

    Args:
        traces: (heading, trace); the time axes start at the first token and are equally long.
        option: that asked for the picture.

    Raises ``WriteError`` if it cannot be written.
    """
    rows = len(traces[0][1].devices)
    figure, axes = plt.subplots(
        len(traces), 1, figsize=(13, 1.2 + len(traces) * (0.7 + 0.42 * rows)), sharex=True
    )
    panels = [axes] if len(traces) == 1 else list(axes)
    for panel, (heading, trace) in zip(panels, traces, strict=True):
        _draw_panel(panel, trace, window_ms)
        panel.set_title(heading, loc="left", fontsize=10)
    panels[-1].set_xlabel("milliseconds since the first token")
    handles = [Patch(color=color, label=kind) for kind, color in COLORS.items()]
    figure.suptitle(title)
    figure.legend(handles=handles, ncols=len(COLORS), loc="lower center", frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    plt.close(figure)
    save_figure(figure, path, 110, option)


def _draw_panel(panel: Any, trace: Trace, window_ms: float) -> None:
    start = trace.requests[0].first_token_ms
    end = min(start + window_ms, trace.requests[0].finished_ms)
    names = trace.devices
    for place, name in enumerate(names):
        panel.broken_barh([(0, end - start)], (place - 0.4, 0.8), color=COLORS["idle"], zorder=1)
        for kind, color in COLORS.items():
            spans = [s for s in trace.spans if s.kind == kind and _row(s) == name]
            bars = [
                (max(s.start_ms, start) - start, min(s.end_ms, end) - max(s.start_ms, start))
                for s in spans
                if s.end_ms > start and s.start_ms < end
            ]
            # A transfer lies in the lower part of its sender's row, beside what the device does.
            height = (place - 0.4, 0.62) if kind in BUSY else (place + 0.24, 0.16)
            edge = {"edgecolor": "white", "linewidth": 0.4} if kind in BUSY else {}
            panel.broken_barh(
                bars, height, facecolor=color, zorder=2 if kind in BUSY else 3, **edge
            )
    for time, count in trace.requests[0].emitted[1:]:
        if time <= end:
            panel.axvline(time - start, color="#555555", lw=0.6, ls=":", zorder=4)
            panel.annotate(
                f"+{count}",
                (time - start, -0.45),
                ha="center",
                va="bottom",
                fontsize=7,
                annotation_clip=False,
            )
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.75)
    panel.set_xlim(0, window_ms)


def _row(span: Span) -> str:
    """The device whose row shows the span: the sender's for a transfer."""
    return span.device.split("->")[0]
