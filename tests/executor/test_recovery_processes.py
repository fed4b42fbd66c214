"""Workers that are lost in a run with spares: it goes on, and its text is plain decoding's."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.worlds.deployments import PROMPT, small_deployment, worker_roles
from tests.worlds.tiny_models import greedy
from treepipe.executor.controller import Controller
from treepipe.scenario.deployment import RequestSpec
from treepipe.scenario.faults import FaultPlan

pytestmark = pytest.mark.processes

SHORT, LONG = RequestSpec(PROMPT[:20], 20), RequestSpec(PROMPT[:9], 80)
"""The first is over while the others have some tokens and want many more."""


def _lose(pair: tuple[Path, Path], name: str, lost: str, how: int) -> None:
    """Run three requests, one worker lost when the first is over, with one spare."""
    asked = (SHORT, LONG, replace(LONG, prompt=PROMPT[5:30]))
    deployment = replace(
        small_deployment(name, clients=2), requests=asked, faults=FaultPlan(spares=1)
    )
    done = 0
    with Controller(worker_roles(pair, deployment, emulate=False), deployment) as running:

        def once() -> None:
            nonlocal done
            done += 1
            if done == 1:
                process = running._processes[lost].pid
                assert process is not None
                os.kill(process, how)

        before = {process.pid for process in running._processes.values()}
        trace, recording = running.run(deployment, once)
        assert not any(psutil.pid_exists(pid) for pid in before if pid is not None)
    (fault,) = trace.faults
    assert (fault.worker, fault.kind) == (lost, "kill" if how == signal.SIGKILL else "stop")
    assert fault.detected_ms is not None
    assert fault.recovered_ms is not None
    assert any("a spare took its place" in warning for warning in trace.warnings)
    assert recording.complete == (lost != "draft0")
    for request, spec in zip(trace.requests, asked, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
        assert sum(count for _, count in request.emitted) == len(request.tokens)
        assert request.reason == "length"
        assert recording.requests[request.session].text == request.tokens
    resumed = trace.requests[1]
    assert resumed.emitted[0][0] < fault.detected_ms < resumed.emitted[-1][0]


@pytest.mark.parametrize("lost", ["draft0", "pipeline0.stage2"])
def test_a_run_goes_on_from_the_committed_text(pair: tuple[Path, Path], lost: str) -> None:
    _lose(pair, "specpipe_db", lost, signal.SIGKILL)
