"""The worked examples: every command of a page is one, on a cluster that ships, and its answer is
behind it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.worlds.command_line import Terminal
from treepipe.studies.workshop.planning_pages import ANSWERED, answered, commands

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "planning").glob("*.md"))
COMMANDS = [(page, each) for page in PAGES for each in commands(page.read_text(encoding="utf-8"))]
TINY = [
    "runs=2",
    'search.schedules=["pp"]',
    'search.partitions=["even"]',
    "search.cases=0",
    "search.grid={}",
    "workload.requests=2",
    "workload.new_tokens=2",
]
"""What is searched and how long, not what is asked."""


def test_there_is_a_page_for_every_question() -> None:
    index = (ROOT / "docs" / "planning" / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\(([\w-]+\.md)\)", index))
    assert linked == {page.name for page in PAGES} - {"README.md"}
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize(("page", "arguments"), COMMANDS, ids=lambda each: str(each)[-40:])
def test_documented_plans_work(
    page: Path, arguments: list[str], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("studies").symlink_to(ROOT / "studies")
    monkeypatch.setenv("XDG_CACHE_HOME", str(terminal.folder / "cache"))
    tiny = [part for setting in TINY for part in ("--set", setting)]
    assert "best plan as a scenario" in terminal.succeeds(*arguments, *tiny)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_answers_are_there_and_dated(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in ANSWERED.finditer(text):
        assert "best plan as a scenario" in block["answer"]
        assert re.search(r"treepipe 0\.\d+\.\d+, \d{4}-\d\d-\d\d", text), "whose figures these are"


def test_a_page_gets_what_its_command_prints() -> None:
    page = "```sh\ntreepipe plan \\\n  a.toml --quiet\n```\n\n```text\nold\n```\n\nThe end.\n"
    made = answered(page, " and ".join)
    assert made == page.replace("old", "plan and a.toml and --quiet")
    assert commands(made) == [["plan", "a.toml", "--quiet"]]
