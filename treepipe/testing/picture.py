"""A story as a picture: a lifeline per role, an arrow per message that comes, a mark per event."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten

from matplotlib.figure import Figure

from treepipe.results.plots import save_figure
from treepipe.testing.story import Story

COLUMN_IN, ROW_IN, MOST_ROWS = 1.9, 0.33, 120
"""Width and height of the picture per role and step, and the last steps that are drawn."""
MOST_CHARACTERS = 130
"""Longest text of a step in the picture; the story in words has all of it."""


def draw_story(story: Story, title: str, path: Path) -> None:
    """Write the picture of a story's last steps, time downwards. Args: ``path``: PNG or SVG."""
    steps = story.steps[-MOST_ROWS:]
    names = {name: None for step in steps for name in (step.sender, step.receiver) if name}
    ordered = sorted(names, key=lambda name: (not name.startswith("request"), name))
    place = {name: column for column, name in enumerate(ordered)}
    figure = Figure(figsize=(4.5 + COLUMN_IN * len(place), 1.2 + ROW_IN * len(steps)))
    axes = figure.subplots()
    for name, x in place.items():
        axes.plot([x, x], [-0.5, len(steps) - 0.5], color="0.8", linewidth=1, zorder=0)
        axes.text(x, -0.9, name, ha="center", va="bottom", fontweight="bold")
    for row, step in enumerate(steps):
        x = place[step.receiver]
        if step.sender is None:
            axes.plot(x, row, "s", color="tab:blue", markersize=5)
        else:
            arrow = {"arrowstyle": "->", "color": "tab:orange"}
            axes.annotate("", (x, row), (place[step.sender], row), arrowprops=arrow)
        axes.text(
            len(place) - 0.6,
            row,
            shorten(step.text, MOST_CHARACTERS, placeholder=" …"),
            va="center",
            fontsize=7,
        )
    axes.set_xlim(-0.6, len(place) + 1.6)
    axes.set_ylim(len(steps), -2.2)
    axes.axis("off")
    axes.set_title(title, fontsize=9)
    save_figure(figure, path, dpi=110, option="--plot")
