"""What the outside relies on: commands, their options, and what the two for a common key do."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.worlds.command_line import Terminal
from treepipe.cli.main import RunOptions, SimulateOptions, app
from treepipe.cli.options import Changes
from treepipe.cli.plan import PlanOptions
from treepipe.cli.validate import ValidateOptions

SHOWN = "--json --quiet"
CHANGED = "--set --seed --runs"
DRAWN = "--trace --plot"
FIXED = {
    "demo": "--out --quiet",
    "simulate": f"SCENARIO.toml {SHOWN} {CHANGED} {DRAWN} --versus --versus-set",
    "run": f"SCENARIO.toml {SHOWN} {CHANGED} {DRAWN} --recording",
    "validate": f"SCENARIO.toml... {SHOWN} {CHANGED} --calibrate-on --timelines --measured",
    "calibrate": "--device --model --set --out",
    "calibrate run": "SCENARIO.toml --out",
    "calibrate links": "SCENARIO.toml --peer --key --out",
    "calibrate acceptance": "--draft --head --set --out",
    "study": f"NAME {SHOWN} --list --full --out",
    "plan": f"CLUSTER.toml {SHOWN} {CHANGED} --out --plot --report --question --sensitivity "
    "--break-even",
    "worker": "--listen --key --make-key --status",
    "sweep": "GRID.toml --out --backend --jobs --json --set",
    "profiles": "",
    "profiles show": "NAME|FILE --check",
    "profiles import": "KIND FILE --out",
    "keys": "PATH",
    "check": "SYSTEM|FILE.py[:NAME] --list --law --examples --json --executor --seed",
}
"""Options, and arguments by their placeholders, of each command; a command may have more."""


@pytest.mark.parametrize("name", FIXED)
def test_a_name_that_the_outside_relies_on_stays(name: str) -> None:
    command = typer.main.get_command(app)
    for part in name.split():
        command = getattr(command, "commands", {})[part]
    options = {each for given in command.params for each in given.opts if each.startswith("--")}
    there = options | {given.metavar or str(given.name).upper() for given in command.params}
    assert set(FIXED[name].split()) <= there


def test_seed_and_runs_are_the_keys(scenario: Path, terminal: Terminal) -> None:
    by_key = terminal.succeeds(
        "simulate", scenario, "--set", "seed=7", "--set", "runs=3", "--json", "-"
    )
    assert (
        terminal.succeeds("simulate", scenario, "--seed", 7, "--runs", 3, "--json", "-") == by_key
    )
    assert (json.loads(by_key)["seed"], json.loads(by_key)["runs"]) == (7, 3)
    assert json.loads(terminal.succeeds("simulate", scenario, "--json", "-"))["seed"] == 3


@pytest.mark.parametrize("record", [SimulateOptions, RunOptions, ValidateOptions, PlanOptions])
def test_the_last_word_on_a_key_has_its_own_option(record: type[Changes]) -> None:
    file = next(each.name for each in fields(record) if each.default is MISSING)
    given: dict[str, Any] = {file: Path("a.toml"), "settings": ["seed=1"]}
    assert record(**given, seed=7, runs=2).changes == ["seed=1", "seed=7", "runs=2"]
    assert record(**given).changes == ["seed=1"]
