"""Requests that share passes on real processes: no text changes, and passes are shared indeed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds.deployments import small_deployment
from tests.worlds.real_runs import assert_greedy, controller_of
from treepipe.executor.controller import Controller
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

pytestmark = pytest.mark.processes
BATCH, CLIENTS = 4, 3


@pytest.fixture(scope="module", params=["draft", "pipeline"])
def controller(pair: tuple[Path, Path], request: pytest.FixtureRequest) -> Iterator[Controller]:
    """Workers of either placement of the target's ends, whose desks share passes."""
    deployment = small_deployment("pp", batch=BATCH, ends=request.param)
    with controller_of(pair, deployment, check_causality=True) as running:
        yield running


@pytest.mark.parametrize("name", ["pp", "chain", "flowspec", "flowspec_free", "starsd"])
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
