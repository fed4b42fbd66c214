"""The best plan where things go wrong: by hand and against a cluster that is so."""

from __future__ import annotations

from math import pi, sqrt
from pathlib import Path

import pytest

from tests.worlds.searches import METRIC, found
from tests.worlds.written_studies import say
from treepipe.core.errors import UserError
from treepipe.core.losses import noticed_after_ms
from treepipe.library import Plan
from treepipe.planner.break_even import axis_of, break_even
from treepipe.planner.halving import SearchResult
from treepipe.planner.report import write_best
from treepipe.planner.robustness import StressCase, StressCases, stress_cases
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
ARRIVING = {
    "workload": {
        "requests": 8,
        "new_tokens": 4,
        "arrivals": {"process": "poisson", "rate_per_s": 4},
    },
    "search.goal": "request_latency_ms",
}
LATE = {"links.default": {"latency_ms": 3.0, "bandwidth_mbit_s": 8.0, "jitter_ms": 3.0}}


def by_case(each: SearchResult) -> dict[str, StressCase]:
    return {row.case: row for row in stress_cases(each, say)}


def test_plain_decoding_by_hand() -> None:
    """A token goes through both stages one after another, and over as many links; a loss costs one
    request what passes until it is noticed, the restart, and feeding its text again."""
    each = found(faults={"restart_ms": 700, "timeout_ms": 1000})
    token_ms = each.best.outcome.metrics[METRIC].mean
    rows = by_case(each)
    assert rows.keys() == {JITTER, SLOW, LOST}
    assert rows[SLOW].change * token_ms == pytest.approx(0.5 * 20.0)
    late_ms = rows[JITTER].change * token_ms / (3.0 * sqrt(2 / pi))
    assert late_ms == pytest.approx(2, abs=1.2), "two or three messages, of a few draws"
    down_ms = noticed_after_ms("cut", 1000) + 700
    lost_ms = rows[LOST].change * token_ms * 11
    assert down_ms + 30 < lost_ms < down_ms + 5 * token_ms


@pytest.mark.parametrize(("schedule", "key"), [("chain", "gamma"), ("flowspec", "tree_size")])
def test_cases_are_those_of_a_cluster_that_is_so(schedule: str, key: str) -> None:
    each = found(**{"search.schedules": [schedule], "search.grid": {f"schedule.{key}": [4]}})
    rows, plan = by_case(each), each.best.candidate.scenario.with_(runs=3)
    stage = {"device": {"stage_ms": {1: 20.0, 64: 40.0}}}
    slow = {"device": {"stage_ms": {1: 30.0, 64: 60.0}}}
    worse = []
    for changes in (
        {"pipelines.0.stages": [slow, stage]},
        {"pipelines.0.stages": [stage, slow]},
        {"drafts.0.device.draft_ms": {1: 7.5}},
    ):
        metrics, _ = observe(predict(plan.with_(**changes))).intervals
        worse.append(metrics[METRIC].mean)
    stated = each.best.outcome.metrics[METRIC].mean
    assert rows[SLOW].change == pytest.approx(max(worse) / stated - 1)
    roles = ["pipeline0.stage1", "pipeline0.stage2", "draft0"]
    assert rows[SLOW].worker == roles[worse.index(max(worse))]
    metrics, _ = observe(predict(plan.with_(**LATE))).intervals
    assert rows[JITTER].change == pytest.approx(metrics[METRIC].mean / stated - 1)


def test_bursts_are_a_case_where_requests_arrive_at_a_rate() -> None:
    each = found(**ARRIVING)
    rows = by_case(each)
    assert rows.keys() == {JITTER, BURST, SLOW, LOST}
    plan = each.best.candidate.scenario
    bursty = plan.with_(runs=3, **{"workload.arrivals.process": "gamma", "workload.arrivals.cv": 4})
    metrics, _ = observe(predict(bursty)).intervals
    stated = each.best.outcome.metrics["request_latency_ms"].mean
    assert rows[BURST].change == pytest.approx(metrics["request_latency_ms"].mean / stated - 1)
    assert rows[BURST].change > 0.1


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
    plan, key = Plan(each), "links.default.latency_ms=1:9"
    assert plan.robustness() == stress_cases(each, say)
    assert plan.examine("robust") == StressCases(plan.robustness())
    with pytest.raises(UserError, match=r"examine\('robustly'\): there are sensitivity"):
        plan.examine("robustly")
    assert plan.sensitivity() == sensitivities(each, say)
    assert plan.break_even(key) == break_even(each, axis_of(key, each.cluster), say)
    with pytest.raises(UserError, match="--capacity needs"):
        plan.capacity()
