"""Drafts of drafts in a simulation: how often they agree, and whom they serve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from treepipe.core.errors import UserError
from treepipe.core.protocol import DraftPass
from treepipe.results.metrics import run_metrics
from treepipe.results.trace import Trace
from treepipe.scenario.memory import memory_needs
from treepipe.scenario.resolve import deploy, input_warnings
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance import AgreeingOracle, PoolSource
from treepipe.sim.made_pools import bernoulli_pool
from treepipe.sim.predict import predict


def hierarchy(*agreements: float, heads: int = 1, **keys: Any) -> Scenario:
    """Two drafts of 5 ms before a target of 51 ms, and below each a row of drafts of 2 ms."""

    def draft(ms: float, **more: Any) -> dict[str, Any]:
        return {"count": heads, "device": {"draft_ms": {1: ms, 100: ms}}, **more}

    return Scenario.of(
        {
            "name": "levels",
            "target": {"layers": 8},
            "drafts": [draft(5.0), *(draft(2.0, agreement=each) for each in agreements)],
            "pipelines": [{"stages": [{"device": {"stage_ms": {1: 51.0, 100: 51.0}}}]}],
            "links": {"default": {"latency_ms": 0.5}},
            "schedule": {"name": "pipespec"},
            "acceptance": {"source": "bernoulli", "beta": 0.9},
            "workload": {"prompt_tokens": 1, "new_tokens": 200},
            **keys,
        }
    )


def ms_per_token(scenario: Scenario) -> float:
    (trace,) = predict(scenario)
    assert all(len(each.tokens) == 200 for each in trace.requests)
    return run_metrics(trace)["time_between_tokens_ms"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_a_draft_agrees_with_the_one_above_as_often_as_stated(share: float) -> None:
    """Also where that one is wrong; and twice with the same token behind the same path."""
    source = PoolSource(bernoulli_pool(0.5), 1, 0)
    above = source.open(1, 1)
    below, again = (AgreeingOracle(source.open(1, 1), share, 1, (0, 1, 1)) for _ in range(2))
    path = tuple(int(token) for token in np.random.default_rng(0).integers(2, size=400))
    chain = DraftPass(2, (), path, tuple(range(-1, 399)), False, 1)
    orders = DraftPass(1, (0,), (), (), True, 1), chain
    told = [[each.draft(order).tokens for order in orders] for each in (above, below, again)]
    assert np.array_equal(told[1][1], told[2][1])
    same = np.mean(np.asarray(told[0][1])[:, 0] == np.asarray(told[1][1])[:, 0])
    assert same == pytest.approx(share, abs=3 * np.sqrt(share * (1 - share) / 400))


def test_a_better_draft_of_the_draft_saves_time_and_a_bad_one_takes_none() -> None:
    alone, *others = (ms_per_token(hierarchy(*each)) for each in ((), (0.0,), (0.7,), (1.0,)))
    assert others[0] == pytest.approx(alone, rel=1e-9)
    assert others[2] < others[1] < others[0]


def test_each_draft_of_the_target_leads_a_hierarchy_of_its_own() -> None:
    """Two requests at two drafts, three levels each, on a device each."""
    two = {"requests": 2, "concurrency": 2, "prompt_tokens": 1, "new_tokens": 200}
    (trace,) = predict(hierarchy(0.9, 0.9, heads=2, workload=two))
    drafted: dict[str, set[int]] = {}
    for span in trace.spans:
        if span.kind == "draft":
            drafted.setdefault(span.device, set()).add(span.session)
    assert drafted == {f"draft{n}": {1 + n % 2} for n in range(6)}
    ways = {span.device for span in trace.spans if span.device.count("draft") == 2}
    pairs = [(n, n + 2) for n in range(4)]
    assert ways == {f"draft{a}->draft{b}" for one in pairs for a, b in (one, one[::-1])}


def test_requests_take_turns_at_a_draft_of_a_draft_also_if_they_are_preempted() -> None:
    workload = {"requests": 4, "concurrency": 4, "prompt_tokens": 8, "new_tokens": 100}
    serving = {"cache": "paged", "cache_tokens": 700}
    schedule = {"name": "pipespec", "ahead": 20}
    scenario = hierarchy(0.8, workload=workload, serving=serving, schedule=schedule)
    (trace,) = predict(scenario)
    assert [len(each.tokens) for each in trace.requests] == [100] * 4
    assert sum(each.preemptions for each in trace.requests)
    own = [span for span in trace.spans if span.device == "draft1" and span.kind == "draft"]
    assert {span.session for span in own} == {1, 2, 3, 4}


def test_a_run_goes_on_that_loses_a_draft_of_a_draft() -> None:
    lost = {"worker": "draft1", "kind": "kill", "at_ms": 300.0}
    faults = {"spares": 1, "restart_ms": 100.0, "inject": [lost]}
    (trace,) = predict(hierarchy(0.9, faults=faults))
    (request,) = trace.requests
    assert len(request.tokens) == 200
    again = [s for s in trace.spans if s.device == "draft1" and s.start_ms > 400]
    assert again


def test_a_draft_of_a_draft_needs_memory_of_its_own() -> None:
    model = {"profile": "llama-2-7b"}
    device = {"profile": "a40"}

    def scenario(**more: Any) -> Scenario:
        below = {"device": {**device, **more}, "model": model, "agreement": 0.5}
        drafts, stage = [{"device": device, "model": model}, below], {"device": device}
        return hierarchy(target=model, drafts=drafts, pipelines=[{"stages": [stage]}])

    needs = {each.role: each for each in memory_needs(deploy(scenario()))}
    assert needs["draft1"].total == needs["draft0"].total > 0
    with pytest.raises(UserError, match="draft1 needs"):
        deploy(scenario(memory_mib=1000))


def test_no_key_of_a_hierarchy_is_ignored() -> None:
    scenario = hierarchy(0.9)
    found = input_warnings(scenario, deploy(scenario))
    assert not [each for each in found if "drafts" in each]


def test_without_drafts_of_drafts_nothing_is_sent_between_drafts() -> None:
    trace: Trace
    (trace,) = predict(hierarchy(heads=2))
    assert not [span for span in trace.spans if span.device.count("draft") == 2]
