"""One HTML page of sentences, tables and plots under headings, in a file that needs no network.

The template escapes everything that comes from a scenario, and the page's policy forbids loading
and scripts. Its last chapters are inputs and their sources (of profiles), omissions (of
``treepipe/physics/not_modelled.md``), and the command.
"""

from __future__ import annotations

import io
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from treepipe.files.outputs import REPORT, REPORT_PAGE, write_file
from treepipe.files.reading import sentences, visible
from treepipe.files.toml_file import toml_text
from treepipe.profiles.library import link_parts, load_any, profile_name, profile_path
from treepipe.profiles.schema import Origin
from treepipe.results.sheet import Sheet, words
from treepipe.scenario.scale import named_links
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Model
from treepipe.version import __version__

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
    """

    heading: str
    sentences: Sequence[str] = ()
    tables: Sequence[Sheet] = ()
    pictures: Sequence[Picture] = ()
    verbatim: str = ""

    @property
    def empty(self) -> bool:
        """Whether the chapter has no content; such a chapter is left out."""
        return not (self.sentences or self.tables or self.pictures or self.verbatim)


@dataclass(frozen=True)
class Report:
    """A page: the answer in a sentence, and the chapters that support it."""

    title: str
    answer: str
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
    first = Chapter("Answer", [report.answer])
    from treepipe.results import plots  # it loads matplotlib, which only a page needs

    chapters = [each for each in (first, *report.chapters) if not each.empty]
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


STATED = "the scenario itself, or a default"
NOT_MODELLED = Path(__file__).parents[1] / "physics" / "not_modelled.md"


class Input(NamedTuple):
    """An input as the report's table shows it.

    Attributes:
        name: name of its profile or file; empty if the scenario itself states it.
        uncertainty: relative uncertainty in words.
        date: date of the measurement, or of reading the source.
    """

    kind: str
    name: str
    uncertainty: str
    source: str
    date: str = ""


def background(
    scenario: Scenario, warnings: Sequence[str], command: str, used: Sequence[Scenario] = ()
) -> list[Chapter]:
    """Make the last chapters.

    Args:
        scenario: the scenario whose file is shown.
        command: the shell command that made the report.
        used: the scenarios that were simulated or run, if not ``scenario`` itself.
    """
    made = f"made with treepipe {__version__}, Python {platform.python_version()}"
    return [
        Chapter("Inputs", tables=[inputs_table(used or [scenario])]),
        Chapter("Warnings", list(dict.fromkeys(warnings))),
        Chapter("Not modelled", sentences(NOT_MODELLED.read_text(encoding="utf-8"))[""]),
        Chapter("Make it again", [f"{made}; seed {scenario.seed}"], verbatim=command),
        Chapter(f"The file {scenario.path.name}", verbatim=toml_text(scenario.content)),
    ]


def inputs_table(scenarios: Sequence[Scenario]) -> Sheet:
    """Show the source and uncertainty of every input, each once, with the keys that name it."""
    keys: dict[Input, list[str]] = {}
    for scenario in scenarios:
        for key, found in _inputs(scenario):
            named = keys.setdefault(found, [])
            if key not in named:
                named.append(key)
    title = "every input; what a scenario states itself is in its file, below"
    columns = words("input", "name", "keys", "uncertainty", "source", "date")
    sheet = Sheet(title, columns)
    for found, named in keys.items():
        sheet.add(found.kind, found.name, ", ".join(named), *found[2:])
    return sheet


def _inputs(scenario: Scenario) -> Iterator[tuple[str, Input]]:
    """Yield the sources of a scenario's times, sizes and acceptance, by key."""
    base = scenario.path.parent
    named: list[tuple[str, str, str | None]] = []
    yield "target", _of_model(scenario.target, "target", base)
    for i, draft in enumerate(scenario.drafts):
        yield f"drafts.{i}.model", _of_model(draft.model, f"drafts.{i}.model", base)
        named.append(("device", f"drafts.{i}.device", profile_name(draft.device)))
    for i, pipeline in enumerate(scenario.pipelines):
        for j, stage in enumerate(pipeline.stages):
            key = f"pipelines.{i}.stages.{j}.device"
            named.append(("device", key, profile_name(stage.device)))
    for key, link in named_links(scenario.links).items():
        only, engine = link_parts(profile_name(link) or "", base)
        named.append(("link", key, only or None))
        named += [("hop", key, engine)] * (engine is not None)
    named += [("host", f"hosts.{name}", host.profile) for name, host in scenario.hosts.items()]
    for kind, key, name in named:
        yield key, _of_profile(kind, name, key, base)
    if scenario.acceptance is not None:
        yield "acceptance", _acceptance(scenario)


def _of_model(section: Model, key: str, base: Path) -> Input:
    if section.profile is None and section.checkpoint is not None:
        return Input("model", section.checkpoint, "none stated", "the checkpoint itself")
    return _of_profile("model", section.profile, f"{key}.profile", base)


def _of_profile(kind: str, name: str | None, key: str, base: Path) -> Input:
    """Describe a profile's figures; without a profile they are the scenario's own."""
    if name is None:
        return Input(kind, "", "none stated", STATED)
    _, profile = load_any(profile_path(f"{kind}s", name, key, base))
    return _of_origin(kind, name, profile.origin)


def _of_origin(kind: str, name: str, origin: Origin) -> Input:
    share = "none stated" if origin.uncertainty is None else f"±{origin.uncertainty:.0%}"
    doubt = f"an estimate, {share}" if origin.estimate else share
    source = f"{origin.source}; {origin.note}" if origin.note else origin.source
    return Input(kind, name, doubt, source, str(origin.date))


def _acceptance(scenario: Scenario) -> Input:
    """Describe the source of acceptance: a profile, a recorded file, or numbers of the scenario."""
    section, given = scenario.acceptance, scenario.content["acceptance"]
    assert section is not None
    if given.get("source") == "profile":
        path = profile_path("acceptance", given["name"], "acceptance.name", scenario.path.parent)
        return _of_origin("acceptance", given["name"], load_any(path)[1].origin)
    share = getattr(section, "uncertainty", None)
    doubt = "none stated" if share is None else f"±{share:.0%} of the misses"
    return Input("acceptance", given.get("file", ""), doubt, f"{STATED}: {section.source}")
