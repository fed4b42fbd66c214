"""Guards of the layout: what may import what, one name per module, linted and typed code."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKED = ("sim", "executor", "profiles", "studies")
FACES = {"cli.py", "presentation.py"}
"""Files of the core folder that belong to the command line, not to the core."""
FORBIDDEN = {"simpy", "torch", "transformers", "time", "random", "zmq"}


def _core_files() -> list[Path]:
    core = ROOT / "treepipe"
    files = [*core.glob("*.py"), *(core / "schedules").glob("*.py")]
    return [file for file in files if file.name not in FACES]


def _all_files() -> list[Path]:
    folders = [ROOT / "treepipe", *(ROOT / name for name in (*LINKED, "tests", "bench"))]
    found = {file.resolve() for folder in folders for file in folder.rglob("*.py")}
    return sorted(found)


def _imports(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("file", _core_files(), ids=lambda file: file.name)
def test_core_knows_no_clock_model_or_world(file: Path) -> None:
    roots = {name.split(".")[0] for name in _imports(file)}
    assert not roots & FORBIDDEN


def test_core_loads_no_world() -> None:
    names = [
        f"treepipe.schedules.{f.stem}" for f in (ROOT / "treepipe/schedules").glob("[a-z]*.py")
    ]
    code = (
        f"import sys, treepipe.stage, treepipe.tree, {', '.join(names)}\n"
        "bad = {'simpy', 'torch', 'transformers', 'zmq'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_planning_alone_needs_no_executor_libraries() -> None:
    code = (
        "import sys\n"
        "import treepipe.cli, treepipe.sim.predict, treepipe.presentation\n"
        "bad = {'torch', 'transformers', 'zmq', 'tokenizers', 'safetensors'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_no_module_has_two_names() -> None:
    code = (
        "import sys, os, collections, pkgutil, importlib, treepipe\n"
        "for info in pkgutil.walk_packages(treepipe.__path__, 'treepipe.'):\n"
        "    importlib.import_module(info.name)\n"
        "names = collections.defaultdict(set)\n"
        "for name, module in list(sys.modules.items()):\n"
        "    file = getattr(module, '__file__', None)\n"
        "    if file and name != '__main__' and 'treepipe' in file:\n"
        "        names[os.path.realpath(file)].add(name)\n"
        "twice = {file: found for file, found in names.items() if len(found) > 1}\n"
        "assert not twice, twice"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("file", _all_files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_root_folders_are_imported_through_the_package(file: Path) -> None:
    assert not {name.split(".")[0] for name in _imports(file)} & set(LINKED)


@pytest.mark.parametrize("name", LINKED)
def test_links_are_relative(name: str) -> None:
    link = ROOT / "treepipe" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


@pytest.mark.parametrize("file", _all_files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_file_says_what_belongs_in_it_and_stays_short(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "a file's docstring states its law"
    assert text.count("\n") <= 300
