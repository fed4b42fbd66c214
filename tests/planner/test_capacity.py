"""The capacity of a plan, against Lindley's recursion on the same arrivals, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.worlds.written_studies import say
from treepipe.planner.capacity import DOUBLINGS, Capacities, capacities
from treepipe.planner.cluster import Cluster
from treepipe.planner.plan import search
from treepipe.planner.report import plan_content
from treepipe.scenario.workload import draw_requests, run_seeds

PASS_MS, TOKENS, RUNS = 10.0, 2, 3
SERVICE_MS = PASS_MS * TOKENS
"""The prompt's pass gives the first token."""
CLUSTER: dict[str, Any] = {
    "name": "loaded",
    "runs": RUNS,
    "target": {"layers": 1},
    "drafts": [{"device": {"draft_ms": {1: 0.0}}}],
    "pipelines": [{"stages": [{"device": {"stage_ms": {1: PASS_MS}}}]}],
    "links": {"default": {"latency_ms": 0.0}},
    "serving": {"places": 1, "slo": {"time_to_first_token_ms": 25.0}},
    "workload": {
        "requests": 40, "prompt_tokens": 1, "new_tokens": TOKENS, "warmup_requests": 0,
        "arrivals": {"process": "poisson", "rate_per_s": 5.0},
    },
    "search": {
        "schedules": ["pp"], "cases": 0, "first_runs": RUNS,
        "grid": {"serving.batch": [1]},
    },
}  # fmt: skip


def cluster(limits: dict[str, float], goal: str = "request_latency_ms", **workload: Any) -> Cluster:
    search_for = {**CLUSTER["search"], "limits": limits, "goal": goal}
    asked = {**CLUSTER["workload"], **workload}
    return Cluster.of({**CLUSTER, "search": search_for, "workload": asked})


def latencies(rate_per_s: float) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """By run, of each request: it waits for the one before it, and is served for a fixed time."""
    loaded = cluster({})
    stated = loaded.workload.arrivals.rate_per_s  # type: ignore[union-attr]
    found = []
    for seed in run_seeds(loaded.seed, RUNS):
        arrivals = np.array([each.arrival_ms for each in draw_requests(loaded, seed)], float)
        waits = [0.0]
        for gap in np.diff(arrivals) * stated / rate_per_s:
            waits.append(max(0.0, waits[-1] + SERVICE_MS - gap))
        found.append(np.array(waits) + SERVICE_MS)
    return found


def by_hand(limit: str, bound: float) -> float:
    """The rate at which the limit is reached, by halving."""

    def value(rate: float) -> float:
        every = np.concatenate(latencies(rate))
        return float(np.percentile(every, 95) if limit.startswith("p95") else every.mean())

    low, high = 1.0, 200.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) <= bound else (low, middle)
    return low


@pytest.mark.parametrize(
    ("limit", "bound"), [("request_latency_ms", 30.0), ("p95_request_latency_ms", 60.0)]
)
def test_a_queue_of_fixed_service_times(limit: str, bound: float) -> None:
    found = search(cluster({limit: bound}), say)
    (plan,) = capacities(found, say)
    assert plan.rate_per_s == pytest.approx(by_hand(limit, bound), rel=0.03)
    assert plan.low < plan.rate_per_s < plan.high
    assert plan.limit == limit
    (entry,) = plan_content(found, {"capacity": Capacities([plan])})["capacity"]
    assert entry["rate_per_s"] == plan.rate_per_s
    assert not entry["overloaded"]


def test_goodput_counts_the_requests_that_get_what_they_are_promised() -> None:
    """Lindley's recursion again, at 40 requests per second: a first token after 25 ms at most."""
    rate = 40.0
    arrivals = {"process": "poisson", "rate_per_s": rate}
    found = search(cluster({}, "slo_attainment", arrivals=arrivals), say)
    first = [each - SERVICE_MS + PASS_MS for each in latencies(rate)]
    kept = np.mean(np.concatenate(first) <= 25.0)
    assert 0.3 < kept < 0.95
    metrics = found.winner.outcome.metrics
    assert metrics["slo_attainment"].mean == pytest.approx(kept)
    p95 = np.percentile(np.concatenate(first), 95)
    assert metrics["p95_time_to_first_token_ms"].mean == pytest.approx(p95)
    per_request = metrics["throughput_tokens_s"].mean / TOKENS
    assert metrics["goodput_requests_s"].mean == pytest.approx(kept * per_request)


def test_what_no_rate_keeps_has_no_capacity_and_what_no_rate_breaks_says_so() -> None:
    """A request takes 20 ms alone."""
    found = search(cluster({"request_latency_ms": 19.0}, requests=10), say)
    assert not found.feasible
    (plan,) = capacities(found, say)
    assert plan.rate_per_s is None
    assert plan.limit == "request_latency_ms"
    (most,) = capacities(search(cluster({"request_latency_ms": 1e6}, requests=10), say), say)
    assert most.rate_per_s == 5.0 * 2**DOUBLINGS
    assert most.high is None
    assert most.overloaded


def test_several_plans_are_searched_as_each_of_them_alone() -> None:
    loaded = cluster({"request_latency_ms": 30.0}, requests=10)
    both = loaded.with_(acceptance={"source": "bernoulli", "beta": 0.5})
    found = search(both.with_(**{"search.schedules": ["pp", "chain"]}), say)
    together = {each.schedule: each for each in capacities(found, say)}
    assert len(together) == 2
    for name, each in found.best_of_each.items():
        own = replace(each, candidate=replace(each.candidate, same=()))
        assert capacities(replace(found, ranking=[own]), say) == [together[name]]
