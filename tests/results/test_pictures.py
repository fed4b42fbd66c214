"""Pictures: one palette in one place, nothing is said twice, nothing hides or is cut off."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from tests.worlds.greys import alike, grey
from treepipe.core.requests import RequestTrace
from treepipe.results import plots
from treepipe.results.timeline import COLORS, PLACES, USUAL, timelines_figure
from treepipe.results.trace import Span, Trace

ROOT = Path(__file__).parents[2]


def _trace(emitted: list[tuple[float, int]]) -> Trace:
    """A request whose tokens come at the given times."""
    count = sum(tokens for _, tokens in emitted)
    request = RequestTrace(1, 3, 0.0, emitted[-1][0], tuple(emitted), (7,) * count, (), "length")
    spans = [
        Span("draft0", "draft", 0.0, 10.0, 1, 3),
        Span("draft0", "decide", 20.0, 20.5, 1),
        Span("pipeline0.stage1", "compute", 10.0, 19.0, 1, 3),
        Span("pipeline0.stage1", "prune", 21.0, 21.1, 1, 3),
        Span("draft0->pipeline0.stage1", "transfer", 10.0, 11.0, 1, 3),
    ]
    return Trace(("draft0", "pipeline0.stage1"), spans, [request])


def _texts(figure: Figure) -> list[str]:
    """All text of a figure, legends but for their entries left out."""
    panels: list[Any] = list(figure.axes)
    titles = [panel.get_title(loc=where) for panel in panels for where in ("left", "center")]
    return [text for text in (*titles, figure.get_suptitle()) if text]


def test_colours_are_those_of_the_one_palette() -> None:
    folders = ("treepipe", "sim", "executor", "studies", "profiles")
    files = [file for name in folders for file in (ROOT / name).rglob("*.*")]
    files = [file for file in files if file.suffix in (".py", ".html")]
    own = {
        file.name: found
        for file in files
        if (found := re.findall(r"[\" ](?:#[0-9a-fA-F]{3,8}|C[0-9])[\";]", file.read_text("utf-8")))
    }
    assert own.keys() == {"plots.py"}


def test_kinds_of_work_differ_in_grey_where_they_have_one_shape() -> None:
    assert len(set(COLORS.values())) == len(COLORS)
    shapes = {kind: PLACES.get(kind, USUAL) for kind in COLORS}
    same = [(a, b) for a, b in combinations(COLORS, 2) if shapes[a] == shapes[b]]
    assert ("compute", "draft") in same
    for a, b in same:
        assert abs(grey(COLORS[a]) - grey(COLORS[b])) > 0.2, (a, b)


def test_lines_differ_in_their_marks() -> None:
    assert len({*plots.MARKS.values()}) == len(plots.MARKS)


def test_colours_that_look_alike_in_grey_would_be_noticed() -> None:
    figure = Figure()
    panel: Any = figure.subplots()
    panel.plot([1, 2], color=plots.ORANGE, label="a")
    panel.plot([2, 1], color=plots.GREY, label="b")
    panel.legend()
    assert len(alike(figure)) == 1
    panel.lines[1].set_linestyle("--")
    panel.legend()
    assert alike(figure) == []


def test_a_timeline_says_its_title_once() -> None:
    trace = _trace([(5.0, 1), (30.0, 1)])
    assert _texts(timelines_figure([("flowspec", trace)])) == ["flowspec"]
    both = [("simulated", trace), ("executed", trace)]
    assert _texts(timelines_figure(both, "flowspec")) == ["simulated", "executed", "flowspec"]


def test_a_timeline_ends_with_the_longest_request_it_shows() -> None:
    short, long = _trace([(5.0, 1), (30.0, 1)]), _trace([(5.0, 1), (65.0, 1)])
    figure = timelines_figure([("a", short), ("b", long)])
    assert [panel.get_xlim() for panel in figure.axes] == [(0, 60)] * 2
    (panel,) = timelines_figure([("a", long)], window_ms=40.0).axes
    assert panel.get_xlim() == (0, 40)


def test_no_label_of_a_timeline_is_cut_off_or_lies_on_another() -> None:
    """At both ends, and crowded."""
    times = [(5.0, 1), (5.5, 3), (6.0, 12), (150.0, 3), (151.0, 2), (204.0, 3), (205.0, 3)]
    figure = timelines_figure([("a", _trace(times))])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (panel,) = figure.axes
    boxes = [text.get_window_extent() for text in panel.texts]
    assert [text.get_text() for text in panel.texts] == ["+3", "+12", "+3", "+2", "+3", "+3"]
    inside = panel.get_window_extent()
    for place, box in enumerate(boxes):
        assert inside.x0 <= box.x0 + 1
        assert box.x1 - 1 <= inside.x1
        assert box.y1 <= inside.y1 + 1
        assert not any(box.overlaps(other) for other in boxes[:place])


def test_short_work_is_never_thinner_than_a_line() -> None:
    """A prune of 0.1 ms of 700 would be a seventh of a pixel, and its white edge would cover it."""
    trace = _trace([(5.0, 1), (1000.0, 1)])
    (panel,) = timelines_figure([("a", trace)]).axes
    drawn: list[Any] = list(panel.collections)
    (prune,) = [
        bars for bars in drawn if tuple(bars.get_facecolor()[0][:3]) == to_rgb(COLORS["prune"])
    ]
    assert tuple(prune.get_edgecolor()[0][:3]) == to_rgb(COLORS["prune"])
    assert prune.get_linewidth()[0] >= 0.8


def test_a_timeline_of_a_run_without_tokens_is_drawn() -> None:
    trace = _trace([(5.0, 1), (30.0, 1)])
    trace.requests = [RequestTrace.refused(1, 3, 0.0)]
    (panel,) = timelines_figure([("a", trace)]).axes
    assert panel.get_xlim() == (0, 21.1)
