"""What a picture's legends tell apart by colour alone, to who sees no colours; for tests."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from matplotlib.collections import Collection, LineCollection, PolyCollection
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Patch

APART = 0.1
"""Difference in lightness of what is told apart by nothing else."""


def grey(color: Any) -> float:
    """Lightness as a printer takes it (ITU-R BT.601), on white.

    >>> grey("white"), grey("black")
    (1.0, 0.0)
    """
    red, green, blue = to_rgb(color)
    alpha = to_rgba(color)[3]
    return round(1 - alpha + alpha * (0.299 * red + 0.587 * green + 0.114 * blue), 6)


def alike(figure: Figure) -> list[str]:
    """Pairs of labels in one legend that only their colours tell apart."""
    found = []
    drawn = {
        label: handle
        for panel in figure.axes
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }  # a legend's own handle of an error bar is the bar without its marker
    legends = [*figure.legends, *filter(None, (panel.get_legend() for panel in figure.axes))]
    for legend in legends:
        names = [text.get_text() for text in legend.get_texts()]
        handles = zip(names, legend.legend_handles, strict=True)
        looks = [(name, _look(drawn.get(name, handle))) for name, handle in handles]
        for (one, (first, shape)), (other, (second, also)) in combinations(looks, 2):
            if shape == also and abs(first - second) < APART:
                found.append(f"{one} and {other}: {first:.2f} and {second:.2f}, {shape}")
    return found


def _look(handle: Any) -> tuple[float, tuple[object, ...]]:
    """Lightness, and all else that tells a legend's entry from others."""
    if isinstance(handle, ErrorbarContainer):
        handle = handle.lines[0] or handle.lines[2][0]
    if isinstance(handle, BarContainer):
        handle = handle.patches[0]
    if isinstance(handle, Patch):
        return grey(handle.get_facecolor()), ("field", handle.get_hatch() or "")
    if isinstance(handle, LineCollection):
        return grey(handle.get_colors()[0]), ("lines", str(handle.get_linestyles()))
    if isinstance(handle, Collection):
        faces, hatch = handle.get_facecolor(), handle.get_hatch() or ""
        shapes = [path.vertices.tobytes() for path in handle.get_paths()[:1]]
        is_field = isinstance(handle, PolyCollection)
        return grey(faces[0]), ("field", hatch) if is_field else ("points", *shapes)
    face = handle.get_markerfacecolor()
    filled = not isinstance(face, str) or face not in ("none", "w", "white")
    style = (handle.get_marker(), filled, handle.get_linestyle(), handle.get_linewidth())
    return grey(handle.get_color()), ("line", *style)
