"""Requests that are preempted on real processes: no text changes, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from tests.worlds.deployments import small_deployment, worker_roles
from tests.worlds.tiny_models import greedy
from treepipe.core.cache_room import PAGE
from treepipe.executor.controller import Controller
from treepipe.scenario.deployment import Deployment, Room
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

pytestmark = pytest.mark.processes
ROOM = Room((9 * PAGE,), (inf,))
"""The three texts need 5, 1 and 2 pages at first, and 6, 2 and 3 at their ends."""


def crowded(name: str) -> Deployment:
    deployment = small_deployment(name, clients=3)
    return replace(deployment, serving=replace(deployment.serving, cache="paged"), room=ROOM)


@pytest.fixture(scope="module")
def controller(pair: tuple[Path, Path]) -> Iterator[Controller]:
    deployment = crowded("chain")
    with Controller(worker_roles(pair, deployment, check_causality=True), deployment) as running:
        yield running


@pytest.mark.parametrize("name", ["pp", "chain", "starsd", "dsd"])
def test_a_run_that_preempts_is_lossless_and_can_be_replayed(
    controller: Controller, pair: tuple[Path, Path], name: str
) -> None:
    deployment = crowded(name)
    trace, recording = controller.run(deployment)
    assert trace.paged
    assert sum(request.preemptions for request in trace.requests) > 0
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
        assert request.prompt_tokens == len(spec.prompt)
    replay = simulate(deployment, ReplaySource(recording))
    assert [each.tokens for each in replay.requests] == [each.tokens for each in trace.requests]
    assert {span.session for span in trace.spans} <= {*range(50)}, "the requests' own numbers"
    assert controller.open_sessions()["draft0"] == 0


@pytest.mark.parametrize("name", ["flowspec", "specpipe_db"])
def test_so_is_one_in_lock_step(pair: tuple[Path, Path], name: str) -> None:
    deployment = crowded(name)
    with Controller(worker_roles(pair, deployment, check_causality=True), deployment) as running:
        trace, _ = running.run(deployment)
    assert sum(request.preemptions for request in trace.requests) > 0
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
