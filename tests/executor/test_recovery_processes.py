"""Workers that are lost in a run with spares: it goes on, and its text is plain decoding's."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from tests.worlds.deployments import PROMPT, small_deployment, worker_roles
from tests.worlds.tiny_models import greedy
from treepipe.core.messages import Close
from treepipe.executor.clock import now_ms
from treepipe.executor.controller import Controller
from treepipe.executor.crew import Crew
from treepipe.executor.measure.in_place import restart_ms
from treepipe.executor.transport import LOOPBACK, Outbox
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.faults import FaultPlan, Injected
from treepipe.scenario.redeal import redeal_of
from treepipe.scenario.scenario import Scenario

pytestmark = pytest.mark.processes

SHORT, LONG = RequestSpec(PROMPT[:20], 12), RequestSpec(PROMPT[:9], 60)
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
                process = running.crew.lines.processes[lost].pid
                assert process is not None
                os.kill(process, how)

        before = {process.pid for process in running.crew.lines.processes.values()}
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


def test_a_message_that_is_lost_on_its_way_takes_a_spare(pair: tuple[Path, Path]) -> None:
    """One comes that says so many were sent before it: those do not come, so its link is broken."""
    asked = (replace(LONG, max_new_tokens=150),)
    deployment = replace(small_deployment("pp"), requests=asked, faults=FaultPlan(spares=1))
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = int(probe.getsockname()[1])
    roles = worker_roles(pair, deployment, emulate=False)
    roles[2] = replace(roles[2], port=port)
    with zmq.Context() as context, Controller(roles, deployment) as running:
        ends, address = ("draft0", "pipeline0.stage2"), f"tcp://{LOOPBACK}:{port}"
        outbox = Outbox(context, address, ends, None, running.crew.roles[0].token)
        outbox._count = 900
        outbox.send(Close(77), now_ms(), 0)
        trace, recording = running.run(deployment)
        outbox.close()
    (fault,) = trace.faults
    assert (fault.worker, fault.kind) == ("pipeline0.stage2", "cut")
    assert any("message" in each and "did not arrive" in each for each in trace.warnings)
    for request, spec in zip(trace.requests, asked, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
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
    asked, plan = (SHORT, replace(LONG, max_new_tokens=20)), FaultPlan(spares=2)
    deployment = replace(small_deployment("pp", clients=2), requests=asked, faults=plan)
    with Controller(worker_roles(pair, deployment, emulate=False), deployment) as running:

        def once() -> None:
            if len(starts) == 1:
                running.crew.inject("pipeline0.stage1", "kill")

        trace, _ = running.run(deployment, once)
    assert [fault.worker for fault in trace.faults] == ["draft0", "pipeline0.stage1"]
    assert all(fault.recovered_ms is not None for fault in trace.faults)
    assert any("while workers started anew; a spare took its place" in w for w in trace.warnings)
    for request, spec in zip(trace.requests, asked, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)


def test_what_a_restart_takes_is_measured(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the crew's restart and what is told before and after it, and none of the decoding."""
    deployment = replace(small_deployment("pp"), requests=(SHORT,))
    restart, taken = Crew.start_anew, list[float]()

    def timed(self: Crew, *loss: Any) -> None:
        begun = now_ms()
        restart(self, *loss)
        taken.append(now_ms() - begun)

    monkeypatch.setattr(Crew, "start_anew", timed)
    with Controller(worker_roles(pair, deployment, emulate=False), deployment) as running:
        begun = now_ms()
        found = restart_ms(running, deployment)
        whole = now_ms() - begun
    assert len(taken) == 1
    assert taken[0] <= found < whole


def test_what_ends_by_itself_loses_nobody(pair: tuple[Path, Path]) -> None:
    """A stage is stopped, then the draft is cut off, each for less than the timeout."""
    asked = (replace(LONG, max_new_tokens=220),)
    injected = tuple(
        Injected(worker, kind, at_ms, for_ms=400.0)
        for worker, kind, at_ms in (("pipeline0.stage2", "stop", 60.0), ("draft0", "cut", 500.0))
    )
    deployment = replace(
        small_deployment("pp"), requests=asked, faults=FaultPlan(injected=injected)
    )
    with Controller(worker_roles(pair, deployment, emulate=False), deployment) as running:
        trace, _ = running.run(deployment)
    (request,) = trace.requests
    assert list(request.tokens) == greedy(pair[0], list(asked[0].prompt), 220)
    found = [(fault.worker, fault.kind, fault.detected_ms) for fault in trace.faults]
    assert found == [(each.worker, each.kind, None) for each in injected]
    times = [at for at, _ in request.emitted]
    for fault in trace.faults:
        assert fault.at_ms is not None
        meanwhile = fault.at_ms + 100.0, fault.at_ms + 350.0
        assert not [at for at in times if meanwhile[0] < at < meanwhile[1]]


