"""Where simulations are worked out: two processes, a cluster of Dask or of Ray, or a process that
is killed; the results are the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest

from tests.worlds.searches import CLUSTER
from tests.worlds.written_studies import say
from treepipe.core.errors import RunError
from treepipe.files.toml_file import toml_text
from treepipe.planner.capacity import capacities
from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import search
from treepipe.sim.engine import engine, run_jobs
from treepipe.sweeps.sweep import Sweep, carry_out

pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("default")]

ROOT = Path(__file__).parents[2]
GRID: dict[str, Any] = {
    "name": "a few",
    "target": {"layers": 4},
    "drafts": [{"device": {"draft_ms": {"1": 3.0}}}],
    "pipelines": [{"stages": [{"device": {"stage_ms": {"1": 20.0}}, "count": 2}]}],
    "schedule": {"name": "chain"},
    "acceptance": {"source": "bernoulli", "beta": 0.6},
    "workload": {"new_tokens": 6},
    "sweep": {
        "grid": {"schedule.gamma": [1, 2, 3]},
        "latin_hypercube": {"links.default.latency_ms": {"low": 0.1, "high": 9.0}},
        "samples": 4,
    },
}


@pytest.fixture
def expected(tmp_path: Path) -> Any:
    with engine(jobs=1):
        return carry_out(Sweep.of(GRID), tmp_path / "expected", say).table()


@pytest.fixture
def dask_address() -> Iterator[str]:
    distributed = pytest.importorskip("distributed", reason="needs the extra 'dask'")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0"
    ) as cluster:
        yield cluster.scheduler_address.removeprefix("tcp://")


RAY = """import ray
with ray.init("local", num_cpus=2, include_dashboard=False) as cluster:
    print(cluster.address_info["gcs_address"], flush=True)
    input()  # until the test ends it
"""


@pytest.fixture
def ray_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # it would write a token into the home folder
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", RAY], **pipes) as cluster:
        assert cluster.stdin is not None
        yield cluster.stdout.readline().strip()
        cluster.communicate("\n")


def workers() -> set[int]:
    """The processes that the engine around has jobs carried out in."""
    return {*run_jobs(joblib.delayed(os.getpid)() for _ in range(8))}


def test_two_processes_find_the_same(tmp_path: Path, expected: Any) -> None:
    with joblib.parallel_config(backend="loky"), engine(jobs=2):
        found = carry_out(Sweep.of(GRID), tmp_path / "out", say)
    assert found.table().equals(expected)


def test_two_processes_find_the_same_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its simulations run is no part of the answer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    asked = {"requests": 8, "new_tokens": 4, "arrivals": {"process": "poisson", "rate_per_s": 1.0}}
    limits = {"request_latency_ms": 800.0}
    loaded = Cluster.of({**CLUSTER, "workload": asked}).with_(**{"search.limits": limits})
    found = search(loaded, say)
    with engine(jobs=1):
        here = capacities(found, say)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    monkeypatch.setattr("treepipe.sim.points.ALONE_S", 0.0)
    with joblib.parallel_config(backend="loky"), engine(jobs=2):
        assert capacities(found, say) == here
    assert here[0].rate_per_s is not None


def test_a_dask_cluster_finds_the_same(tmp_path: Path, expected: Any, dask_address: str) -> None:
    with engine(f"dask://{dask_address}"):
        assert os.getpid() not in workers()
        found = carry_out(Sweep.of(GRID), tmp_path / "out", say)
    assert found.table().equals(expected)


def test_a_sweep_that_is_ended_leaves_a_dask_cluster_no_work(
    tmp_path: Path, dask_address: str
) -> None:
    from distributed import Client

    grid = {**GRID, "sweep": {"grid": {"seed": [*range(20_000)]}}, "runs": 50}
    (tmp_path / "grid.toml").write_text(toml_text(grid))
    command = [sys.executable, "-m", "treepipe", "sweep", "grid.toml", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        Client(dask_address, set_as_default=False) as client,
        subprocess.Popen(
            [*command, "--backend", f"dask://{dask_address}"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        while not any(client.processing().values()):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)  # what is waited for needs the processor
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
        assert (process.returncode, "Traceback" in error) == (143, False), error
        deadline = time.monotonic() + 60
        while any(client.processing().values()):
            assert time.monotonic() < deadline, "the cluster works on"
            time.sleep(0.05)


def test_a_dask_cluster_that_loses_its_workers_is_a_failed_run(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="needs the extra 'dask'")
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        gave_up = pytest.raises(RunError, match="the dask cluster gave up: ")
        with gave_up, engine(f"dask://{address}"):
            carry_out(Sweep.of(GRID), tmp_path / "out", say)


def test_a_ray_cluster_finds_the_same(tmp_path: Path, expected: Any, ray_address: str) -> None:
    with engine(f"ray://{ray_address}"):
        assert os.getpid() not in workers()
        found = carry_out(Sweep.of(GRID), tmp_path / "out", say)
    assert found.table().equals(expected)


def test_a_killed_sweep_goes_on_with_what_is_missing(tmp_path: Path, expected: Any) -> None:
    """By SIGKILL, as soon as the third batch is there."""
    (tmp_path / "grid.toml").write_text(toml_text(GRID))
    out = tmp_path / "out"
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from treepipe.sim.engine import engine\n"
        "from treepipe.sweeps.sweep import Sweep\n"
        "from treepipe.sweeps.sweep import carry_out\n"
        "def say(what, steps, left=[3]):\n"
        "    left[0] -= not what\n"
        "    if not left[0]:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "with engine(jobs=1):\n"
        "    carry_out(Sweep.load(sys.argv[1]), Path(sys.argv[2]), say)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "grid.toml"), str(out)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, check=False)
    assert done.returncode == -9
    found = carry_out(Sweep.load(tmp_path / "grid.toml"), out, say)
    assert found.simulated == 9
    assert found.table().equals(expected)
