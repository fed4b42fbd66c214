"""Who waits for whom on the network, in both worlds: PipeDec's central scheduler, in which a device
takes part in one transfer at a time; a shared medium; the ports of a device."""

from __future__ import annotations

import itertools
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.changed import changed
from tests.worlds.deployments import small_deployment, worker_roles
from tests.worlds.real_runs import assert_no_faster
from tests.worlds.tiny_models import greedy
from treepipe.executor.run.controller import Controller
from treepipe.physics.timing import LinkTimes
from treepipe.physics.transfers import Resources, TransferQueue, Wire
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

devices = st.sampled_from("abcde")
sent = st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 10**6)), min_size=2, max_size=12)
asked = st.lists(st.tuples(devices, devices).filter(lambda ends: ends[0] != ends[1]), max_size=12)


def test_the_first_pending_transfer_whose_ends_are_free_starts() -> None:
    queue: TransferQueue[int] = TransferQueue()
    assert queue.ask(("a", "b"), 1) == [(("a", "b"), 1)]
    assert queue.ask(("b", "c"), 2) == []
    assert queue.ask(("c", "d"), 3) == [(("c", "d"), 3)], "b waits, but nobody waits behind it"
    assert queue.end(("a", "b")) == [], "c is busy"
    assert queue.ask(("a", "b"), 4) == [(("a", "b"), 4)], "again past the one that waits"
    assert queue.end(("c", "d")) == []
    assert queue.end(("a", "b")) == [(("b", "c"), 2)]


@given(asked, st.lists(st.integers(0, 99), max_size=30))
def test_no_device_takes_part_in_two_transfers_and_none_is_lost(
    asked: list[Resources], ends_first: list[int]
) -> None:
    queue: TransferQueue[int] = TransferQueue()
    running: dict[int, Resources] = {}
    left, done = deque(enumerate(asked)), []
    for choice in [*ends_first, *[0] * 60]:
        if running and (choice % 2 or not left):
            number = sorted(running)[choice % len(running)]
            done.append(number)
            started = queue.end(running.pop(number))
        elif left:
            number, ends = left.popleft()
            started = queue.ask(ends, number)
        else:
            break
        running.update({number: ends for ends, number in started})
        busy = [device for ends in running.values() for device in ends]
        assert len(busy) == len(set(busy))
    assert sorted(done) == list(range(len(asked)))


def assert_one_at_a_time(trace: Trace, deployment: Deployment) -> None:
    """Of every device's transfers of layers none begins before the one before it has ended."""
    latency = deployment.wiring.default.latency_ms
    for device in deployment.roles.devices:
        own = [
            s
            for s in trace.spans
            if s.kind == "transfer" and s.tokens and device in s.device.split("->")
        ]
        drafts = {
            draft.name for draft in deployment.roles.drafts
        }  # who hears the last stage's broadcast
        ended = sorted(s.end_ms for s in own if s.device.split("->")[1] not in drafts)
        gaps = [after - before for before, after in itertools.pairwise(ended)]
        assert min(gaps) >= latency - 1e-6, "a transfer takes at least its link's latency"


@given(sent, st.integers(0, 99), st.sampled_from([0.0, 0.4]), st.sampled_from([0.0, 3.0]))
def test_messages_of_a_link_come_in_one_behind_another(
    sent: list[tuple[float, int]], seed: int, loss: float, jitter_ms: float
) -> None:
    """What is held up by jitter or a loss does not let a longer message begin to arrive before it:
    a receiver whose port takes messages as they come has them in the order of their sending."""
    times = LinkTimes(1.0, 100.0, loss=loss, retransmit_ms=20.0, jitter_ms=jitter_ms)
    wire, now, last = Wire(times, np.random.default_rng(seed)), 0.0, 0.0
    for after, size in sent:
        now += after
        begin, free, due = wire.transfer(now, size)
        assert now <= begin <= free <= due
        assert due - wire.load(size).lasts_ms >= last - 1e-9
        last = due


@pytest.mark.processes
def test_processes_send_through_the_switch(pair: tuple[Path, Path]) -> None:
    deployment = changed(small_deployment("specpipe_db", clients=2), central_transfers=True)
    with Controller(worker_roles(pair, deployment), deployment) as controller:
        trace, recording = controller.run(deployment)
        assert set(controller.peak_memory_bytes()) == set(deployment.roles.devices)
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
    assert_one_at_a_time(trace, deployment)
    replay = simulate(deployment, ReplaySource(recording))
    assert_one_at_a_time(replay, deployment)
    assert [r.rounds for r in replay.requests] == [r.rounds for r in trace.requests]
    assert_no_faster(trace, replay)


@pytest.mark.processes
def test_processes_share_a_medium(pair: tuple[Path, Path]) -> None:
    """Transfers take 2 ms on it each; in both worlds none begins before the last one has left."""
    deployment = small_deployment("naive_pp", clients=2)
    deployment = changed(deployment, default=LinkTimes(1.0, message_ms=2.0, medium="air"))
    with Controller(worker_roles(pair, deployment), deployment) as controller:
        trace, recording = controller.run(deployment)
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
    for each in (trace, simulate(deployment, ReplaySource(recording))):
        begins = sorted(span.start_ms for span in each.spans if span.kind == "transfer")
        gaps = [after - before for before, after in itertools.pairwise(begins)]
        assert min(gaps) >= 2.0 - 1e-6


@pytest.mark.processes
def test_a_process_sends_and_receives_one_message_at_a_time(pair: tuple[Path, Path]) -> None:
    """One draft and two pipelines; a message takes 4 ms at each of its two ports."""
    deployment = small_deployment("starsd", clients=2, pipelines=2)
    deployment = changed(deployment, default=LinkTimes(1.0, message_ms=4.0))
    with Controller(worker_roles(pair, deployment), deployment) as controller:
        trace, recording = controller.run(deployment)
    replay = simulate(deployment, ReplaySource(recording))
    for each, device in itertools.product((trace, replay), deployment.roles.devices):
        ends = [(span.device.split("->"), span) for span in each.spans if span.kind == "transfer"]
        begun = sorted(span.start_ms for (sender, _), span in ends if sender == device)
        ended = sorted(span.end_ms for (_, receiver), span in ends if receiver == device)
        gaps = [b - a for times in (begun, ended) for a, b in itertools.pairwise(times)]
        assert min(gaps) >= 4.0 - 1e-6
    assert_no_faster(trace, replay)
