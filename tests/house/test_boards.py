"""What ``deploy`` and ``docs/jetson.md`` promise: packages that boards have, and commands."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from treepipe.scenario.scenario import Scenario

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parents[2]
COMPILED = {
    *("contourpy", "fonttools", "hf-xet", "kiwisolver", "markupsafe", "matplotlib", "msgspec"),
    *("numpy", "pillow", "pydantic-core", "pyyaml", "pyzmq", "regex", "safetensors", "scipy"),
    *("tokenizers", "torch"),
}
"""Have wheels for aarch64 and Python 3.10, as an audit found. A further one has to be looked up
first: the names of wheels cannot be asked for without a network."""
ELSEWHERE = re.compile(r"(nvidia|cuda|triton)")
"""What only PyPI's own build of torch needs; JetPack brings these."""


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _needed(name: str, seen: set[str]) -> set[str]:
    """Packages that one needs at run time, itself among them, as far as they are installed."""
    if name in seen or ELSEWHERE.match(name):
        return set()
    seen.add(name)
    try:
        requires = distribution(name).requires or []
    except PackageNotFoundError:
        return set()
    plain = [each for each in requires if "extra ==" not in each]
    names = [re.split(r"[\s<>=!~;\[(]", each, maxsplit=1)[0] for each in plain]
    return {name}.union(*(_needed(_canonical(each), seen) for each in names))


def test_whatever_is_compiled_has_a_wheel_for_the_boards() -> None:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*content["dependencies"], *content["optional-dependencies"]["executor"]]
    seen: set[str] = set()
    names = set[str]().union(
        *(_needed(_canonical(re.split(r"[<>=; ]", each)[0]), seen) for each in wanted)
    )
    assert {"numpy", "pydantic-core"} <= names
    tags = {name: distribution(name).read_text("WHEEL") or "" for name in names}
    compiled = {name for name, text in tags.items() if "-none-any" not in text}
    assert compiled <= COMPILED


def test_every_pin_is_there_for_python_3_10() -> None:
    """Of each package that has pins, one is for Python 3.10 on aarch64 Linux."""
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    newer = ">= '3.11'", ">= '3.12'"
    there = {line.split("==")[0] for line in pins if not any(each in line for each in newer)}
    assert {line.split("==")[0] for line in pins} - there <= {"httpx2-jsfetch"}


def test_the_boards_scenario_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "jetson.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    file = tmp_path / "boards.toml"
    file.write_text(text.replace("./acceptance.toml", "reference"))
    scenario = Scenario.load(file)
    workers = [stage.worker for stage in scenario.pipelines[0].stages]
    assert [scenario.drafts[0].worker, *workers] == [f"192.168.1.{n}:5600" for n in range(21, 26)]
    assert scenario.run.key == "cluster.key"
    roles = [*scenario.drafts, *scenario.pipelines[0].stages]
    assert [role.host for role in roles] == [f"board{n}" for n in range(1, 6)]


def test_the_boards_steps_are_in_an_order_that_works() -> None:
    """Each file is made before it is read: the wheel, the key, the profiles."""
    page = (ROOT / "docs" / "jetson.md").read_text()
    steps = [
        "useradd", "pip wheel", "scp dist/", "venv /opt", "--make-key", "scp -p cluster.key",
        "rsync -aL", "calibrate --device", "calibrate acceptance", "worker --listen",
        "calibrate links", "calibrate run", "treepipe simulate", "treepipe run",
        "treepipe validate",
    ]  # fmt: skip
    places = [page.index(step) for step in steps]
    assert places == sorted(places)


def test_the_unit_and_the_image_start_a_worker() -> None:
    unit = (ROOT / "deploy" / "treepipe-worker.service").read_text()
    image = (ROOT / "deploy" / "Dockerfile.jetpack6").read_text()
    assert re.search(
        r"^ExecStart=\S+/treepipe worker --listen \S+ --key \S+ --models \S+$", unit, re.M
    )
    page = (ROOT / "docs" / "jetson.md").read_text()
    assert "SupplementaryGroups=video render" in unit
    assert "--groups video,render" in image
    assert "--groups video,render" in page
    key = re.findall(r"--key (\S+)/cluster.key", unit)[0]
    models = re.findall(r"--models (\S+)$", unit, re.M)[0]
    made = " ".join(line for line in page.splitlines() if line.startswith("install -d "))
    assert {key, models, "/opt/treepipe"} <= set(made.split())
    assert "python3-venv" in page
    assert 'ENTRYPOINT ["treepipe", "worker"]' in image
    assert "constraints.txt" in image
