"""The picture of a profile's times: solid lines where they were measured, dashed ones elsewhere.

Colours distinguish kinds of work, marks and widths distinguish contexts, and each line has a label
at its end, so that nothing depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator
from scipy.optimize import isotonic_regression

from treepipe.profiles.curves import Curve, Shown
from treepipe.results import plots

COLORS = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE)
MARKS = ("o", "s", "^", "D", "v", "P", "X")
MARKED = 32
"""Longest table whose points have marks; more of them would overlap."""
TOKENS = tuple(2**power for power in range(12))
BYTES = {2**10: "1 KiB", 2**14: "16 KiB", 2**18: "256 KiB", 2**22: "4 MiB", 2**26: "64 MiB"}
JOINED = {"shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)}
"""Style of the line from a label's left end to its curve."""
LINE = 0.036
"""Height of a label, relative to the panel's."""


def curves_figure(shown: Shown, title: str) -> Figure:
    """Draw milliseconds against tokens or bytes, both logarithmic; a panel for each model."""
    groups = list(shown.curves.items())
    figure = Figure(figsize=(1.0 + 7.0 * len(groups), 6), layout="constrained")
    axes: Any = figure.subplots(1, len(groups), sharey=True, squeeze=False)
    for panel, (group, curves) in zip(axes[0], groups, strict=True):
        _draw_panel(panel, curves, shown)
        panel.set_title(group if len(groups) > 1 or group not in title else "", fontsize=10)
    axes[0][0].set_ylabel("milliseconds")
    # Labels go where the lines end once all panels have agreed on a scale.
    for panel, (_, curves) in zip(axes[0], groups, strict=True):
        _label_ends(panel, curves, _sizes(shown)[-1])
    figure.legend(
        handles=_explanation(shown), loc="outside lower center", ncols=3, fontsize=9, **plots.LEGEND
    )
    figure.suptitle(title)
    return figure


def _sizes(shown: Shown) -> list[int]:
    """Return the sizes at which curves are drawn."""
    if shown.unit == "tokens":
        return list(range(1, TOKENS[-1] + 1))
    return [round(2 ** (power / 16)) for power in range(160, 417)]


def _styles(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return every curve's style: colour by kind of work, mark and width by context."""
    kinds = list(dict.fromkeys(curve.what for curve in curves))
    contexts = sorted({curve.context or 0 for curve in curves})
    styles = []
    for curve in curves:
        place = contexts.index(curve.context or 0)
        color = COLORS[kinds.index(curve.what) % len(COLORS)]
        mark = MARKS[place % len(MARKS)]
        styles.append({"color": color, "marker": mark, "lw": 1.2 + 0.5 * place})
    return styles


def _draw_panel(panel: Any, curves: Sequence[Curve], shown: Shown) -> None:
    sizes = np.array(_sizes(shown))
    ends = [curve.known[1] for curve in curves if curve.known is not None]
    if ends and max(ends) < 0.7 * sizes[-1]:
        panel.axvspan(max(ends), sizes[-1], color=plots.MIST, lw=0, zorder=0)
        text = {"ha": "right", "va": "bottom", "fontsize": 9, "color": plots.GREY}
        panel.text(0.99, 0.01, f"not {shown.basis}", transform=panel.transAxes, **text)
    for curve, style in zip(curves, _styles(curves), strict=True):
        times = np.array([curve.ms(int(size)) for size in sizes])
        line = {"color": style["color"], "lw": style["lw"]}
        inside = np.array([curve.measured(int(size)) for size in sizes])
        panel.plot(sizes, np.where(inside, times, np.nan), **line)
        panel.plot(sizes, np.where(inside, np.nan, times), ls=(0, (4, 2)), alpha=0.6, **line)
        marked = [n for n in curve.points if sizes[0] <= n <= sizes[-1]]
        if 0 < len(marked) <= MARKED:
            marks = {"marker": style["marker"], "color": style["color"], "mec": "white", "ms": 6}
            panel.plot(marked, [curve.ms(n) for n in marked], ls="none", **marks)
        if shown.uncertainty is not None:
            low, high = max(0.02, 1 - shown.uncertainty), 1 + shown.uncertainty
            panel.fill_between(sizes, times * low, times * high, color=style["color"], alpha=0.12)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_locator(NullLocator())
    if shown.unit == "tokens":
        panel.set_xticks(TOKENS, [str(tick) for tick in TOKENS])
    else:
        panel.set_xticks(list(BYTES), list(BYTES.values()))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlim(sizes[0], sizes[-1])
    panel.set_xlabel(shown.unit)
    plots.clean(panel, "both")


def _label_ends(panel: Any, curves: Sequence[Curve], last: int) -> None:
    """Place names to the right of the panel, at the lines' ends but not over each other."""
    low, high = np.log(panel.get_ylim())
    ends = [(np.log(max(curve.ms(last), 1e-9)) - low) / (high - low) for curve in curves]
    for curve, style, end, place in zip(
        curves, _styles(curves), ends, spread(ends, LINE), strict=True
    ):
        panel.annotate(
            curve.heading,
            (1.0, end),
            (1.05, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            color=plots.BLACK,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": style["color"], "lw": 1.2, **JOINED},
        )


def spread(places: Sequence[float], apart: float) -> list[float]:
    """Return places in the same order, at least ``apart`` from each other, nearest to the given
    ones.

    >>> spread([0.5, 0.9, 0.5], 0.1)
    [0.45, 0.9, 0.55]
    """
    order, steps = np.argsort(places, kind="stable"), apart * np.arange(len(places))
    found = np.empty(len(places))
    found[order] = isotonic_regression(np.asarray(places)[order] - steps).x + steps
    return [round(float(place), 6) for place in found]


def _explanation(shown: Shown) -> list[Line2D]:
    """Make a legend of the marks and dashes in use."""
    curves = [curve for group in shown.curves.values() for curve in group]
    dots: Any = {"ls": "none", "marker": "o", "label": f"points that are {shown.basis}"}
    handles = [Line2D([], [], color=plots.BLACK, label=shown.basis)]
    if any(0 < len(curve.points) <= MARKED for curve in curves):
        handles[0].set_label("between them")
        handles.insert(0, Line2D([], [], color=plots.BLACK, **dots))
    if shown.unmeasured:
        dashed: Any = {"ls": (0, (4, 2)), "alpha": 0.6, "label": shown.unmeasured}
        handles.append(Line2D([], [], color=plots.BLACK, **dashed))
    return handles
