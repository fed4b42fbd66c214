"""Requests that are preempted on real processes: no text changes, and nothing is left behind."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from tests.worlds.changed import changed
from tests.worlds.deployments import small_deployment
from tests.worlds.real_runs import assert_greedy, controller_of
from treepipe.core.cache_room import PAGE
from treepipe.scenario.deployment import Deployment, Room
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

pytestmark = pytest.mark.processes


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
