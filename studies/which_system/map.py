"""The study's map: systems against clusters."""

from __future__ import annotations

from math import log
from statistics import fmean
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from treepipe.results.plots import GREY
from treepipe.studies.which_system.gains import Results, gain, rivals
from treepipe.studies.which_system.places import Settings


def draw_map(settings: Settings, found: Results) -> Figure:
    """Gain over plain decoding; the best framed, those not distinguishable from it dashed."""
    columns = sorted(found, key=lambda key: list(settings.amounts).index(key[1]))
    names = list(settings.schedules)
    table = np.full((len(names), len(columns)), np.nan)
    figure = Figure(figsize=(3.4 + 0.82 * len(columns), 2.6 + 0.42 * len(names)))
    figure.set_layout_engine("constrained")
    panel: Any = figure.subplots()
    for column, key in enumerate(columns):
        systems, unclear = found[key].best_of_each, rivals(found[key])
        for row, name in enumerate(names):
            if name not in systems:
                panel.text(column, row, "-", ha="center", va="center", color=GREY)
                continue
            table[row, column] = gain(found[key], name).mean
            best = name == found[key].best.candidate.schedule
            if best or name in unclear:
                corner = (column - 0.46, row - 0.44)
                style = "-" if best else ":"
                frame = Rectangle(corner, 0.92, 0.88, fill=False, ec="black", lw=2.2, ls=style)
                panel.add_patch(frame)
    reach = max(1.0, float(np.nanmax(np.abs(np.log2(table)))))
    image = panel.imshow(np.log2(table), cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
    for row, column in np.argwhere(~np.isnan(table)):
        value = table[row, column]
        colour = "white" if abs(log(value, 2)) > 0.62 * reach else "black"
        panel.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, size=9)
    labels = [fill(place.name, 16) for place, _ in columns]
    panel.set_xticks(range(len(columns)), labels, rotation=40, ha="right", size=9)
    panel.set_yticks(range(len(names)), names)
    for column in range(1, len(columns)):
        if columns[column][1] != columns[column - 1][1]:
            panel.axvline(column - 0.5, color="black", lw=1.5)
    for goal in settings.amounts:
        places = [i for i, key in enumerate(columns) if key[1] == goal]
        panel.text(fmean(places), -0.75, f"goal: {goal}", ha="center", va="bottom", weight="bold")
    bar = figure.colorbar(image, ax=panel, shrink=0.8, pad=0.01)
    ticks = [tick for tick in (-4, -3, -2, -1, 0, 1, 2, 3, 4) if abs(tick) <= reach]
    bar.set_ticks(ticks, labels=[f"{2.0**tick:g}" for tick in ticks])
    bar.set_label("times as fast as plain decoding (pp)")
    figure.suptitle(
        "Every system with its best parameters, against plain decoding. Framed: the best; "
        "dotted: not distinguishable from it (95 %, the inputs' uncertainty included)"
    )
    return figure
