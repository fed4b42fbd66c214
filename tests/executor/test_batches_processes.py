"""Requests beside each other on real processes, which share passes or preempt each other: no text
changes, passes are shared indeed, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from tests.worlds.changed import changed
from tests.worlds.deployments import small_deployment
from tests.worlds.examples import THOROUGH
from tests.worlds.real_runs import assert_greedy, controller_of
from treepipe.core.cache_room import PAGE
from treepipe.executor.controller import Controller
from treepipe.scenario.deployment import Deployment, Room
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

pytestmark = pytest.mark.processes
BATCH, CLIENTS = 4, 3


SHARED = [
    (ends, name)
    for other, ends in enumerate(["draft", "pipeline"])
    for number, name in enumerate(["pp", "chain", "flowspec", "flowspec_free", "starsd"])
    if THOROUGH or number % 2 == other
]
"""Placement of the target's ends, and schedule; a usual run tries a schedule with one."""


@pytest.fixture(scope="module")
def controller(pair: tuple[Path, Path], request: pytest.FixtureRequest) -> Iterator[Controller]:
    """Workers of either placement of the target's ends, whose desks share passes."""
    deployment = small_deployment("pp", batch=BATCH, ends=request.param)
    with controller_of(pair, deployment, check_causality=True) as running:
        yield running


@pytest.mark.parametrize(("controller", "name"), SHARED, indirect=["controller"])
def test_a_run_that_shares_passes_is_lossless(
    controller: Controller, pair: tuple[Path, Path], name: str
) -> None:
    """Three requests come at once; while the first is computed the others wait, and stay together.

    A prompt of 70 tokens comes in two chunks, so two requests have one segment before their first
    round, and one has two."""
    ends = controller.deployment.roles.ends
    deployment = small_deployment(name, clients=CLIENTS, batch=BATCH, ends=ends)
    trace, recording = controller.run(deployment)
    assert_greedy(trace, deployment, pair[0])
    replay = simulate(deployment, ReplaySource(recording))
    assert [each.tokens for each in replay.requests] == [each.tokens for each in trace.requests]
    if name in ("pp", "chain", "starsd"):  # one segment per round
        segments = 4 + sum(len(request.rounds) for request in trace.requests)
        for world in (trace, replay):
            spans = [s for s in world.spans if s.device == "pipeline0.stage1"]
            assert sum(span.kind == "compute" for span in spans) < segments
            assert sum(s.tokens for s in spans if s.kind == "compute") >= segments


def crowded(name: str) -> Deployment:
    """The three texts need 5, 1 and 2 pages at first, and 6, 2 and 3 at their ends."""
    deployment = small_deployment(name, clients=3)
    return changed(deployment, cache="paged", room=Room((8 * PAGE,), (inf,)))


@pytest.mark.parametrize(
    "names", [("pp", "chain", "starsd", "dsd"), ("flowspec",), ("specpipe_db",)]
)
def test_runs_that_preempt_are_lossless_and_can_be_replayed(
    pair: tuple[Path, Path], names: tuple[str, ...]
) -> None:
    """Workers are opened for one system, or for one in lock-step."""
    with controller_of(pair, crowded(names[0]), check_causality=True) as running:
        for name in names:
            deployment = crowded(name)
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
