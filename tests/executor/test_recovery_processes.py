"""Workers that are lost in a run with spares: it goes on, and its text is plain decoding's."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.changed import changed
from tests.worlds.deployments import small_deployment, worker_roles
from tests.worlds.hosts import free_port
from tests.worlds.real_runs import (
    LONG,
    SHORT,
    TIMEOUT_MS,
    assert_greedy,
    controller_of,
    one_by_one,
    run_once,
)
from treepipe.core.messages import Close
from treepipe.executor.hosts.fork_server import fork_server
from treepipe.executor.run.controller import Controller, Crew, RunEndedError
from treepipe.executor.wire.addresses import LOOPBACK
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.mailbox import Outbox
from treepipe.executor.wire.transport import ZeroMQ
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.faults import Injected

pytestmark = pytest.mark.processes


def _asked(name: str, *requests: RequestSpec, spares: int = 0, **changes: Any) -> Deployment:
    return changed(small_deployment(name, clients=2), requests=requests, spares=spares, **changes)


def test_a_message_that_is_lost_on_its_way_takes_a_spare(pair: tuple[Path, Path]) -> None:
    """One comes that says so many were sent before it: those do not come, so its link is broken."""
    deployment = _asked("pp", replace(LONG, max_new_tokens=150), spares=1)
    roles, port = worker_roles(pair, deployment, emulate=False), free_port()
    roles[2] = replace(roles[2], port=port)
    transport = ZeroMQ()
    with closing(transport), Controller(roles, deployment) as running:
        ends, address = ("draft0", "pipeline0.stage2"), f"tcp://{LOOPBACK}:{port}"
        outbox = Outbox(transport, address, ends, None, running.roles[0].token)
        outbox._count = 900
        outbox.send(Close(77), now_ms(), 0)
        trace, recording = running.run(deployment)
    (fault,) = trace.faults
    assert (fault.worker, fault.kind) == ("pipeline0.stage2", "cut")
    assert any("message" in each and "did not arrive" in each for each in trace.warnings)
    assert_greedy(trace, deployment, pair[0])
    assert recording.complete


def test_a_worker_that_dies_while_another_one_is_replaced_takes_a_spare_too(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    introduce, starts = Crew._introduce, list[float]()

    def introducing(self: Crew) -> None:
        starts.append(now_ms())
        if len(starts) == 2:
            self.inject("draft0", "kill")
        introduce(self)

    monkeypatch.setattr(Crew, "_introduce", introducing)
    deployment = _asked("pp", SHORT, replace(LONG, max_new_tokens=20), spares=2)
    with controller_of(pair, deployment, emulate=False) as running:
        lose = one_by_one(lambda: running.inject("pipeline0.stage1", "kill"))
        trace, _ = running.run(deployment, lose)
    assert [fault.worker for fault in trace.faults] == ["draft0", "pipeline0.stage1"]
    assert all(fault.recovered_ms is not None for fault in trace.faults)
    assert any("while workers started anew; a spare took its place" in w for w in trace.warnings)
    assert_greedy(trace, deployment, pair[0])


def test_what_ends_by_itself_loses_nobody(pair: tuple[Path, Path]) -> None:
    """A stage is stopped, then the draft is cut off, each for less than the timeout."""
    injected = tuple(
        Injected(worker, kind, at_ms, for_ms=400.0)
        for worker, kind, at_ms in (("pipeline0.stage2", "stop", 60.0), ("draft0", "cut", 500.0))
    )
    deployment = _asked("pp", replace(LONG, max_new_tokens=220), injected=injected)
    trace, _ = run_once(pair, deployment, emulate=False)
    assert_greedy(trace, deployment, pair[0])
    found = [(fault.worker, fault.kind, fault.detected_ms) for fault in trace.faults]
    assert found == [(each.worker, each.kind, None) for each in injected]
    times = [0.0, *(at for at, _ in trace.requests[0].emitted)]
    for fault in trace.faults:
        assert fault.at_ms is not None
        beside = [(a, b) for a, b in pairwise(times) if b > fault.at_ms > a - 400.0]
        assert max(b - a for a, b in beside) > 350.0


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for open descriptors")
def test_stopped_workers_leave_no_descriptor(pair: tuple[Path, Path]) -> None:
    """But for those by which this process holds its fork server, which the next run uses again."""
    fork_server()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (opens none of its own)
    stops = tuple(Injected(name, "stop", 20.0) for name in ("pipeline0.stage2", "draft0"))
    for _ in range(2):
        deployment = _asked("pp", LONG, injected=stops[:1], timeout_ms=TIMEOUT_MS)
        with (
            controller_of(pair, deployment, emulate=False, timeout_ms=TIMEOUT_MS) as running,
            pytest.raises(RunEndedError, match="has not answered"),
        ):
            running.run(deployment)
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        stops = stops[::-1]
