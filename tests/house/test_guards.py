"""Guards of the layout: imports, one name per module, what files say of themselves."""

from __future__ import annotations

import ast
import multiprocessing.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from conftest import EXECUTOR, MissingExecutor
from tests.worlds.command_line import SCENARIO, on_one_host
from tests.worlds.sources import modules, nodes, parsed

ROOT = Path(__file__).parents[2]
LINKED = ("sim", "executor", "profiles", "studies")
ROOMS = (
    *("core", "files", "physics", "scenario", "results", "report", "validation", "planner"),
    *("sweeps", "testing", "cli"),
    *LINKED,
)
FLOORS = ("models", "wire", "hosts", "run")
"""Of the executor, from below."""
STUDIED = {
    *("core.errors", "core.schedules", "physics.timing", "sim.points", "sim.theory"),
    *("planner.cluster", "planner.plan"),
    *("validation.comparison", "validation.judgement", "validation.validation"),
}
"""What studies use of the rooms with the machinery: the list may become shorter."""
MEASURING = {"dsd.py", "evidence.py", "real_speed.py", "real_time.py"}
"""Studies that run processes in a way of their own."""
IMPURE = {"time", "random", "threading", "socket", "subprocess", "multiprocessing", "asyncio"}
"""Of the standard library: what a rule may not know."""


MOST_CHAIN = 8
"""Modules of the longest chain of imports within the executor."""


@cache
def _all_files() -> list[Path]:
    folders = [ROOT / "treepipe", *(ROOT / name for name in (*LINKED, "tests", "bench"))]
    found = {file.resolve() for folder in folders for file in folder.rglob("*.py")}
    return sorted(found)


def _named(files: Iterable[Path]) -> list[str]:
    return [str(file.relative_to(ROOT)) for file in files]


def _roots(file: Path) -> set[str]:
    """Top-level packages that a file imports."""
    return {name.split(".")[0] for name in modules(file)}


def _rooms(file: Path) -> set[str]:
    """Rooms that a file imports from."""
    parts = [name.split(".") for name in modules(file) if name.startswith("treepipe.")]
    return {part[1] for part in parts} & set(ROOMS)


def _python(code: str) -> None:
    """Run code in an interpreter of its own, at the root; its traceback is the failure."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _room_files(room: str) -> list[Path]:
    folder = ROOT / room if room in LINKED else ROOT / "treepipe" / room
    return sorted(folder.rglob("*.py"))


def test_core_imports_only_numpy_and_itself() -> None:
    assert _room_files("core")
    # Only type checkers read typing_extensions, for what typing lacks on the oldest Python.
    allowed = (set(sys.stdlib_module_names) - IMPURE) | {"numpy", "treepipe", "typing_extensions"}
    strange = {
        file.name: (_roots(file) - allowed) | (_rooms(file) - {"core"})
        for file in _room_files("core")
    }
    assert not {name: found for name, found in strange.items() if found}


def test_rooms_form_no_cycle_and_their_picture_is_true() -> None:
    """What a room imports, inside functions and for type checkers, too, can be reached from it
    along the arrows, and no arrow leads back."""
    (picture,) = re.findall(
        r"```mermaid\nflowchart BT\n(.*?)```", (ROOT / "docs" / "design.md").read_text(), re.S
    )
    assert {name for name, _ in re.findall(r"(\w+)\[\"<b>(\w+)</b>", picture)} == set(ROOMS)
    below: dict[str, set[str]] = {room: set() for room in ROOMS}
    for above, needed in re.findall(r"(\w+) --> ([\w &]+)", picture):
        below[above] |= set(needed.split(" & "))
    reached: dict[str, set[str]] = {}
    for room in TopologicalSorter(below).static_order():
        reached[room] = {room}.union(*(reached[each] for each in below[room]))
        imported = set().union(*map(_rooms, _room_files(room)))
        assert imported <= reached[room], (room, imported - reached[room])


def test_files_form_no_cycle() -> None:
    """Imports inside functions and for type checkers count, and the package's own face."""
    folders = [ROOT / "treepipe", *(ROOT / name for name in LINKED)]
    found = {file.resolve() for folder in folders for file in folder.rglob("*.py")}
    parts = {file: file.relative_to(ROOT).with_suffix("").parts for file in found}
    named = {
        ".".join(("treepipe", *each) if each[0] in LINKED else each).removesuffix(".__init__"): file
        for file, each in parts.items()
    }
    assert len(named) > 250
    above = {name: (modules(file) & named.keys()) - {name} for name, file in named.items()}
    TopologicalSorter(above).prepare()  # raises CycleError, which names the files


