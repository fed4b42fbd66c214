"""Guards of the layout: what may import what, one name per module, linted and typed code."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

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


def _label(file: Path) -> str:
    return str(file.relative_to(ROOT))


def _imports(file: Path) -> set[str]:
    """Modules that a file imports absolutely; ``from a import b`` counts as ``a`` and ``a.b``."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _python(code: str) -> None:
    """Run code in an interpreter of its own, at the root; its traceback is the failure."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", _core_files(), ids=_label)
def test_core_knows_no_clock_model_or_world(file: Path) -> None:
    assert not {name.split(".")[0] for name in _imports(file)} & FORBIDDEN


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


@pytest.mark.parametrize("file", _all_files(), ids=_label)
def test_root_folders_are_imported_through_the_package(file: Path) -> None:
    assert not {name.split(".")[0] for name in _imports(file)} & set(LINKED)


@pytest.mark.parametrize("name", LINKED)
def test_links_are_relative(name: str) -> None:
    link = ROOT / "treepipe" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert link.resolve() == ROOT.resolve() / name


@pytest.mark.parametrize("file", _all_files(), ids=_label)
def test_file_says_what_belongs_in_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "a file's docstring states its law"


def _tool(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", LINKED)
def test_linter_bans_the_second_name(name: str) -> None:
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--no-cache", "-"],
        cwd=ROOT,
        input=f"import {name}\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "TID251" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "command",
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy", "-p", "treepipe")],
    ids=["ruff-check", "ruff-format", "mypy"],
)
def test_code_is_clean(command: tuple[str, ...]) -> None:
    done = _tool(*command)
    assert done.returncode == 0, done.stdout + done.stderr
