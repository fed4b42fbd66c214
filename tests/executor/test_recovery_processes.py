"""Workers that are lost in a run with spares: it goes on, and its text is plain decoding's."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.changed import changed
from tests.worlds.deployments import PROMPT, small_deployment, worker_roles
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
from treepipe.executor.addresses import LOOPBACK
from treepipe.executor.clock import now_ms
from treepipe.executor.controller import Controller
from treepipe.executor.crew import Crew
from treepipe.executor.mailbox import Outbox
from treepipe.executor.transport import ZeroMQ
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.faults import Injected
from treepipe.scenario.redeal import redeal_of
from treepipe.scenario.scenario import Scenario

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
    times = [at for at, _ in trace.requests[0].emitted]
    for fault in trace.faults:
        assert fault.at_ms is not None
        assert not [at for at in times if fault.at_ms + 100.0 < at < fault.at_ms + 350.0]


def test_layers_are_dealt_anew_where_no_spare_is_left(pair: tuple[Path, Path]) -> None:
    """Two stages are lost one after the other: two are left, of two layers each."""
    scenario = Scenario.of(
        {
            "name": "four stages",
            "target": {"layers": 4},
            "pipelines": [{"stages": [{"device": "emulated-20ms", "count": 4}]}],
            "schedule": {"name": "flowspec"},
            "faults": {"redeal_layers": True},
        }
    )
    requests = [RequestSpec(PROMPT[n : n + 9], 6 * 3**n) for n in range(3)]
    deployment = _asked("flowspec", *requests, redeal=redeal_of(scenario, 4))
    lost = ["pipeline0.stage2", "pipeline0.stage4"]
    with controller_of(pair, deployment, emulate=False) as running:
        lose = one_by_one(*(partial(running.inject, name, "kill") for name in lost))
        trace, recording = running.run(deployment, lose)
        left = [role.placed for role in running.roles]
        again, _ = running.run(deployment)
    assert [fault.worker for fault in trace.faults] == lost
    assert all(fault.recovered_ms is not None for fault in trace.faults)
    assert {each.name: each.layers for each in left[1:]} == {
        "pipeline0.stage1": range(2),
        "pipeline0.stage3": range(2, 4),
    }
    for found in (trace, again):
        assert_greedy(found, deployment, pair[0])
    assert recording.complete
    assert not again.faults


LASTS_MS = 1300.0
"""Longer than it takes to notice, on a busy machine, too."""


def _drafted(trace: Trace, since_ms: float, until_ms: float = inf) -> bool:
    return any(s.kind == "draft" and since_ms < s.start_ms < until_ms for s in trace.spans)


def test_without_its_draft_a_run_is_decoded_plainly(pair: tuple[Path, Path]) -> None:
    """The draft's process is killed, no spare is left: this run and the next one go on without,
    until a run has a spare for it."""
    stand_in = small_deployment("pp").service.new_schedule
    requests = (SHORT, *[replace(LONG, max_new_tokens=30)] * 2)
    deployment = _asked("flowspec", *requests, stand_in=stand_in)
    with controller_of(pair, deployment, emulate=False) as running:
        kill = one_by_one(lambda: running.inject("draft0", "kill"))
        trace, recording = running.run(deployment, kill)
        second, _ = running.run(deployment)
        third, _ = running.run(changed(deployment, spares=1))
        assert not any(running.open_sessions().values())
    (fault,) = trace.faults
    assert (fault.worker, fault.kind) == ("draft0", "kill")
    assert fault.plain_from_ms is not None
    assert fault.plain_from_ms == fault.recovered_ms
    assert fault.plain_until_ms is None
    assert not recording.complete
    assert not _drafted(trace, fault.plain_from_ms)
    assert any("draft0 was lost in a run before" in each for each in second.warnings)
    assert not _drafted(second, 0.0)
    assert any("draft0 was replaced by a spare" in each for each in third.warnings)
    assert _drafted(third, 0.0)
    for each in (trace, second, third):
        assert_greedy(each, deployment, pair[0])


def test_a_draft_that_is_back_drafts_again(pair: tuple[Path, Path]) -> None:
    """It stands still for so long that it is lost; when that is over, all start anew once more."""
    stand_in = small_deployment("pp").service.new_schedule
    deployment = changed(
        small_deployment("starsd", clients=2, pipelines=2),
        requests=(replace(LONG, max_new_tokens=160),) * 2,
        stand_in=stand_in,
    )
    injected = (Injected("draft0", "stop", 60.0, for_ms=LASTS_MS),)
    with controller_of(pair, deployment, emulate=False, timeout_ms=TIMEOUT_MS) as running:
        trace, _ = running.run(changed(deployment, timeout_ms=TIMEOUT_MS, injected=injected))
        assert not running.deployment.plain
    (fault,) = trace.faults
    assert fault.at_ms is not None
    assert fault.plain_from_ms is not None
    assert fault.plain_until_ms is not None
    assert fault.plain_until_ms >= fault.at_ms + LASTS_MS
    assert not _drafted(trace, fault.plain_from_ms, fault.at_ms + LASTS_MS)
    assert _drafted(trace, fault.plain_until_ms)
    assert any("draft0 was back" in each for each in trace.warnings)
    assert_greedy(trace, deployment, pair[0])
