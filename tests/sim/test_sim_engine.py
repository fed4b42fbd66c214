"""Engines' pipelines against what their authors measured or derive by hand."""

from __future__ import annotations

import itertools

import pytest

from tests.worlds.theory_scenarios import Written, draft_of, links_of, stages_of
from treepipe.results.metrics import run_metrics, utilization
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict

SATURATED = (
    "schedule.gamma=1",
    "workload.requests=8",
    "workload.concurrency=8",
    "workload.prompt_tokens=8",
    "workload.new_tokens=120",
)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize(("receives_first", "lost"), [("true", 1), ("false", 0)])
def test_the_exchange_order_leaves_a_stage_idle(
    stages: int, receives_first: str, lost: int
) -> None:
    """SGLang, 40499: at most pp - 1 passes per turn of the ring, 75 % with 4 stages, 50 % with 2.

    Drafting takes next to no time here, so nothing else is left to wait for.
    """
    times = (draft_of(1e-6), stages_of(*[20.0] * stages), links_of(0.0))
    order = f"schedule.receives_first={receives_first}"
    (trace,) = Written("engine_pp", *SATURATED, *times, order).simulated()
    share = utilization(trace)["pipeline0.stage1"]
    assert share == pytest.approx((stages - lost) / stages, abs=0.03)


def test_a_round_of_one_request_by_hand() -> None:
    """Four stages of 20 ms, hops of 1 ms, K = 3 drafts of 5 ms behind each round but the first."""
    keys = ("schedule.gamma=3", "acceptance.beta=1", "workload.new_tokens=9", links_of(1.0))
    written = Written("engine_pp", draft_of(5.0), stages_of(*[20.0] * 4), *keys)
    (trace,) = written.simulated()
    times = [when for when, _ in trace.requests[0].emitted]
    rounds = [after - before for before, after in itertools.pairwise(times)]
    alone, drafted = 4 * 20.0 + 5 * 1.0, 3 * 5.0
    assert rounds == [pytest.approx(alone), *[pytest.approx(alone + drafted)] * 2]
    assert [tokens for _, tokens in trace.requests[0].emitted] == [1, 1, 4, 3]


def test_words_reach_the_last_stage_hop_by_hop_in_a_ring() -> None:
    """Pruning waits for the word: a hop to the first stage and one to each next, or one in all."""
    keys = ("schedule.gamma=1", "workload.new_tokens=4", links_of(3.0))
    stages = stages_of(*[20.0] * 4, more=", prune_ms = 0.5")
    begun = {}
    for feedback in ("ring", "broadcast"):
        way = f"schedule.feedback={feedback}"
        (trace,) = Written("engine_pp", draft_of(60.0), stages, *keys, way).simulated()
        pruned = [s for s in trace.spans if s.kind == "prune" and s.device.endswith("stage4")]
        decided = [when for when, _ in trace.requests[0].emitted][1]
        begun[feedback] = pruned[0].start_ms - decided
    assert begun == {"ring": pytest.approx(12.0), "broadcast": pytest.approx(3.0)}
    assert run_metrics(trace)["tokens_per_round"] > 0


def test_drafts_owned_per_request_by_hand() -> None:
    """Two stages of 20 ms, K = 3 drafts of 5 ms on the device of the request's owner, two requests
    (SGLang, 38702). Each device computes both requests and drafts one: 20 + 20 + 15 ms. Where the
    last one drafts both, a request drafts behind the other's pass and then travels alone: 20 + 15
    + 20 + 20 ms."""
    keys = ("schedule.gamma=3", "acceptance.beta=1", "workload.new_tokens=42", links_of(0.0))
    more = ("schedule.receives_first=false", "workload.requests=2", "workload.concurrency=2")
    stages = [{"device": {"stage_ms": {"1": 20.0}}, "host": host} for host in ("first", "last")]
    periods = {}
    for owners in (("first", "last"), ("last",)):
        written = Written("engine_pp", *keys, *more, "workload.prompt_tokens=8")
        content = written.scenario.content
        drafts = [{"device": {"draft_ms": {"1": 5.0}}, "host": host} for host in owners]
        content |= {"drafts": drafts, "pipelines": [{"stages": stages}]}
        content["hosts"] = {host: {"capacity": 1} for host in ("first", "last")}
        (trace,) = predict(Scenario.of(content, written.scenario.path))
        times = [[when for when, _ in request.emitted] for request in trace.requests]
        periods[owners] = [(each[-2] - each[4]) / (len(each) - 6) for each in times]
    assert periods["first", "last"] == [pytest.approx(55.0)] * 2
    assert periods["last",] == [pytest.approx(75.0)] * 2
