"""The best plan where things go wrong: by hand and against a cluster that is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worlds.searches import METRIC, found
from tests.worlds.written_studies import say
from treepipe.core.errors import UserError
from treepipe.core.failover import noticed_after_ms
from treepipe.planner.halving import SearchResult
from treepipe.planner.report import write_best
from treepipe.planner.robustness import StressCase, stress_cases
from treepipe.planner.sensitivity import sensitivities
from treepipe.results.estimates import observe
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict

JITTER, BURST, SLOW, LOST = (
    "jitter as large as latencies",
    "arrivals in bursts (cv 4)",
    "a device 1.5 times as slow",
    "a device lost halfway, with a spare",
)
CHAIN = {"search.schedules": ["chain"], "search.grid": {"schedule.gamma": [4]}}
FLOWSPEC = {"search.schedules": ["flowspec"], "search.grid": {"schedule.tree_size": [4]}}
ARRIVING = {
    "workload": {
        "requests": 8,
        "new_tokens": 4,
        "arrivals": {"process": "poisson", "rate_per_s": 4},
    },
    "search.goal": "request_latency_ms",
}
STAGE = {"device": {"stage_ms": {1: 20.0, 64: 40.0}}}
SLOW_STAGE = {"device": {"stage_ms": {1: 30.0, 64: 60.0}}}
EACH_SLOW: dict[str, dict[str, Any]] = {
    "pipeline0.stage1": {"pipelines.0.stages": [SLOW_STAGE, STAGE]},
    "pipeline0.stage2": {"pipelines.0.stages": [STAGE, SLOW_STAGE]},
    "draft0": {"drafts.0.device.draft_ms": {1: 7.5}},
}
LATE = {"links.default": {"latency_ms": 3.0, "bandwidth_mbit_s": 8.0, "jitter_ms": 3.0}}
BURSTY = {"workload.arrivals.process": "gamma", "workload.arrivals.cv": 4}


def by_case(each: SearchResult) -> dict[str, StressCase]:
    return {row.case: row for row in stress_cases(each, say)}


def test_a_loss_by_hand() -> None:
    """It costs one of the requests what passes until it is noticed, the restart, and feeding its
    text again."""
    each = found(faults={"restart_ms": 700, "timeout_ms": 1000})
    token_ms = each.winner.outcome.metrics[METRIC].mean
    rows = by_case(each)
    assert rows.keys() == {JITTER, SLOW, LOST}
    down_ms = noticed_after_ms("cut", 1000) + 700
    lost_ms = rows[LOST].change * token_ms * 11
    assert down_ms + 30 < lost_ms < down_ms + 5 * token_ms


@pytest.mark.parametrize(
    ("searched", "case", "changed"),
    [
        (CHAIN, SLOW, EACH_SLOW),
        (FLOWSPEC, SLOW, EACH_SLOW),
        (FLOWSPEC, JITTER, {None: LATE}),
        (ARRIVING, BURST, {None: BURSTY}),
    ],
    ids=["slow, chain", "slow, flowspec", "jitter", "burst"],
)
def test_a_case_is_the_worst_of_clusters_that_are_so(
    searched: dict[str, Any], case: str, changed: dict[str | None, dict[str, Any]]
) -> None:
    each = found(**searched)
    goal, plan = each.goal.name, each.winner.candidate.scenario.with_(runs=3)
    worse = {}
    for worker, changes in changed.items():
        metrics, _ = observe(predict(plan.with_(**changes))).intervals
        worse[worker] = metrics[goal].mean
    row, stated = by_case(each)[case], each.winner.outcome.metrics[goal].mean
    assert row.change == pytest.approx(max(worse.values()) / stated - 1)
    assert row.worker == max(worse, key=lambda worker: worse[worker])


def test_worse_is_less_of_a_throughput() -> None:
    rows = by_case(found(**{"search.goal": "throughput_tokens_s"}))
    assert all(row.change < 0 for row in rows.values())
    assert rows[SLOW].worker.startswith("pipeline0.stage"), "the draft has nothing to do"


def test_the_written_plan_keeps_the_clusters_faults(tmp_path: Path) -> None:
    write_best(found(faults={"spares": 2, "timeout_ms": 1500}), tmp_path / "best.toml")
    faults = Scenario.load(tmp_path / "best.toml").faults
    assert (faults.spares, faults.timeout_ms) == (2, 1500)


def test_a_plan_of_the_library_is_asked_the_same() -> None:
    each = found()
    plan, key = each, "links.default.latency_ms=1:9"
    assert plan.robustness() == stress_cases(each, say)
    assert plan.sensitivity() == sensitivities(each, say)
    assert [plan.break_even(key)] == [row.break_even for row in plan.sensitivity(key)]
    with pytest.raises(UserError, match="--capacity needs"):
        plan.capacity()
