"""What ``import treepipe`` gives: light to import, typed results, the same figures as the commands,
and a tutorial whose code runs."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import treepipe
import treepipe.validation.validation
from tests.worlds.command_line import Terminal
from treepipe.core.errors import UserError
from treepipe.results.statistics import Interval

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
METRIC = "time_between_tokens_ms"
BLOCK = re.compile(r"(<!-- needs the executor -->\n)?```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def loaded(scenario: Path) -> treepipe.Scenario:
    return treepipe.Scenario.load(scenario)


@pytest.mark.processes
def test_importing_it_loads_nothing_else() -> None:
    code = (
        "import sys, treepipe; assert 'simulate' in dir(treepipe)\n"
        "bad = {'numpy', 'pydantic', 'matplotlib', 'torch'} & set(sys.modules); assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_public_name_is_a_room_s() -> None:
    """An imported room of that name would hide it."""
    for name in treepipe.__all__:
        assert getattr(treepipe, name).__module__.startswith("treepipe.")
        assert not (ROOT / "treepipe" / name).exists()
    with pytest.raises(AttributeError, match="simulat'"):
        _ = treepipe.simulat


@pytest.mark.parametrize("name", treepipe.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    """They run as doctests; ``docs/api.md`` promises one each."""
    assert doctest.DocTestFinder(recurse=False).find(getattr(treepipe, name), name)[0].examples


def test_rooms_do_not_import_the_face() -> None:
    files = [f for f in (ROOT / "treepipe").rglob("*.py") if "cli" not in f.parts]
    files += [f for room in ("sim", "executor", "profiles") for f in (ROOT / room).rglob("*.py")]
    found = [f.name for f in files if "treepipe.library" in f.read_text(encoding="utf-8")]
    assert found == ["__init__.py"]


def test_a_result_is_what_the_command_writes(loaded: treepipe.Scenario, terminal: Terminal) -> None:
    written = terminal.succeeds("simulate", loaded.path, "--runs", 2, "--json", "-", "--quiet")
    result = treepipe.simulate(loaded, runs=2)
    assert json.loads(written) == result.to_json()
    assert json.loads(written)["answer"] == result.screen.answer
    assert repr(result).replace("\n", " ").startswith(result.screen.answer)
    assert isinstance(result.plot(), Figure)


def test_a_table_shows_names_as_text(loaded: treepipe.Scenario) -> None:
    result = treepipe.simulate(loaded.with_(name="<script>alert(1)</script>"), runs=1)
    assert "<script>" not in result._repr_html_()
    assert "&lt;script&gt;" in result._repr_html_()


def test_a_notebook_shows_what_a_terminal_shows(loaded: treepipe.Scenario) -> None:
    """Times in units that suit them, figures on the right, warnings, and what binds."""
    result = treepipe.simulate(loaded.with_(**{"schedule.name": "pp", "workload.new_tokens": 60}))
    page = result._repr_html_()
    assert "small, schedule pp (simulation, 2 runs)" in page
    assert re.search(r"<td[^>]*right[^>]*>[\d.]+</td><td[^>]*>exact</td><td[^>]*>s</td>", page)
    assert re.search(r"<p>Binds: pipeline0.stage\d, \d+% of a token&#x27;s time", page)
    assert "Warning: key schedule.tree_size has no effect on pp" in page
    drafting = treepipe.simulate(loaded, runs=2)._repr_html_()
    assert drafting.startswith("<p><b>Taking acceptance (beta = 0.7) as exact: small, schedule")
    text = loaded.with_(name="<b>")._repr_html_()
    assert "&lt;b&gt;" in text
    assert "[acceptance]" in text
    versus = treepipe.compare(loaded, loaded.with_(name="b"), runs=3)._repr_html_()
    assert "all equal" in versus


@pytest.mark.processes
def test_a_scripts_processes_do_not_begin_it_again(tmp_path: Path) -> None:
    """The tutorial's run in a script without ``if __name__ == "__main__":``."""
    pytest.importorskip("torch")
    (code,) = (code for marked, code in BLOCK.findall(TUTORIAL.read_text("utf-8")) if marked)
    script = tmp_path / "script.py"
    script.write_text(f"from treepipe import Scenario\nprint('begun', flush=True)\n{code}")
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("begun\n", "", 0)


def test_without_pandas_it_says_so(
    loaded: treepipe.Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        treepipe.simulate(loaded, runs=1).to_pandas()


def test_common_random_numbers_leave_no_difference(loaded: treepipe.Scenario) -> None:
    found = treepipe.compare(loaded, loaded.with_(seed=99, name="again"), runs=3)
    assert found.differences[METRIC].difference == Interval(0.0, None, None, "all equal")
    assert found.to_json()["schema"] == "treepipe.versus/1"


@pytest.mark.parametrize(
    "real",
    [
        pytest.param(False, id="torch-free"),
        pytest.param(True, id="with the executor", marks=pytest.mark.processes),
    ],
)
def test_the_tutorial_runs(real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if real:
        pytest.importorskip("torch")
    blocks = BLOCK.findall(TUTORIAL.read_text(encoding="utf-8"))
    assert len(blocks) > 5
    assert sum(bool(marked) for marked, _ in blocks) == 1
    names: dict[str, Any] = {}
    for marked, code in blocks:
        if bool(marked) == real or "import Scenario" in code:
            exec(compile(code, str(TUTORIAL), "exec"), names)
