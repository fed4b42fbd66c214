"""PipeDec's central scheduler: a device takes part in one transfer at a time, in both worlds."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.deployments import small_deployment, worker_roles
from tests.worlds.tiny_models import greedy
from treepipe.executor.controller import Controller
from treepipe.physics.timing import LinkTimes
from treepipe.physics.transfers import Held, TransferQueue
from treepipe.results.metrics import run_metrics
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

devices = st.sampled_from("abcde")
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
    asked: list[Held], ends_first: list[int]
) -> None:
    queue: TransferQueue[int] = TransferQueue()
    running: dict[int, Held] = {}
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
    """Of every device's transfers none begins before the one before it has ended."""
    latency = deployment.default_link.latency_ms
    for device in deployment.devices:
        own = [s for s in trace.spans if s.kind == "transfer" and device in s.device.split("->")]
        ended = sorted(span.end_ms for span in own)
        gaps = [after - before for before, after in itertools.pairwise(ended)]
        assert min(gaps) >= latency - 1e-6, "a transfer takes at least its link's latency"


@pytest.mark.processes
@pytest.mark.parametrize("name", ["pipedec", "specpipe_db"])
def test_processes_send_through_the_switch(pair: tuple[Path, Path], name: str) -> None:
    deployment = replace(small_deployment(name, clients=2), central_transfers=True)
    with Controller(worker_roles(pair, deployment), deployment) as controller:
        trace, recording = controller.run(deployment)
        assert set(controller.peak_memory_bytes()) == set(deployment.devices)
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
    assert_one_at_a_time(trace, deployment)
    replay = simulate(deployment, ReplaySource(recording))
    assert_one_at_a_time(replay, deployment)
    assert [r.rounds for r in replay.requests] == [r.rounds for r in trace.requests]
    times = [run_metrics(each)["time_between_tokens_ms"] for each in (replay, trace)]
    assert 0.5 < times[0] / times[1] < 1.05, "emulated work takes at least its profile's time"


@pytest.mark.processes
def test_processes_share_a_medium(pair: tuple[Path, Path]) -> None:
    """Transfers take 2 ms on it each; in both worlds none begins before the last one has left."""
    deployment = small_deployment("naive_pp", clients=2)
    deployment = replace(deployment, default_link=LinkTimes(1.0, message_ms=2.0, medium="air"))
    with Controller(worker_roles(pair, deployment), deployment) as controller:
        trace, recording = controller.run(deployment)
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
    for each in (trace, simulate(deployment, ReplaySource(recording))):
        begins = sorted(span.start_ms for span in each.spans if span.kind == "transfer")
        gaps = [after - before for before, after in itertools.pairwise(begins)]
        assert min(gaps) >= 2.0 - 1e-6