@pytest.mark.parametrize("place", range(len(FLOORS)))
def test_a_floor_of_the_executor_imports_those_below_alone(place: int) -> None:
    """Inside functions and for type checkers, too. A worker's body alone knows that it may be an
    end of a measured link."""
    above = {*FLOORS[place + 1 :], "measure"}
    for file in (ROOT / "executor" / FLOORS[place]).rglob("*.py"):
        parts = [name.split(".") for name in modules(file)]
        used = {part[2] for part in parts if part[:2] == ["treepipe", "executor"] and part[2:]}
        allowed = {"measure"} if file.name == "worker.py" else set()
        assert not (used & above) - allowed, file


def test_chains_of_imports_within_the_executor_are_short() -> None:
    """Of what runs when a module is loaded, ``measure`` aside, which stands beside the floors."""
    found = [file for floor in FLOORS for file in (ROOT / "executor" / floor).rglob("*.py")]
    named = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in found}

    @cache
    def chain(name: str) -> int:
        body = ast.parse(named[name].read_text(encoding="utf-8")).body
        froms = [each for each in body if isinstance(each, ast.ImportFrom) and each.module]
        below = {f"{each.module}.{part.name}" for each in froms for part in each.names}
        below |= {str(each.module) for each in froms}
        below = {each.removeprefix("treepipe.") for each in below}
        return 1 + max(map(chain, below & named.keys()), default=0)

    assert max(map(chain, named)) == MOST_CHAIN


def test_nothing_that_is_installed_imports_the_workshop() -> None:
    workshop, apart = "treepipe.studies.workshop", {"workshop", "tests"}
    files = [file for file in _all_files() if not apart & {*file.relative_to(ROOT).parts}]
    assert len(files) > 200
    assert not _named(f for f in files if any(name.startswith(workshop) for name in modules(f)))


def test_studies_use_no_machinery() -> None:
    """Nobody's private names, no worlds, desks, workers or searches in parts: what a user's own
    script may use."""
    folder, machinery = ROOT / "studies", {name.split(".")[0] for name in STUDIED} | {"executor"}
    files = [file for file in folder.rglob("*.py") if "workshop" not in file.parts]
    assert len(files) > 15
    for file in files:
        names = [name.removeprefix("treepipe.") for name in modules(file) if "treepipe." in name]
        assert not [name for name in names if "._" in name], file
        used = {".".join(name.split(".")[:2]) for name in names if "." in name}
        used = {name for name in used if name.split(".")[0] in machinery} - STUDIED
        if file.relative_to(folder).as_posix() in MEASURING:
            used = {name for name in used if not name.startswith("executor.")}
        assert not used, (file, used)


@pytest.mark.processes
def test_starting_loads_no_more_than_it_needs() -> None:
    """``treepipe --help`` no numbers, a simulation nothing slow to load that it does not use: none
    of the shipped scenarios, even those of models that a run would load, needs the executor."""
    _python(
        "import sys, treepipe.cli.main\n"
        "from pathlib import Path\n"
        "bad = {'numpy', 'scipy', 'simpy', 'pydantic'} & set(sys.modules)\n"
        "assert not bad, bad\n"
        "import treepipe.results.show, treepipe.sim.theory.closed_form\n"
        "assert 'scipy' not in sys.modules\n"
        "from treepipe import Scenario, simulate\n"
        "slow = {'scipy.stats', 'scipy.optimize', 'matplotlib', 'pandas', 'pyarrow', 'joblib',\n"
        "        'torch', 'transformers', 'zmq', 'tokenizers', 'safetensors'}\n"
        "few = 'runs=1', 'workload.requests=1', 'workload.new_tokens=4'\n"
        "paths = sorted(Path('studies/scenarios').glob('*.toml'))\n"
        "assert paths\n"
        "for path in paths:\n"
        "    simulate(Scenario.load(path, few))\n"
        "    assert not slow & set(sys.modules), (path, slow & set(sys.modules))"
    )
    # No command loads what draws, unless it draws: it would write into the home folder.
    short, cluster = "studies/scenarios/pp.toml", "studies/clusters/five-emulated.toml"
    _python(
        "import sys, treepipe.cli.main as cli\n"
        f"for words in (['simulate', {short!r}, '--set', 'workload.new_tokens=4'],\n"
        f"              ['plan', {cluster!r}, '--question', 'depth'], ['study']):\n"
        "    sys.argv = ['treepipe', *words]\n"
        "    try:\n"
        "        cli.main()\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, words\n"
        "    assert 'matplotlib' not in sys.modules, words"
    )
    # Studies by simulation alone work where the executor's libraries are not installed.
    _python(
        "import sys, importlib\n"
        "from treepipe.studies.study import STUDIES\n"
        "for study in STUDIES.values():\n"
        "    if not study.needs_executor:\n"
        "        importlib.import_module(study.module)\n"
        "        slow = {'torch', 'transformers', 'zmq', 'safetensors'} & set(sys.modules)\n"
        "        assert not slow, (study.name, slow)"
    )
    # A worker of a sweep makes no intervals.
    _python("import sys, treepipe.sweeps.sweep\nassert 'scipy' not in sys.modules")


