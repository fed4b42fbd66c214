"""What commands print of shipped files: a screen of 24 lines and 80 columns."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.worlds.command_line import ROOT, Terminal
from treepipe.studies.workshop.planning_pages import answered, commands, write_given

BOXES = """
name = "two boxes"
target = { profile = "llama-3.2-3b" }
drafts = [{ device = "rtx-4090", host = "a", model = { profile = "llama-3.2-1b" } }]
pipelines = [{ stages = [{ device = "rtx-4090", host = "a" }, { device = "l40", host = "b" }] }]
links = { default = "ethernet-10g" }
acceptance = { source = "bernoulli", beta = 0.7 }
search = { cases = 2 }
"""
SHORT = ("--set", "workload.new_tokens=6", "--set", "workload.requests=1")
FEW = ("--set", "search.grid={schedule={tree_size=[20],width=[8],gamma=[2],expand_depth=[3]}}")
CLUSTER = ROOT / "studies" / "clusters" / "five-emulated.toml"
PLAN = ("plan", CLUSTER, *SHORT, *FEW, "--runs", 2, "--jobs", 1, "--out", "best.toml")
SCENARIOS = sorted(path.stem for path in (ROOT / "studies" / "scenarios").glob("*.toml"))


def assert_a_screen(shown: str, answer: str) -> None:
    lines = shown.splitlines()
    assert 5 <= len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).startswith(answer)
    sides = "┃│━─"
    assert not any(each in shown for each in sides), "a frame takes columns and lines"


@pytest.mark.parametrize("name", SCENARIOS)
def test_simulate_prints_a_screen_of_every_shipped_scenario(name: str, terminal: Terminal) -> None:
    path = ROOT / "studies" / "scenarios" / f"{name}.toml"
    shown = terminal.succeeds("simulate", path, *SHORT, "--runs", 2, "--json", "r.json")
    assert_a_screen(shown, json.loads(Path("r.json").read_text())["answer"])
    assert re.search(r"tokens/s.*, a token every [\d.]+ ms", " ".join(shown.split()))


def test_a_comparison_is_a_screen_and_verbose_has_all_of_it(terminal: Terminal) -> None:
    path = ROOT / "studies" / "scenarios" / "flowspec.toml"
    asked = ("simulate", path, *SHORT, "--runs", 2, "--versus-set", "schedule.tree_size=8")
    shown = terminal.succeeds(*asked, "--json", "v.json")
    assert_a_screen(shown, json.loads(Path("v.json").read_text())["answer"])
    whole = terminal.succeeds(*asked, "--verbose")
    assert whole.splitlines()[0].startswith(shown.splitlines()[0])
    assert "utilization pipeline0.stage4" in whole
    assert "utilization" not in shown


def test_plan_prints_one_row_per_system_what_binds_and_what_it_hangs_on(terminal: Terminal) -> None:
    shown = terminal.succeeds(*PLAN, "--json", "p.json")
    content = json.loads(Path("p.json").read_text())
    assert_a_screen(shown, content["answer"])
    schedules = [each["schedule"] for each in content["ranking"]]
    assert len(schedules) > len({*schedules}) > 3, "there is something to leave out"
    rows = re.findall(r"^(\w+)(?: = \w+)*  +[\d.]+", shown, re.M)
    assert sorted(rows) == sorted({*rows})
    assert {*rows} <= {*schedules}
    assert f"\nBinds: {content['ranking'][0]['binds']}, " in shown
    assert f"--verbose shows: all {len(schedules)} plans by all goals" in shown
    whole = terminal.succeeds(*PLAN, "--force", "--verbose")
    assert len(whole.splitlines()) > 24
    assert all(warning in " ".join(whole.split()) for warning in content["warnings"])


def test_sections_that_are_asked_for_come_below_and_are_short(terminal: Terminal) -> None:
    only = ("--runs", 2, "--jobs", 1, "--out", "best.toml", "--set", 'search.schedules=["pp"]')
    shown = terminal.succeeds("plan", CLUSTER, *SHORT, *only, "--sensitivity", "--robust")
    parts = re.split(r"^(?=pp: .*\(2 paired runs\)\.$)", shown, flags=re.M)
    assert len(parts) == 3
    assert all(4 <= len(each.splitlines()) <= 24 for each in parts)
    assert max(map(len, shown.splitlines())) <= 80
    assert "\ntimes of all stages   -" in parts[1]
    assert parts[2].endswith("\nbest plan as a scenario: best.toml\n")


@pytest.mark.parametrize("question", ["worth", "depth", "split"])
def test_a_question_is_answered_before_a_table_of_at_most_12_lines(
    question: str, terminal: Terminal
) -> None:
    Path("boxes.toml").write_text(BOXES)
    asked = ("plan", "boxes.toml", "--question", question, "--json", "q.json")
    shown = terminal.succeeds(*asked)
    assert_a_screen(shown, json.loads(Path("q.json").read_text())["answer"])
    assert shown.startswith("Taking acceptance (beta = 0.7) as exact: ")


def test_a_sweep_names_the_fastest_scenario_and_its_settings(terminal: Terminal) -> None:
    pytest.importorskip("pyarrow")
    grid = ROOT / "studies" / "sweeps" / "flowspec-links.toml"
    asked = ("sweep", grid, "--out", "out", "--jobs", 1, "--set", "sweep.samples=2")
    shown = terminal.succeeds(*asked, "--set", "runs=1", *SHORT, "--json", "s.json")
    content = json.loads(Path("s.json").read_text())
    assert_a_screen(shown, content["answer"])
    ms = [float(each) for each in re.findall(r"^ +([\d.]+)  ", shown, re.M)]
    assert ms == sorted(ms)
    assert f"the least time between tokens, {ms[0]:g} ms" in " ".join(shown.split())


def test_the_first_page_shows_what_its_commands_print(terminal: Terminal) -> None:
    """A newcomer writes a file, asks, and sees the answer; made by ``planning_pages README.md``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [each[0] for each in commands(text)] == ["plan"]
    Path("studies").symlink_to(ROOT / "studies")
    write_given(text, terminal.folder)
    assert Path("boxes.toml").read_text().startswith("# boxes.toml\nname = ")
    assert answered(text, lambda each: terminal.succeeds(*each)) == text
    assert len(text.splitlines()) <= 90
