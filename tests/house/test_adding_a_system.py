"""``docs/adding-a-system.md`` holds: its system works in both worlds, and nothing else is touched.

Code, entry point and commands are taken from the page. The package is installed for processes of
their own only, since the systems of this one are read already.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-system.md").read_text(encoding="utf-8")
METADATA = "Metadata-Version: 2.1\nName: root-branch\nVersion: 1.0\n"


def blocks(language: str) -> list[str]:
    """The page's blocks of code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def command(beginning: str) -> list[str]:
    """The page's only command that begins like this; its program is this interpreter's."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    (line,) = (line for line in lines if line.startswith(beginning))
    _, *arguments = shlex.split(line)
    return ["-m", "treepipe", *arguments] if line.startswith("treepipe ") else arguments


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages that holds the page's system."""
    folder = tmp_path_factory.mktemp("site")
    (code,) = blocks("python")
    (entry_points,) = blocks("ini")
    install(folder, code, entry_points)
    return folder


def install(folder: Path, code: str, entry_points: str) -> None:
    """Write the module and what a package manager notes of it."""
    (folder / "root_branch.py").write_text(code)
    noted = folder / "root_branch-1.0.dist-info"
    noted.mkdir()
    (noted / "METADATA").write_text(METADATA)
    (noted / "entry_points.txt").write_text(entry_points)


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """This interpreter at the root, with the folder's packages."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_predicted(installed: Path) -> None:
    done = python(installed, *command("treepipe simulate"), "--json", "-")
    assert done.returncode == 0, done.stderr
    assert '"tokens_per_round"' in done.stdout


def test_it_is_run_in_real_processes(installed: Path) -> None:
    pytest.importorskip("torch")
    done = python(installed, *command("treepipe run"), "--json", "-")
    assert done.returncode == 0, done.stderr
    assert '"source": "execution"' in done.stdout


def test_its_laws_hold(installed: Path) -> None:
    """Texts are plain greedy decoding's under any order of messages; bounds are not exceeded."""
    pytest.importorskip("torch")  # a law is read from a file beside real models
    done = python(installed, *command("python -m pytest"), "-p", "no:cacheprovider", "-rA")
    assert done.returncode == 0, done.stdout
    passed = set(re.findall(r"^PASSED \S+::(\w+)\[root_branch\]", done.stdout, re.M))
    assert passed >= {"test_adversary_cannot_break_it", "test_no_schedule_exceeds_its_bounds"}


READERS = """
from pathlib import Path
from treepipe.planner.candidates import find_candidates
from treepipe.planner.cluster import Cluster, Search
from treepipe.scenario.memory import memory_needs
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleSection

assert "root_branch" in Search().schedules, "the planner offers it"
cluster = Cluster.load("studies/clusters/five-jetsons.toml",
                       ['search.schedules=["root_branch"]', 'search.partitions=["even"]',
                        "search.grid={}"])
tried = [each.settings for each in find_candidates(cluster)[0]]
assert {"schedule.root_nodes": 4, "schedule.root_children": 2} in tried, tried
assert len(tried) == 4, tried

help = ScheduleSection.model_fields["root_nodes"].description
assert help == "nodes below the root", "the list of keys knows it"

def entries(nodes):
    path = Path("studies/scenarios/chain.toml")
    changes = ["schedule.name=root_branch", f"schedule.root_nodes={nodes}",
               "target.layer_mib=1", "target.kv_kib=4"]
    return memory_needs(deploy(Scenario.load(path, changes)))[0].entries

assert entries(20) - entries(8) == 12, "the memory bound counts its tree"
"""


def test_planner_keys_and_memory_know_it(installed: Path) -> None:
    done = python(installed, "-c", READERS)
    assert done.returncode == 0, done.stderr


def test_values_that_contradict_each_other_are_refused_in_one_sentence(installed: Path) -> None:
    settings = ("--set", "schedule.root_nodes=2")
    done = python(installed, *command("treepipe simulate"), *settings)
    assert done.returncode == 2
    assert "key schedule.root_nodes = 2: fewer than root_children" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("", "TypeError: root_branch has no tuple SYSTEMS of System records"),
        (
            "from dataclasses import replace\n"
            "from treepipe.core.schedules.pp import SYSTEMS\n"
            "SYSTEMS = (replace(SYSTEMS[0], name='mine', tree_tokens=lambda p, stages: -1),)",
            "ValueError: system 'mine': a bound for 1 stages is -1, not a number of tokens",
        ),
    ],
)
def test_a_package_that_cannot_be_loaded_is_named(code: str, sentence: str, tmp_path: Path) -> None:
    install(tmp_path, code, blocks("ini")[0])
    done = python(tmp_path, *command("treepipe simulate"))
    assert done.returncode == 2
    complaint = "treepipe: installed system 'root_branch' (root_branch) cannot be loaded: "
    assert done.stderr == f"{complaint}{sentence}\n"
