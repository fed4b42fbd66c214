"""Requests that preempt each other on real processes: no text changes, their spans have their own
numbers, and nothing is left. (``test_local_runs.py`` tries every system, without processes.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.deployments import crowded
from tests.worlds.real_runs import assert_greedy, controller_of
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

pytestmark = pytest.mark.processes


def test_a_run_that_preempts_is_lossless_and_can_be_replayed(pair: tuple[Path, Path]) -> None:
    deployment = crowded("flowspec", batch=4)
    with controller_of(pair, deployment, check_causality=True) as running:
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
