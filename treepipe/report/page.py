"""One HTML page of sentences, tables and plots under headings, in a file that needs no network.

The template escapes everything that comes from a scenario, and the page's policy forbids loading
and scripts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treepipe.files.outputs import REPORT, REPORT_PAGE, write_file
from treepipe.files.reading import visible
from treepipe.results.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
SVG: Any = {"svg.fonttype": "none", "svg.hashsalt": "treepipe"}
"""SVG settings: text stays text (small, searchable, read aloud), and drawing is reproducible."""
LEAST_SCALE = 0.75
"""Smallest scale of a picture; on a narrower screen it scrolls in its box."""


@dataclass(frozen=True)
class Picture:
    """A figure and its alt text."""

    figure: Figure
    description: str


@dataclass(frozen=True)
class Chapter:
    """A heading and its content, in this order.

    Attributes:
        verbatim: text with line breaks kept, a command or a file.
        prose: whether the sentences form a paragraph rather than a list.
    """

    heading: str
    sentences: Sequence[str] = ()
    tables: Sequence[Sheet] = ()
    pictures: Sequence[Picture] = ()
    verbatim: str = ""
    prose: bool = False

    @property
    def empty(self) -> bool:
        """Whether the chapter has no content; such a chapter is left out."""
        return not (self.sentences or self.tables or self.pictures or self.verbatim)


@dataclass(frozen=True)
class Report:
    """A page: the question, the answer in two sentences, and the chapters that support it."""

    title: str
    question: Sequence[str]
    answer: Sequence[str]
    chapters: Sequence[Chapter] = field(default=())


def write_report(report: Callable[[], Report], folder: Path) -> None:
    """Make the page and write it into a folder that ``check_outputs`` has made.

    Raises ``WriteError``: it cannot be written.
    """
    write_file(folder / REPORT_PAGE, report_html(report()), REPORT)


def report_html(report: Report) -> str:
    """Return the page's text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    first = [
        Chapter("Question", report.question, prose=True),
        Chapter("Answer", report.answer, prose=True),
    ]
    from treepipe.results import plots  # it loads matplotlib, which only a page needs

    chapters = [each for each in (*first, *report.chapters) if not each.empty]
    numbers = {id(p): n for n, p in enumerate(p for c in chapters for p in c.pictures)}
    shown: str = environment.get_template("page.html").render(
        report=report,
        chapters=chapters,
        svg=lambda picture: _svg(picture, f"p{numbers[id(picture)]}-"),
        colors={name: getattr(plots, name) for name in plots.PAGE},
    )
    return visible(shown)


def _svg(picture: Picture, prefix: str) -> Mapping[str, Any]:
    """Return a picture's elements and sizes; ``prefix`` makes its ids unique in the page."""
    drawn = _drawn(picture.figure)
    inside = drawn[drawn.index(">", drawn.index("<svg")) + 1 : drawn.rindex("</svg>")]
    inside = re.sub(r"\s*<metadata>.*?</metadata>", "", inside, flags=re.DOTALL)
    for begin in (r'\bid="', r"url\(#", r'href="#'):
        inside = re.sub(begin, lambda found: found.group() + prefix, inside)
    (box,) = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    width, height = map(float, box)
    pixels = width * 4 / 3  # 96 per inch; the box is in points (72)
    sizes = {"width": width, "height": height, "pixels": pixels, "least": LEAST_SCALE * pixels}
    return {"inside": inside, **sizes}


def _drawn(figure: Figure) -> str:
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if isinstance(text, Text) and "$" in text.get_text():
            text.set_parse_math(False)  # names may contain "$"
    file = io.StringIO()
    with rc_context(SVG):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
