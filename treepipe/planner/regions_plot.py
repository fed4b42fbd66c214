"""The break-even map: the best schedule at the values of two inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from treepipe.results.plots import (
    AMBER,
    BLACK,
    GREY,
    PALE,
    PURPLE,
    SILVER,
    SKY,
    YELLOW,
)

STYLES = (
    (PALE, ""),
    (AMBER, "///"),
    (SILVER, "+++"),
    (SKY, "\\\\\\"),
    (YELLOW, "xxx"),
    (PURPLE, "---"),
    (GREY, "ooo"),
)
"""Colour and hatching of each schedule; further ones share a colour and keep their names."""


class Ticks(NamedTuple):
    """An axis: its name, its values in words, and the place of the stated one among them."""

    label: str
    values: Sequence[str]
    stated: int | None


def regions_figure(best: Sequence[Sequence[str]], x: Ticks, y: Ticks, title: str) -> Figure:
    """Plot a field per pair of values, coloured, hatched and named by the best schedule there."""
    names = sorted({name for row in best for name in row})
    table = np.array([[names.index(name) for name in row] for row in best])
    figure = Figure(figsize=(9, 6), layout="constrained")
    panel: Any = figure.subplots()
    styles = [STYLES[index % len(STYLES)] for index in range(len(names))]
    colors = ListedColormap([color for color, _ in styles])
    panel.pcolormesh(table, cmap=colors, vmin=-0.5, vmax=len(names) - 0.5, ec="white", lw=0.5)
    for index, (_, hatch) in enumerate(styles):
        for row, column in np.argwhere(table == index) if hatch else ():
            field = Rectangle((column, row), 1, 1, fc="none", ec="white", hatch=hatch, lw=0)
            panel.add_patch(field)
        _name(panel, table == index, names[index])
    panel.set_xticks(np.arange(len(x.values)) + 0.5, x.values)
    panel.set_yticks(np.arange(len(y.values)) + 0.5, y.values)
    panel.set(xlabel=x.label, ylabel=y.label)
    for stated, line in ((x.stated, panel.axvline), (y.stated, panel.axhline)):
        if stated is not None:
            line(stated + 0.5, color=BLACK, lw=1, ls=":")
    panel.set_title(title, loc="left", fontsize=10)
    handles = [
        Patch(fc=color, hatch=hatch, ec="white", label=name)
        for name, (color, hatch) in zip(names, styles, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _name(panel: Any, inside: Any, name: str) -> None:
    """Write the name into the field of the region that is nearest to its middle."""
    fields = np.argwhere(inside)
    row, column = fields[np.argmin(((fields - fields.mean(axis=0)) ** 2).sum(axis=1))]
    panel.text(
        column + 0.5,
        row + 0.5,
        name,
        ha="center",
        va="center",
        color=BLACK,
        fontsize=9,
        bbox={"fc": "white", "ec": "none", "pad": 2},
    )
