"""A plan's page: whole, loads nothing, says all that was found, and takes no name for markup."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from tests.worlds.pages import ReadPage
from tests.worlds.searches import CLUSTER, METRIC, found
from tests.worlds.written_studies import say
from treepipe.core.errors import UserError
from treepipe.files.toml_file import toml_text
from treepipe.planner.halving import SearchResult
from treepipe.planner.page import plan_report
from treepipe.planner.report import plan_content
from treepipe.planner.sensitivity import Sensitivities
from treepipe.profiles.library import find_device
from treepipe.report.page import NOT_MODELLED, Chapter, Report, inputs_table, report_html
from treepipe.results.sheet import Sheet, words
from treepipe.results.units import number
from treepipe.scenario.scenario import Scenario

pytestmark = pytest.mark.long

EVIL = "<script>alert('1')</script> & \"x\" $\\frac$"
SEARCHED: dict[str, Any] = {
    "search.schedules": ["pp", "chain"],
    "search.grid": {"schedule.gamma": [1, 3]},
    "search.first_runs": 3,
    "links.default": "ethernet-1g",
    "workload": {"new_tokens": 4},
    "search.cases": 20,
}


@cache
def searched() -> SearchResult:
    return found(**SEARCHED)


@cache
def plan_page() -> str:
    each = searched()
    done = {"sensitivity": Sensitivities.run(each, say, ["scale.drafts", "scale.misses"])}
    return report_html(plan_report(each, done, "treepipe plan 'a b.toml'"))


@cache
def scenario() -> Scenario:
    content = {key: value for key, value in CLUSTER.items() if key != "search"}
    drawn = {"schedule": {"name": "chain", "gamma": 2}, "seed": 3, "runs": 3}
    return Scenario.of({**content, **drawn})


def test_a_page_is_whole_answers_shortly_and_loads_nothing() -> None:
    text = plan_page()
    (answer,) = re.findall(r'class="answer">(.*?)</section>', text, re.DOTALL)
    assert 1 <= answer.count("<p>") <= 2
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        assert re.search(r'role="img".*?<title>.{5,}</title>', svg, re.DOTALL)
    page = ReadPage(text)
    names = {tag for tag, _ in page.elements}
    assert {"main", "table", "h1", "svg"} <= names
    assert "Not modelled" in page.text
    assert "Make it again" in page.text
    assert not names & {"script", "link", "img", "iframe", "object", "image", "foreignobject"}
    assert {"width=device-width, initial-scale=1"} <= set(page.values("content"))
    ids = page.values("id")
    assert len({*ids}) == len(ids)
    leads = [*page.values("href"), *page.values("xlink:href"), *page.values("src")]
    inside = [value for values in page.elements for value in values[1].values()]
    drawn = re.findall(r"url\(([^)]*)\)", page.style + " ".join(inside))
    assert {each.strip("'\"") for each in (*leads, *drawn)} <= {f"#{each}" for each in ids}
    assert "@import" not in page.style
    assert not [value for value in inside if "http://" in value or "https://" in value]


def test_a_plan_tells_every_figure_of_its_ranking() -> None:
    page, content = ReadPage(plan_page()), plan_content(searched())
    cells = [" ".join(row) for row in page.cells]
    assert len(content["ranking"]) >= 3
    for each in content["ranking"]:
        value = each[METRIC]
        known = value["low"] is not None
        ends = f"{number(value['low'])} … {number(value['high'])}" if known else "exact"
        assert any(number(value["mean"]) in row and ends in row for row in cells)
        if gap := each["relative_to_best"]:
            assert any(f"{gap['mean']:+.1%}" in row for row in cells)
    for plan in content["uncertain_inputs"]["plans"].values():
        low, high = (number(plan[METRIC][end]) for end in ("low", "high"))
        assert any(f"{low} … {high}" in row for row in cells)
        assert any(f"{plan['best_in']:.0%}" in row for row in cells)
    best = content["ranking"][0]
    assert f"a token every {number(best[METRIC]['mean'], 3)} ms" in page.text
    share = content["uncertain_inputs"]["plans"][best["schedule"]]["best_in"]
    assert f"{best['schedule']} is the best in {share:.0%}" in page.text


def test_a_plan_tells_its_warnings_inputs_and_what_was_not_modelled() -> None:
    text, best = ReadPage(plan_page()).text, searched().winner
    assert best.outcome.warnings
    lines = NOT_MODELLED.read_text().splitlines()
    told = [
        *best.outcome.warnings,
        best.path.sentences[0],
        *(line.removeprefix("- ").strip() for line in lines),
        "IEEE 802.3",  # the source of the link's profile
        "±50%",
        'schedules = ["pp", "chain"]',
        "Pareto front",
        "What the answer hangs on",
        "Timeline of the best plan",
        "another schedule is best",
    ]
    assert [each for each in told if each not in text] == []


def test_a_search_without_a_feasible_plan_has_a_page_that_says_so() -> None:
    each = found(**{"search.limits": {METRIC: 1.0}})
    text = ReadPage(report_html(plan_report(each))).text
    assert "no plan keeps the limits: " in text
    assert "time between tokens at most 1 ms" in text
    assert all(str(miss) in text for miss in each.winner.misses)
    assert "Pareto front" not in text
    with pytest.raises(UserError, match="no plan keeps the limits; none is drawn"):
        each.plot()


def test_names_are_never_taken_for_markup() -> None:
    """Of a cluster, a device and its host: in sentences, cells, keys and pictures."""
    table = Sheet(EVIL, words(EVIL), [(EVIL,)])
    alone = Report(EVIL, EVIL, [Chapter(EVIL, [EVIL], [table], verbatim=EVIL)])
    device = {"stage_ms": {1: 20.0}}
    stages = [{"device": device, "count": 2, "host": EVIL}]
    named = found(name=EVIL, pipelines=[{"stages": stages}])
    for text in (report_html(alone), report_html(plan_report(named))):
        page = ReadPage(text)
        assert "script" not in {tag for tag, _ in page.elements}
        assert EVIL in page.text


def test_inputs_are_told_with_their_sources_once() -> None:
    device = find_device("jetson-orin-nano-8gb", "test")
    drafts = [{"device": "emulated-20ms"}, {"device": "jetson-orin-nano-8gb"}]
    each = scenario().with_(drafts=drafts)
    each = each.with_(acceptance={"source": "profile", "name": "reference"})
    grid = inputs_table([each, each])
    rows = [tuple(row) for row in grid.texts]
    by = {str(row[2]): row for row in rows}
    assert len(by) == len(rows)
    assert str(device.origin.source) in by["drafts.1.device"][4]  # type: ignore[union-attr]
    assert by["drafts.1.device"][3] == "an estimate, ±40%"
    assert by["pipelines.0.stages.0.device"][4].startswith("the scenario itself")
    assert by["acceptance"][1] == "reference"
    assert by["links.default, links.local"][0] == "link"


# --- the command line -------------------------------------------------------------------------


def test_the_page_holds_the_command_that_makes_it_again(terminal: Terminal) -> None:
    """With names that a shell would take apart."""
    cluster, out, plot = Path("a b.toml"), Path("the 'page'"), Path("front.png")
    search = {"search": {"schedules": ["pp"], "cases": 0}}
    cluster.write_text(toml_text(searched().cluster.content | CLUSTER | search, []))
    options = ["--report", out, "--plot", plot, "--quiet", "--runs", "2", "--set", "seed=5"]
    terminal.succeeds("plan", cluster, *options)
    first = (out / "index.html").read_text()
    (line,) = re.findall(r"<pre[^>]*>(treepipe .*?)</pre>", first)
    typed = shlex.split(ReadPage(f"<!doctype html><p>{line}</p>").text)
    assert typed == ["treepipe", "plan", *map(str, (cluster, *options))]
    assert "seed 5" in first
    assert plot.stat().st_size > 5_000, "without another picture --plot draws the front"
    terminal.succeeds(*typed[1:], "--force")
    assert (out / "index.html").read_text().replace(" --force", "") == first


def test_a_library_writes_the_same_page(tmp_path: Path) -> None:
    """Byte for byte; and a phone loads it at once: five pictures, some tables."""
    each = searched()
    path = each.report(tmp_path / "out")
    assert path.read_text() == report_html(plan_report(searched()))
    assert 20_000 < path.stat().st_size < 400_000
    with pytest.raises(UserError, match="there is such a file already"):
        each.report(tmp_path / "out")
