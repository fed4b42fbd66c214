"""``docs/adding.md`` holds: its system and its draft source work in both worlds, nothing else is
touched.

Code, entry points and commands are taken from the page. The packages are installed for processes of
their own only, since the records of this one are read already.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.command_line import assert_sentence
from treepipe.testing import LAWS

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
MODULES = ("root_branch", "head_lookup")
"""What the page adds, in its order: a system and a draft source."""


def blocks(language: str) -> list[str]:
    """The page's blocks of code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def command(beginning: str, module: str = "root_branch") -> list[str]:
    """The page's only command that begins like this and names the module's record; its program is
    this interpreter's."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    (line,) = (line for line in lines if line.startswith(beginning) and module in line)
    _, *arguments = shlex.split(line)
    return ["-m", "treepipe", *arguments] if line.startswith("treepipe ") else arguments


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages that holds the page's records."""
    folder = tmp_path_factory.mktemp("site")
    for module, *files in zip(MODULES, blocks("python"), blocks("ini"), strict=True):
        install(folder, module, *files)
    return folder


def install(folder: Path, module: str, code: str, entry_points: str) -> None:
    """Write the module and what a package manager notes of it."""
    (folder / f"{module}.py").write_text(code)
    noted = folder / f"{module}-1.0.dist-info"
    noted.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n"
    (noted / "METADATA").write_text(metadata)
    (noted / "entry_points.txt").write_text(entry_points)


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """This interpreter at the root, with the folder's packages."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    ("verb", "said"), [("simulate", '"tokens_per_round"'), ("run", '"source": "execution"')]
)
def test_it_is_predicted_and_run(installed: Path, module: str, verb: str, said: str) -> None:
    if verb == "run":
        pytest.importorskip("torch")
    done = python(installed, *command(f"treepipe {verb}", module), "--json", "-")
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_its_laws_hold(installed: Path) -> None:
    done = python(installed, *command("treepipe check"), "--examples", "2")
    assert done.returncode == 0, done.stdout
    verdicts = dict(re.findall(r"^(\w+) +(holds|does not apply)", done.stdout, re.M))
    assert set(LAWS) == set(verdicts)
    assert [law for law, verdict in verdicts.items() if verdict != "holds"] == ["closed_form"]


def test_the_draft_source_is_recorded_with_its_keys(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    prompts, out = tmp_path / "texts.json", tmp_path / "mix.toml"
    prompts.write_text(json.dumps(["def spam(eggs):", "import os"]))
    asked = command("treepipe calibrate acceptance", "head_lookup")
    done = python(installed, *asked, "--prompts", str(prompts), "--out", str(out), "--quiet")
    assert done.returncode == 0, done.stderr
    assert 'draft = "reference and prompt lookup"' in out.read_text()
    made = json.loads(out.with_suffix(".json").read_text())["draft_keys"]
    assert made == {"source": "head_lookup", "ngram": 3, "head_weight": 0.7}


def test_keys_are_the_scenarios_with_their_bounds_and_conditions(installed: Path) -> None:
    chain = ("-m", "treepipe", "simulate", "studies/scenarios/chain.toml", "--set", "runs=1")
    done = python(installed, *chain, "--set", "drafts.0.head_weight=0.7")
    assert "it is read only where drafts.0.source is 'head_lookup'" in " ".join(
        (done.stdout + done.stderr).split()
    )
    few_nodes = ("--set", "schedule.root_nodes=2")
    for arguments, sentence in (
        ((*chain, "--set", "drafts.0.head_weight=1.5"), "key drafts.0.head_weight"),
        (
            (*command("treepipe simulate"), *few_nodes),
            "key schedule.root_nodes = 2: fewer than root_children",
        ),
    ):
        done = python(installed, *arguments)
        assert done.returncode == 2
        assert_sentence(done.stderr, sentence)


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
               "target.profile=qwen-2.5-0.5b", "target.layers=24"]
    return memory_needs(deploy(Scenario.load(path, changes)))[0].entries

assert entries(20) - entries(8) == 12, "the memory bound counts its tree"
"""


def test_planner_keys_and_memory_know_it(installed: Path) -> None:
    done = python(installed, "-c", READERS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "kind", "code", "sentence"),
    [
        (
            *("root_branch", "system", "import no_such_module"),
            "ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            *("root_branch", "system", ""),
            "TypeError: root_branch has no tuple SYSTEMS of System records",
        ),
        (
            *("head_lookup", "draft source", ""),
            "TypeError: head_lookup has no tuple DRAFTS of Drafter records",
        ),
        (
            *("root_branch", "system"),
            "from dataclasses import replace\n"
            "from treepipe.core.schedules.pp import SYSTEMS\n"
            "SYSTEMS = (replace(SYSTEMS[0], name='mine', tree_tokens=lambda p, stages: -1),)",
            "ValueError: system 'mine': a bound for 1 stages is -1, not a number of tokens",
        ),
    ],
)
def test_a_package_that_cannot_be_loaded_is_named(
    module: str, kind: str, code: str, sentence: str, tmp_path: Path
) -> None:
    install(tmp_path, module, code, blocks("ini")[MODULES.index(module)])
    done = python(tmp_path, *command("treepipe simulate", module))
    assert done.returncode == 2
    complaint = f"treepipe: installed {kind} '{module}' ({module}) cannot be loaded: "
    assert done.stderr == f"{complaint}{sentence}\n"
