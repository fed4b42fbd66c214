"""One draft process for many targets: its own texts, leaving targets, deadlines."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean

import pytest

from tests.worlds.changed import changed
from tests.worlds.deployments import PROMPT, small_deployment
from tests.worlds.real_runs import assert_greedy, controller_of, one_by_one, run_once
from tests.worlds.tiny_models import greedy
from treepipe.core.front_desk import ServiceLevels
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import bernoulli_pool
from treepipe.sim.world import simulate

TARGETS = 4


def _star(requests: int = 8, new_tokens: int = 12, **keys: object) -> Deployment:
    deployment = small_deployment("starsd", clients=TARGETS, pipelines=TARGETS, **keys)  # type: ignore[arg-type]
    specs = tuple(RequestSpec(PROMPT[n : n + 9], new_tokens) for n in range(requests))
    return replace(deployment, requests=specs)


@pytest.mark.processes
def test_the_depth_is_chosen_by_what_the_draft_server_measures(pair: tuple[Path, Path]) -> None:
    """Every target gets its own text. The draft is a random model, seldom right: what the draft
    server learns makes the chains shorter."""
    deployment = _star(depth_range=(1, 8), tree_size=None)
    trace, _ = run_once(pair, deployment)
    assert {request.pipeline for request in trace.requests} == set(range(TARGETS))
    assert_greedy(trace, deployment, pair[0])
    fed = [each.fed - 1 for request in trace.requests for each in request.rounds]
    assert max(fed) > 1, "before anything was measured"
    last = [each.fed - 1 for request in trace.requests[-2:] for each in request.rounds]
    assert max(last) < max(fed)


@pytest.mark.processes
def test_a_target_that_leaves_frees_its_state_and_the_others_go_on(
    pair: tuple[Path, Path],
) -> None:
    """When the first request is over, which wants a fifth of what the others want."""
    plain = _star(requests=TARGETS, new_tokens=60)
    first, *others = plain.requests
    deployment = replace(plain, requests=(replace(first, max_new_tokens=12), *others))
    with controller_of(pair, deployment) as running:
        lose = one_by_one(partial(running.inject, "pipeline2.stage1", "kill"))
        trace, _ = running.run(deployment, lose)
        left = running.open_sessions()
    ended = {request.pipeline: request for request in trace.requests}
    assert ended[2].reason == "worker lost"
    assert 0 < len(ended[2].tokens) < 60
    whole = greedy(pair[0], list(deployment.requests[ended[2].session - 1].prompt), 60)
    assert list(ended[2].tokens) == whole[: len(ended[2].tokens)]
    assert [len(ended[pipeline].tokens) for pipeline in (0, 1, 3)] == [12, 60, 60]
    assert left["draft0"] == 0
    assert len(trace.warnings) == 1
    assert "pipeline2.stage1 died (exit code -9) after" in trace.warnings[0]
    assert "their state was freed, and the other pipelines went on" in trace.warnings[0]


def test_deadlines_decide_who_waits() -> None:
    """With the draft beyond full load, the target with the tight deadline waits for one turn. (The
    simulator has its draft desks from the deployment, as the executor has.)"""
    levels = ServiceLevels(deadlines_ms=(0.0, 1e3, 1e3, 1e3))
    star = _star(requests=TARGETS, new_tokens=40)
    deployment = changed(star, clients=TARGETS, policy="earliest_deadline", levels=levels)
    trace = simulate(deployment, PoolSource(bernoulli_pool(0.3), 1, 0))
    waits = [
        mean(t.started_ms - t.arrived_ms for t in trace.turns if t.pipeline == pipeline)
        for pipeline in range(TARGETS)
    ]
    assert waits[0] < 0.8 * min(waits[1:])