def test_layers_are_dealt_anew_where_no_spare_is_left(pair: tuple[Path, Path]) -> None:
    """Two stages are lost one after the other: two are left, of two layers each."""
    asked = tuple(RequestSpec(PROMPT[n : n + 9], 6 * 3**n) for n in range(3))
    scenario = Scenario.of(
        {
            "name": "four stages",
            "target": {"layers": 4},
            "pipelines": [{"stages": [{"device": "emulated-20ms", "count": 4}]}],
            "schedule": {"name": "flowspec"},
            "faults": {"redeal_layers": True},
        }
    )
    deployment = small_deployment("flowspec", clients=3)
    deployment = replace(deployment, requests=asked, redeal=redeal_of(scenario, 4))
    to_lose = ["pipeline0.stage2", "pipeline0.stage4"]
    with Controller(worker_roles(pair, deployment, emulate=False), deployment) as running:

        def lose_one() -> None:
            if to_lose:
                running.crew.inject(to_lose.pop(0), "kill")

        trace, recording = running.run(deployment, lose_one)
        left = [role.placed for role in running.crew.roles]
        again, _ = running.run(deployment)
    assert [fault.worker for fault in trace.faults] == ["pipeline0.stage2", "pipeline0.stage4"]
    assert all(fault.recovered_ms is not None for fault in trace.faults)
    assert {each.name: each.layers for each in left[1:]} == {
        "pipeline0.stage1": range(2),
        "pipeline0.stage3": range(2, 4),
    }
    for found in (trace, again):
        for request, spec in zip(found.requests, asked, strict=True):
            text = greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
            assert (list(request.tokens), request.reason) == (text, "length")
    assert recording.complete
    assert not again.faults


LASTS_MS = 1300.0
"""Longer than it takes to notice (``timeout_ms`` is 1000 there), on a busy machine, too."""


def _stood_in(name: str, asked: tuple[RequestSpec, ...], pipelines: int = 1) -> Deployment:
    """A deployment whose lost draft server has a stand-in."""
    stand_in = small_deployment("pp").new_schedule
    deployment = small_deployment(name, clients=2, pipelines=pipelines)
    return replace(deployment, requests=asked, stand_in=stand_in)


def _assert_plain(trace: Trace, deployment: Deployment, target: Path) -> None:
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(target, list(spec.prompt), spec.max_new_tokens)
        assert sum(count for _, count in request.emitted) == len(request.tokens)
        assert request.reason == "length"


def _drafted(trace: Trace, since_ms: float, until_ms: float = inf) -> bool:
    return any(s.kind == "draft" and since_ms < s.start_ms < until_ms for s in trace.spans)


def test_without_its_draft_a_run_is_decoded_plainly(pair: tuple[Path, Path]) -> None:
    """The draft's process is killed, no spare is left: this run and the next one go on without,
    until a run has a spare for it."""
    deployment = _stood_in("flowspec", (SHORT, *[replace(LONG, max_new_tokens=30)] * 2))
    with Controller(worker_roles(pair, deployment, emulate=False), deployment) as running:

        def kill() -> None:
            if not running.crew.deployment.plain:
                running.crew.inject("draft0", "kill")

        trace, recording = running.run(deployment, kill)
        second, _ = running.run(deployment)
        spared = replace(deployment, faults=FaultPlan(spares=1))
        third, _ = running.run(spared)
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
        _assert_plain(each, deployment, pair[0])


def test_a_draft_that_is_back_drafts_again(pair: tuple[Path, Path]) -> None:
    """It stands still for so long that it is lost; when that is over, all start anew once more."""
    asked = (replace(LONG, max_new_tokens=160),) * 2
    deployment = _stood_in("starsd", asked, pipelines=2)
    stopped = Injected("draft0", "stop", 60.0, for_ms=LASTS_MS)
    plan = FaultPlan(1000.0, injected=(stopped,))
    roles = worker_roles(pair, deployment, emulate=False, timeout_ms=1000.0)
    with Controller(roles, deployment) as running:
        trace, _ = running.run(replace(deployment, faults=plan))
        assert not running.crew.deployment.plain
    (fault,) = trace.faults
    assert fault.at_ms is not None
    assert fault.plain_from_ms is not None
    assert fault.plain_until_ms is not None
    assert fault.plain_until_ms >= fault.at_ms + LASTS_MS
    assert not _drafted(trace, fault.plain_from_ms, fault.at_ms + LASTS_MS)
    assert _drafted(trace, fault.plain_until_ms)
    assert any("draft0 was back" in each for each in trace.warnings)
    _assert_plain(trace, deployment, pair[0])


@pytest.mark.parametrize("lost", ["draft0", "pipeline0.stage2"])
def test_a_run_goes_on_from_the_committed_text(pair: tuple[Path, Path], lost: str) -> None:
    _lose(pair, "specpipe_db", lost, signal.SIGKILL)
