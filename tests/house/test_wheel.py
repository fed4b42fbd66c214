"""The built wheel works on its own: without links, without the repository, from any folder."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
WORKSHOP = Path("treepipe/studies/workshop")
"""It makes parts of the repository; nothing that is installed needs it."""
LINKED = ("sim", "executor", "profiles", "studies")


def _python(code: str, folder: Path, *arguments: object) -> str:
    """Run code in an interpreter of its own in this folder; returns what it printed."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The links stay links in the copy: the wheel must hold what they lead to.
BUILD = """
import shutil, sys
from pathlib import Path
import setuptools.build_meta
root, out = map(Path, sys.argv[1:])
for name in ("treepipe", "sim", "executor", "profiles", "studies"):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / name, Path(name), symlinks=True, ignore=ignored)
for name in ("pyproject.toml", "README.md", "LICENSE"):
    shutil.copy(root / name, name)
print(setuptools.build_meta.build_wheel(str(out)))
"""
SIMULATE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import treepipe
from treepipe.cli import main as cli
home = Path(treepipe.__file__).parent
assert str(home) == sys.argv[1] + "/treepipe", home
scenario = home / "studies" / "scenarios" / "flowspec.toml"
sys.argv = ["treepipe", "simulate", str(scenario), "--runs", "1", "--quiet",
            "--set", "workload.requests=1", "--set", "workload.new_tokens=8", "--json", "-"]
cli.main()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="77")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    return out / _python(BUILD, source, ROOT, out).splitlines()[-1]


def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    kinds = {".py", ".toml", ".json", ".gz", ".safetensors", ".md", ".html", ".js", ".typed"}
    folders = [ROOT / "treepipe", *(ROOT / "treepipe" / name for name in LINKED)]
    files = {path.relative_to(ROOT) for folder in folders for path in folder.rglob("*")}
    expected = {
        str(file) for file in files if file.suffix in kinds and WORKSHOP not in file.parents
    }
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        assert not [info.filename for info in archive.infolist() if info.external_attr >> 28 == 0xA]
    assert len(expected) > 300
    assert not expected - held
    assert not [name for name in held if Path(name).is_relative_to(WORKSHOP)]
    assert any(name.endswith("licenses/LICENSE") for name in held)


def test_wheel_simulates_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    unpacked, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    assert not any(path.is_symlink() for path in unpacked.rglob("*"))
    result = json.loads(_python(SIMULATE, elsewhere, unpacked))
    assert result["source"] == "simulation"
    assert result["metrics"]["time_between_tokens_ms"]["mean"] > 0
