"""Real processes: losslessness, replay, and every way in which a run can end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import psutil
import pytest

from tests.worlds.any_section import SCHEDULES
from tests.worlds.changed import changed
from tests.worlds.command_line import ROOT
from tests.worlds.deployments import crowded, small_deployment, worker_roles
from tests.worlds.examples import THOROUGH
from tests.worlds.hosts import free_port
from tests.worlds.real_runs import assert_greedy, assert_no_faster, controller_of
from treepipe.core.errors import RunError
from treepipe.executor.run.controller import Controller
from treepipe.results.metrics import utilization
from treepipe.results.where import shares
from treepipe.scenario.deployment import RequestSpec
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate
from treepipe.testing.random_model import save_random_checkpoint

pytestmark = pytest.mark.processes

CASES = [("draft", "flowspec", 1), ("draft", "ssd", 3), ("pipeline", "specpipe_db", 3)]
"""Placement of the target's ends, schedule, and requests at a time. ``test_local_runs.py`` tries
every schedule on the same workers without processes."""
if THOROUGH:
    CASES = [*product(("draft", "pipeline"), SCHEDULES, (1, 3))]


@pytest.fixture(scope="module")
def controller(pair: tuple[Path, Path], request: pytest.FixtureRequest) -> Iterator[Controller]:
    """Workers of either placement of the target's ends."""
    deployment = small_deployment("pp", ends=request.param)
    with controller_of(pair, deployment) as running:
        yield running


@pytest.mark.parametrize(("controller", "name", "clients"), CASES, indirect=["controller"])
def test_run_is_lossless_and_replays_step_by_step(
    controller: Controller, pair: tuple[Path, Path], name: str, clients: int
) -> None:
    """The deployment's times are equal to those that the workers were opened with, and not the
    same; nothing is left of the requests."""
    ends = controller.deployment.roles.ends
    deployment = deepcopy(small_deployment(name, clients=clients, ends=ends))
    trace, recording = controller.run(deployment)
    assert_greedy(trace, deployment, pair[0])
    replay = simulate(deployment, ReplaySource(recording))
    for mine, theirs in zip(replay.requests, trace.requests, strict=True):
        assert mine.tokens == theirs.tokens
        if name not in ("flowspec_free", "pipeinfer", "pipespec"):  # their steps depend on timing
            assert mine.rounds == theirs.rounds
            assert [count for _, count in mine.emitted] == [count for _, count in theirs.emitted]
    assert_no_faster(trace, replay)
    assert set(utilization(trace)) == set(deployment.roles.devices)
    deadline = time.monotonic() + 30
    while any(left := controller.open_sessions().values()):
        assert time.monotonic() < deadline, f"state is left: {left}"


def test_a_run_that_preempts_is_lossless_and_can_be_replayed(pair: tuple[Path, Path]) -> None:
    """Spans have the requests' own numbers. (``test_local_runs.py`` tries every system.)"""
    deployment = crowded("flowspec", batch=4)
    with controller_of(pair, deployment) as running:
        trace, recording = running.run(deployment)
        assert trace.paged
        assert sum(request.preemptions for request in trace.requests) > 0
        assert_greedy(trace, deployment, pair[0])
        for request, spec in zip(trace.requests, deployment.requests, strict=True):
            assert request.prompt_tokens == len(spec.prompt)
        replay = simulate(deployment, ReplaySource(recording))
        assert [r.tokens for r in replay.requests] == [r.tokens for r in trace.requests]
        assert {span.session for span in trace.spans} <= {*range(50)}, "requests' own numbers"
        assert running.open_sessions()["draft0"] == 0


def test_every_moment_of_a_worker_has_one_name(pair: tuple[Path, Path]) -> None:
    with controller_of(pair, small_deployment("pp", clients=2), emulate=False) as running:
        for name in ("flowspec", "specpipe"):
            deployment = small_deployment(name, clients=2, ends="pipeline")
            running.run(deployment)  # whose end is not counted again
            trace, _ = running.run(deployment)
            for worker, parts in shares([trace]).items():
                assert sum(parts.values()) - parts.get("unnamed", 0.0) >= 0.97, (name, worker)
                assert {"wait", "receive", "send", "desk"} <= set(parts)
                spans = [span for span in trace.spans if span.device == worker]
                assert all(one.end_ms <= two.start_ms + 1e-6 for one, two in pairwise(spans))
                computed = [span for span in spans if span.kind == "compute"]
                assert computed or worker == "draft0"
                assert all(span.tokens for span in computed), "a pass is one span"


def test_workers_exception_appears_once_with_its_name(
    pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    deployment = small_deployment("pp")
    roles = worker_roles(pair, deployment)
    roles[3] = replace(roles[3], capacity=20)
    with (
        pytest.raises(RunError, match=r"^pipeline0\.stage3 failed: MemoryError: a cache of 20"),
        Controller(roles, deployment) as running,
    ):
        running.run(deployment)
    assert "Traceback" not in capfd.readouterr().err


def test_ctrl_c_leaves_no_process_and_no_port() -> None:
    scenario, port = ROOT / "studies" / "scenarios" / "demo.toml", free_port()
    command = [sys.executable, "-m", "treepipe", "run", str(scenario)]
    command += ["--set", f"base_port={port}", "--set", "workload.new_tokens=300"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    children = _wait_for_port(process, port + 4)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, "it did not go on to the end of its text"
    assert b"Traceback" not in error
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    with socket.socket() as again:
        # Connections that were cut linger in the kernel; a listener would still be in the way.
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port + 4))


def _wait_for_port(process: subprocess.Popen[bytes], port: int) -> list[psutil.Process]:
    """Wait until the last stage listens; returns all processes below the command."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return psutil.Process(process.pid).children(recursive=True)
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)  # what is waited for needs the processor
    raise AssertionError("the workers did not start")


def _peak_memory(pair: tuple[Path, Path], layers: int) -> dict[str, int]:
    """Peak resident bytes per worker after decoding, with ``layers`` layers in each stage."""
    width = json.loads((pair[0] / "config.json").read_text())["hidden_size"]
    deployment = changed(small_deployment("pp"), row_bytes=4 * width)
    stages = tuple(
        replace(stage, layers=range(layers * i, layers * (i + 1)))
        for i, stage in enumerate(deployment.roles.pipelines[0])
    )
    deployment = changed(deployment, pipelines=(stages,), requests=(RequestSpec((1, 2, 3), 3),))
    with controller_of(pair, deployment) as running:
        running.run(deployment)
        return running.peak_memory_bytes()


def test_stage_memory_is_its_share_of_the_weights(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    """The baseline (interpreter, libraries, their kernels) is a stage of a model of few kilobytes.

    Weights are mapped and read when they are first used, so peaks are taken after decoding. While
    a layer is packed (``packed.py``) it is there twice.
    """
    target = save_random_checkpoint(tmp_path / "target", layers=12, width=768, seed=1)
    total = (target / "model.safetensors").stat().st_size
    baseline, peaks = _peak_memory(pair, 1), _peak_memory((target, pair[1]), 3)
    for name in list(peaks)[1:]:
        share = (peaks[name] - baseline[name]) / total
        assert 0.2 < share < 0.3 + 1 / 12, f"{name} took {share:.0%} of the whole, of 25 %"
