"""The picture of a run: each device's activity over time, simulated above executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from treepipe.core.requests import RequestTrace
from treepipe.results import plots
from treepipe.results.trace import Kind, Span, Trace

COLORS: Mapping[str, str] = {
    "compute": plots.BLUE,
    "draft": plots.AMBER,
    "evaluate": plots.PURPLE,
    "decide": plots.BLACK,
    "prune": plots.ORANGE,
    "transfer": plots.GREEN,
}
PLACES: Mapping[Kind, tuple[float, float]] = {
    "prune": (-0.4, 0.8),
    "transfer": (0.24, 0.16),
    "evaluate": (-0.26, 0.34),
}
"""Top and height within a row of 0.8, for kinds whose colours are similar in grey and that shape
distinguishes from a pass. A transfer lies in the lower part of its sender's row; a prune is as high
as the row, and an evaluation is lower than a pass."""
USUAL = (-0.4, 0.62)
LONG = frozenset({"compute", "draft"})
"""Kinds that follow each other without a gap, separated by a white edge. The others are short; an
edge of their own colour keeps them at least a line wide."""
LABEL_ROWS = 3
LABEL_SHARE = 0.022
"""Width of a label, relative to the panel's."""


def draw_timelines(
    traces: Sequence[tuple[str, Trace]], title: str, path: Path, option: str = ""
) -> None:
    """Write ``timelines_figure`` to a file. Raises ``WriteError``; ``option`` asked for it."""
    plots.save_figure(timelines_figure(traces, title), path, 110, option)


def timelines_figure(
    traces: Sequence[tuple[str, Trace]], title: str = "", window_ms: float = 700.0
) -> Figure:
    """Draw traces one above the other, each from its first request's first token to its end.

    Args:
        traces: (heading, trace); the time axes start at the first token and are equally long.
        title: title of the figure, where the headings do not state it.
        window_ms: longest time that is shown.
    """
    rows = len(traces[0][1].devices)
    height = 1.2 + len(traces) * (0.8 + 0.42 * rows)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(figsize=(13, height), layout=layout)
    panels: Any = figure.subplots(len(traces), 1, sharex=True, squeeze=False)[:, 0]
    periods = [_period(trace, window_ms) for _, trace in traces]
    shown_ms = max(end - start for start, end in periods) or window_ms
    for panel, (heading, trace), period in zip(panels, traces, periods, strict=True):
        _draw_panel(panel, trace, period, shown_ms)
        panel.set_title(heading, loc="left", fontsize=10)
    panels[-1].set_xlabel("milliseconds since the first request's first token (+n: its later ones)")
    handles = [Patch(color=color, label=kind) for kind, color in COLORS.items()]
    handles.append(Patch(color=plots.IDLE, label="idle"))
    if title:
        figure.suptitle(title)
    figure.legend(handles=handles, ncols=len(handles), loc="outside lower center", frameon=False)
    return figure


def _first(trace: Trace) -> RequestTrace | None:
    """Return the first request that was served."""
    return next((request for request in trace.requests if request.emitted), None)


def _period(trace: Trace, window_ms: float) -> tuple[float, float]:
    """Return the period of a trace that is shown: from, to (ms)."""
    request = _first(trace)
    if request is None:
        return 0.0, min(window_ms, max([span.end_ms for span in trace.spans], default=0.0))
    start = request.first_token_ms
    return start, min(start + window_ms, request.finished_ms)


def _draw_panel(panel: Any, trace: Trace, period: tuple[float, float], shown_ms: float) -> None:
    start, end = period
    rows = {name: place for place, name in enumerate(trace.devices)}
    for place in rows.values():
        panel.broken_barh([(0, end - start)], (place - 0.4, 0.8), color=plots.IDLE, lw=0, zorder=1)
    bars: dict[tuple[Kind, int], list[tuple[float, float]]] = {}
    for span in trace.spans:
        low, high = max(span.start_ms, start), min(span.end_ms, end)
        row = rows.get(_row(span))
        inside = span.end_ms > start and span.start_ms < end
        if row is not None and inside and span.kind in COLORS:
            bars.setdefault((span.kind, row), []).append((low - start, high - low))
    for (kind, row), pieces in bars.items():
        top, height = PLACES.get(kind, USUAL)
        edge = ("white", 0.4) if kind in LONG else (COLORS[kind], 0.9)
        panel.broken_barh(
            pieces,
            (row + top, height),
            facecolor=COLORS[kind],
            edgecolor=edge[0],
            linewidth=edge[1],
            zorder=2 if kind in LONG else 3,
        )
    top, labels = -0.55, list(_labels(trace, period, shown_ms))
    for time, label, rank in labels:
        y = top - 0.3 * rank
        panel.plot([time, time], [len(rows) - 0.5, y], color=plots.GREY, lw=0.6, ls=":", zorder=4)
        aligned = {"ha": _alignment(time / shown_ms), "va": "bottom", "fontsize": 7}
        panel.text(time, y, label, color=plots.BLACK, **aligned)
    panel.set_yticks(range(len(rows)), list(rows))
    panel.set_ylim(len(rows) - 0.5, top - 0.3 * (1 + max([rank for *_, rank in labels], default=0)))
    panel.set_xlim(0, shown_ms)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines["bottom"].set_color(plots.SILVER)


def _labels(
    trace: Trace, period: tuple[float, float], shown_ms: float
) -> Iterator[tuple[float, str, int]]:
    """Yield the label of each emission but the first: ms since the start, "+n", and a row of labels
    that has room."""
    request = _first(trace)
    ends = [-1.0] * LABEL_ROWS
    for time, count in () if request is None else request.emitted[1:]:
        if time <= period[1]:
            at = (time - period[0]) / shown_ms
            free = [rank for rank, end in enumerate(ends) if at >= end]
            rank = free[0] if free else ends.index(min(ends))
            ends[rank] = at + LABEL_SHARE
            yield time - period[0], f"+{count}", rank


def _alignment(share: float) -> str:
    """Return the alignment of a label that keeps it within the panel's width."""
    if share < LABEL_SHARE / 2:
        return "left"
    return "right" if share > 1 - LABEL_SHARE / 2 else "center"


def _row(span: Span) -> str:
    """Return the device whose row shows the span: the sender's for a transfer."""
    return span.device.split("->")[0]
