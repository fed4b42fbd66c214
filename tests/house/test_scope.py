"""``docs/scope.md`` is true: it lists what there is, and it is short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from treepipe.cli.main import app
from treepipe.core.schedules import systems

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scope.md").read_text(encoding="utf-8")


def _listed(kind: str) -> list[str]:
    """The names of one of the page's lists."""
    (paragraph,) = re.findall(rf"^{kind}: (.*?)\n\n", PAGE, re.M | re.S)
    return re.findall(r"`(\w+)`", paragraph)


def _chapter(title: str) -> str:
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return text


def test_its_commands_are_those_of_the_command_line() -> None:
    group = typer.main.get_command(app)
    commands = set(getattr(group, "commands", ()))
    assert set(_listed("Commands")) == commands
    assert len(_listed("Commands")) == len(set(_listed("Commands")))


def test_its_systems_are_those_of_the_package() -> None:
    assert sorted(_listed("Systems")) == sorted(systems())


def test_it_is_a_page_and_the_readme_leads_to_it() -> None:
    assert len(PAGE.split()) < 800
    purpose = _chapter("What it is for").split("\n\n")[0]
    assert purpose.count(".") == 5, "five sentences"
    assert "(docs/scope.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md"])
def test_newcomers_are_sent_to_the_small_file(file: str) -> None:
    assert "(docs/mini.py)" in (ROOT / file).read_text(encoding="utf-8")


def test_the_path_into_the_core_is_as_long_as_newcomers_are_told() -> None:
    """CONTRIBUTING.md says 2,300 lines, and then the desks."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (step,) = re.findall(r"^2\. (.*?)^3\. ", page, re.M | re.S)
    files = [ROOT / "treepipe" / "core" / name for name in re.findall(r"`([\w/]+\.py)`", step)]
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert re.search(r"2,300 lines", step)
    assert 2100 < lines < 2500
