"""Guards of the layout: imports, one name per module, what files say of themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from conftest import MissingExecutor

ROOT = Path(__file__).parents[1]
LINKED = ("sim", "executor", "profiles", "studies")
FACES = {
    "__main__.py",
    "cli.py",
    "cli_calibrate.py",
    "cli_options.py",
    "cli_plan.py",
    "extras.py",
    "presentation.py",
}
"""Files of the core folder that belong to the command line, not to the core."""
FORBIDDEN = {"simpy", "torch", "transformers", "time", "random", "zmq"}


def _core_files() -> list[Path]:
    core = ROOT / "treepipe"
    files = [*core.glob("*.py"), *(core / "schedules").glob("*.py")]
    return sorted(file for file in files if file.name not in FACES)


def _all_files() -> list[Path]:
    folders = [ROOT / "treepipe", *(ROOT / name for name in (*LINKED, "tests", "bench"))]
    found = {file.resolve() for folder in folders for file in folder.rglob("*.py")}
    return sorted(found)


def _named(files: Iterable[Path]) -> list[str]:
    return [str(file.relative_to(ROOT)) for file in files]


def _roots(file: Path) -> set[str]:
    """Top-level packages that a file imports absolutely."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


def _python(code: str) -> None:
    """Run code in an interpreter of its own, at the root; its traceback is the failure."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_core_knows_no_clock_model_or_world() -> None:
    assert _core_files()
    known = {file: _roots(file) & FORBIDDEN for file in _core_files()}
    assert not [f"{file.name}: {names}" for file, names in known.items() if names]


def test_core_loads_no_world() -> None:
    """What the rules load on their own; ``time`` and ``random`` are NumPy's own imports."""
    names = [
        f"treepipe.schedules.{file.stem}"
        for file in (ROOT / "treepipe" / "schedules").glob("[a-z]*.py")
    ]
    assert names
    _python(
        f"import sys, treepipe.protocol, treepipe.tree, treepipe.stage, {', '.join(names)}\n"
        "bad = {'simpy', 'torch', 'transformers', 'zmq', 'treepipe.sim', 'treepipe.executor'}\n"
        "assert not bad & set(sys.modules), bad & set(sys.modules)"
    )


def test_planning_alone_needs_no_executor_libraries() -> None:
    _python(
        "import sys\n"
        "import treepipe.cli, treepipe.sim.predict, treepipe.presentation\n"
        "bad = {'torch', 'transformers', 'zmq', 'tokenizers', 'safetensors'} & set(sys.modules)\n"
        "assert not bad, bad"
    )


LOAD_ALL = f"""
import importlib, pkgutil, treepipe
for info in pkgutil.walk_packages(treepipe.__path__, 'treepipe.'):
    try:
        importlib.import_module(info.name)
    except ModuleNotFoundError as missing:  # an optional library is not installed
        if (missing.name or '').split('.')[0] in ('treepipe', *{LINKED!r}):
            raise
"""
FIND_TWINS = """
import collections, pathlib, sys
root = pathlib.Path.cwd().resolve()
names = collections.defaultdict(set)
for name, module in list(sys.modules.items()):
    file = getattr(module, '__file__', None)
    path = pathlib.Path(file).resolve() if file else None
    if path and root in path.parents and 'site-packages' not in path.parts:
        names[path].add(name)
assert names, 'nothing was loaded'
twins = [sorted(found) for found in names.values() if len(found) > 1]
assert not twins, twins
"""


def test_no_module_has_two_names() -> None:
    _python(LOAD_ALL + FIND_TWINS)


def test_a_second_name_would_be_noticed() -> None:
    with pytest.raises(AssertionError, match=r"\['sim', 'treepipe.sim'\]"):
        _python("import sim, treepipe.sim" + FIND_TWINS)


def test_root_folders_are_imported_through_the_package() -> None:
    assert not _named(file for file in _all_files() if _roots(file) & set(LINKED))


@pytest.mark.parametrize("name", LINKED)
def test_links_are_relative(name: str) -> None:
    link = ROOT / "treepipe" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert link.resolve() == ROOT.resolve() / name


def test_files_say_what_belongs_in_them() -> None:
    """A file's docstring states its law."""

    def stated(file: Path) -> bool:
        return bool(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))))

    assert not _named(file for file in _all_files() if not stated(file))


def test_linter_bans_the_second_names() -> None:
    pytest.importorskip("ruff")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--no-cache", "-"],
        cwd=ROOT,
        input="".join(f"import {name}\n" for name in LINKED),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("TID251") == len(LINKED), done.stdout + done.stderr


def test_without_the_executor_its_tests_are_skipped() -> None:
    finder = MissingExecutor()
    with pytest.raises(pytest.skip.Exception, match=r"\(torch is not installed\)"):
        finder.find_spec("torch")
    assert finder.find_spec("treepipe.no_such_module") is None