def _refuse(commands: Iterable[tuple[object, ...]]) -> str:
    """Code that has each of them refused, after which PyTorch is not there yet."""
    return (
        "import sys, treepipe.cli.main as cli\n"
        f"for words in {[[*map(str, words)] for words in commands]}:\n"
        "    sys.argv = ['treepipe', *words]\n"
        "    try:\n"
        "        cli.main()\n"
        "    except SystemExit as end:\n"
        "        assert end.code in (1, 2), words\n"
        "    slow = {'torch', 'transformers'} & set(sys.modules)\n"
        "    assert not slow, (words, slow)"
    )


@pytest.mark.processes
def test_what_is_wrong_is_said_before_pytorch_is_loaded(tmp_path: Path) -> None:
    for name in EXECUTOR:
        pytest.importorskip(name)
    elsewhere, box, none, there = (tmp_path / name for name in ("two", "box", "none", "there"))
    away = tmp_path / "away"
    text = on_one_host(SCENARIO).replace("stages = [{", 'stages = [{ worker = "127.0.0.1:1",')
    away.write_text(text.replace("[[drafts]]\n", '[[drafts]]\nworker = "127.0.0.1:1"\n'))
    elsewhere.write_text(SCENARIO)
    box.write_text(on_one_host(SCENARIO))
    there.write_text('["one", "two", "three"]')
    run = ("calibrate", "run")
    refused: list[tuple[object, ...]] = [
        ("run", none),
        ("run", elsewhere, "--json", none / "r.json"),
        ("run", away),
        ("validate", away),
        (*run, away, "--out", tmp_path / "away.toml"),
        (*run, none),
        (*run, elsewhere),
        (*run, box, "--out", there),
        (*run, box, "--out", none / "host.toml"),
        (*run, box, "--out", tmp_path / "host.toml", "--prompts", there),
        ("worker", "--listen", "here"),
        ("worker", "--listen", "10.0.0.7:80"),
        ("worker", "--listen", "127.0.0.1:0", "--key", none),
        ("worker", "--make-key", there),
        ("worker", "--status", "here"),
    ]
    _python(_refuse(refused))


def test_root_folders_are_imported_through_the_package() -> None:
    assert not _named(file for file in _all_files() if _roots(file) & set(LINKED))


@pytest.mark.parametrize("name", LINKED)
def test_links_are_relative(name: str) -> None:
    link = ROOT / "treepipe" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert link.resolve() == ROOT.resolve() / name


def test_files_say_what_belongs_in_them() -> None:
    assert not _named(file for file in _all_files() if not ast.get_docstring(parsed(file)))


def test_no_test_file_is_a_library() -> None:
    """Helpers are in ``tests/worlds``, shared fixtures in ``conftest.py``."""
    tests = [file for file in _all_files() if file.is_relative_to(ROOT / "tests")]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in tests}
    libraries = {name for name in names if name.startswith("tests.worlds")} | {"tests"}
    assert len(libraries) < len(names)

    def uses_a_test(file: Path) -> bool:
        relative = any(isinstance(node, ast.ImportFrom) and node.level for node in nodes(file))
        return relative or bool(modules(file) & (names - libraries))

    assert not _named(filter(uses_a_test, tests))


def test_every_test_is_a_law_or_long_or_starts_processes(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        markers = [m for m in ("laws", "long", "processes") if item.get_closest_marker(m)]
        assert len(markers) == 1, item.nodeid


def test_a_test_in_memory_that_starts_a_process_fails() -> None:
    starts: list[Callable[[], object]] = [
        lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        multiprocessing.get_context("spawn").Process(target=print).start,
        multiprocessing.get_context("fork").Process(target=print).start,
        os.fork,
        lambda: multiprocessing.util.spawnv_passfds(b"/bin/true", [b"true"], ()),
    ]
    for start in starts:
        with pytest.raises(pytest.fail.Exception, match="a test in memory starts no process"):
            start()


def test_without_the_executor_its_tests_are_skipped() -> None:
    finder = MissingExecutor()
    with pytest.raises(pytest.skip.Exception, match=r"\(torch is not installed\)"):
        finder.find_spec("torch")
    assert finder.find_spec("treepipe.no_such_module") is None
