"""The plots of studies: their bands, crosses, axes and frames are what was given."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.greys import alike
from treepipe.results.statistics import Interval
from treepipe.studies.plots import (
    PUBLISHED,
    SHADES,
    Line,
    Panel,
    gain_figure,
    line_figure,
    published_figure,
    shaded,
)
from treepipe.studies.reproduction import predicted


def test_lines_share_their_axis_and_a_legend() -> None:
    lines = shaded({"one": {2: Interval(1.0, 0.5, 1.5), 8: 2.0}, "two": {2: 3.0, 8: 4.0}})
    panels = [Panel("a", [*lines, Line({2: 1.1}, PUBLISHED)]), Panel("b", lines, zero=False)]
    figure = line_figure("both", "width", panels, log=True, at=8)
    above, below = figure.axes
    assert (above.get_ylabel(), below.get_ylabel(), below.get_xlabel()) == ("a", "b", "width")
    assert list(below.get_xticks()) == [2, 8]
    assert above.get_ylim()[0] == 0
    band: Any = above.collections[0]
    heights = band.get_paths()[0].vertices[:, 1]
    assert (min(heights), max(heights)) == (0.5, 2.0)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two", "published"]
    assert alike(figure) == []


def test_every_shade_can_be_told_without_colours() -> None:
    series = {f"{n}": {1: float(n), 2: float(n + 1)} for n in range(len(SHADES))}
    assert alike(line_figure("t", "x", [Panel("y", shaded(series))])) == []


def test_a_cross_stands_only_where_a_figure_is_published() -> None:
    series = {
        "ours": {"p": predicted("a", "ms", 2.0), "q": predicted("b", "ms", 3.0, 3.5, fitted=True)},
        "theirs": {"p": predicted("c", "ms", 4.0), "q": predicted("d", "ms", 5.0)},
    }
    figure = published_figure("t", "ms", {"left": series, "right": series}, columns=2)
    for panel in figure.axes:
        crosses = [line for line in panel.get_lines() if line.get_label() == "published"]
        assert [list(line.get_ydata()) for line in crosses] == [[3.5]]
        assert [tick.get_text() for tick in panel.get_xticklabels()] == ["p", "q"]
    assert [panel.get_title() for panel in figure.axes] == ["left", "right"]


def test_a_map_shows_gains_frames_and_what_is_missing() -> None:
    gains = {"g": {("a", "x"): 2.0, ("b", "x"): 0.5, ("b", "y"): 1.0}}
    figure = gain_figure("t", gains, frames={("g", ("b", "y")): ":"})
    panel = figure.axes[0]
    assert [text.get_text() for text in panel.texts] == ["2.00", "-", "0.50", "1.00"]
    image: Any = panel.images[0]
    assert image.get_array().compressed().tolist() == [1.0, -1.0, 0.0]
    frame: Any = panel.patches[0]
    assert frame.get_xy() == pytest.approx((0.54, 0.54))
    assert frame.get_linestyle() == ":"
