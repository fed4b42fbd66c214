"""Plots of studies: lines over a parameter, published beside predicted, and maps of gains.

Independent of any paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from treepipe.results import plots
from treepipe.results.plots import BLACK, BLUE, GREY, MARKS, ORANGE, band, clean, doubling
from treepipe.results.statistics import Interval
from treepipe.studies.study import Entry

SHADES = (BLUE, ORANGE, plots.GREEN, plots.PURPLE, GREY, plots.SKY, plots.AMBER)
"""Colours of lines and bars, each with its mark (``MARKS``)."""
PUBLISHED = {**plots.CIRCLE, "label": "published"}


@dataclass(frozen=True, slots=True)
class Line:
    """Values by varied parameter, with intervals as a band, in matplotlib's style for lines."""

    values: Mapping[Any, Interval | float]
    style: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over one axis of values with its ``label``; ``zero``: the axis begins at 0."""

    label: str
    lines: Sequence[Line]
    zero: bool = True


def shaded(lines: Mapping[str, Mapping[Any, Interval | float]]) -> list[Line]:
    """Make lines by label, each in a colour of its own."""
    return [
        Line(values, {"color": colour, "label": label})
        for (label, values), colour in zip(lines.items(), SHADES, strict=False)
    ]


def line_figure(
    title: str,
    x: str,
    panels: Sequence[Panel],
    *,
    columns: int = 1,
    log: bool = False,
    at: float | None = None,
) -> Figure:
    """Plot panels over the parameter ``x`` under one legend. ``log``: logarithmic axis to the base
    of 2; ``at``: a value to mark with a dotted line."""
    rows = -(-len(panels) // columns)
    size = (9 if columns == 1 else 11, 1.8 + 2.4 * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes: Any = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for place, panel in zip(axes.flat, panels, strict=False):
        for line in panel.lines:
            _line(place, line)
        if at is not None:
            place.axvline(at, color=GREY, ls=":", lw=1)
        if panel.zero:
            place.set_ylim(bottom=0)
        place.set_ylabel(panel.label)
        clean(place)
    for spare in axes.flat[len(panels) :]:
        spare.set_axis_off()
    values = sorted({value for panel in panels for line in panel.lines for value in line.values})
    if log:
        doubling(axes[-1, -1], values)
    elif all(isinstance(value, int) for value in values):
        axes[-1, -1].set_xticks(values)
    for place in axes.flat[len(panels) - columns : len(panels)]:
        place.set_xlabel(x)
        place.tick_params(labelbottom=True)
    _one_legend(figure)
    figure.suptitle(title)
    return figure


def _line(place: Any, line: Line) -> None:
    style, values = dict(line.style), []
    for value in line.values.values():
        values.append(value if isinstance(value, Interval) else Interval(value, None, None))
    if "marker" in style:
        place.plot(list(line.values), [value.mean for value in values], **style)
    else:
        band(place, list(line.values), values, style)


def _one_legend(figure: Figure) -> None:
    handles: dict[str, Any] = {}
    for place in figure.axes:
        shown, labels = place.get_legend_handles_labels()
        handles |= dict(zip(labels, shown, strict=True))
    if handles:
        inches = 0.7 + 0.085 * max(map(len, handles))  # the widest entry
        columns = max(1, min(4, len(handles), int(figure.get_figwidth() / inches)))
        style: dict[str, Any] = {"loc": "outside lower center", "ncols": columns, **plots.LEGEND}
        figure.legend(handles.values(), handles.keys(), **style)


Series = Mapping[str, Mapping[str, Entry]]
"""Entries by series, and by their place on the axis."""


def published_figure(
    title: str, unit: str, panels: Mapping[str, Series], columns: int = 1
) -> Figure:
    """Plot predictions with intervals, and published figures as crosses; a panel per title."""
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3 + 3 * columns, 1.6 + 2.7 * rows), layout="constrained")
    axes: Any = figure.subplots(rows, columns, squeeze=False)
    for place, (name, series) in zip(axes.flat, panels.items(), strict=True):
        gap = 0.8 / len(series)
        for number, (label, entries) in enumerate(series.items()):
            shift = gap * (number - (len(series) - 1) / 2)
            _marks(place, list(entries.values()), label, SHADES[number], shift)
        names = list(next(iter(series.values())))
        place.set_xticks(range(len(names)), names, rotation=35, ha="right", size=8)
        place.set_title(name, fontsize=10)
        place.set_ylim(bottom=0)
        clean(place)
    for row in axes:
        row[0].set_ylabel(unit)
    _one_legend(figure)
    figure.suptitle(title)
    return figure


def _marks(place: Any, entries: Sequence[Entry], label: str, colour: str, shift: float) -> None:
    spots = np.arange(len(entries)) + shift
    values = np.array([entry.predicted for entry in entries], float)
    low = np.array([e.predicted if e.low is None else e.low for e in entries], float)
    high = np.array([e.predicted if e.high is None else e.high for e in entries], float)
    style: dict[str, Any] = {"fmt": MARKS[colour], "ms": 5, "capsize": 2, "color": colour}
    spread = values - low, high - values
    place.errorbar(spots, values, spread, label=f"{label}, predicted", **style)
    known = [(spot, e.published) for spot, e in zip(spots, entries, strict=True) if e.published]
    if known:
        cross: dict[str, Any] = {"color": BLACK, "marker": "x", "ls": "none", "ms": 6, "zorder": 4}
        place.plot(*zip(*known, strict=True), label="published", **cross)


Gains = Mapping[tuple[str, str], float]
"""Speed-ups over plain decoding, by row and column."""


def gain_figure(
    title: str,
    panels: Mapping[str, Gains],
    axes_names: tuple[str, str] = ("", ""),
    frames: Mapping[tuple[str, tuple[str, str]], str] | None = None,
) -> Figure:
    """Plot maps of gains over plain decoding: blue is faster and red is slower. ``frames``: style
    of the frame around a cell, by the panel's title and the cell."""
    rows = list(dict.fromkeys(row for gains in panels.values() for row, _ in gains))
    columns = [list(dict.fromkeys(column for _, column in gains)) for gains in panels.values()]
    widths = [len(each) for each in columns]
    size = (3.4 + 0.62 * sum(widths), 2.6 + 0.42 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes: Any = figure.subplots(1, len(panels), sharey=True, squeeze=False, width_ratios=widths)[0]
    reach = max(1.0, *(abs(log2(gain)) for gains in panels.values() for gain in gains.values()))
    for place, (name, gains), own in zip(axes, panels.items(), columns, strict=True):
        cells = {(rows.index(r), own.index(c)): gain for (r, c), gain in gains.items()}
        image = _map(place, cells, (len(rows), len(own)), reach)
        for (panel, (row, column)), style in (frames or {}).items():
            if panel == name:
                corner = own.index(column) - 0.46, rows.index(row) - 0.46
                frame: dict[str, Any] = {"fill": False, "ec": BLACK, "lw": 2, "ls": style}
                place.add_patch(Rectangle(corner, 0.92, 0.92, **frame))
        place.set_xticks(
            range(len(own)), [fill(column, 16) for column in own], rotation=40, ha="right", size=8
        )
        place.set_title(name, fontsize=10)
        place.set_xlabel(axes_names[1])
    axes[0].set_yticks(range(len(rows)), rows)
    axes[0].set_ylabel(axes_names[0])
    bar = figure.colorbar(image, ax=list(axes), shrink=0.8, pad=0.01)
    ticks = range(-int(reach), int(reach) + 1)
    bar.set_ticks(list(ticks), labels=[f"{2.0**tick:g}" for tick in ticks])
    bar.set_label("times as fast as plain decoding")
    figure.suptitle(title)
    return figure


def _map(
    place: Any, cells: Mapping[tuple[int, int], float], shape: tuple[int, int], reach: float
) -> Any:
    """Draw one map by numbers of row and column; missing cells are dashes."""
    table = np.full(shape, np.nan)
    for row, column in np.ndindex(shape):
        gain = cells.get((row, column))
        colour = GREY
        if gain is not None:
            table[row, column] = log2(gain)
            colour = "white" if abs(log2(gain)) > 0.62 * reach else "black"
        text = "-" if gain is None else f"{gain:.2f}"
        place.text(column, row, text, ha="center", va="center", color=colour, size=8)
    return place.imshow(table, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
