"""Times of small scenarios that the simulator once got wrong, each written out by hand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from treepipe.results.trace import Trace
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict


def simulated(
    schedule: dict[str, Any], draft_ms: float, stage_ms: float, **more: dict[str, Any]
) -> Trace:
    """One stage per pipeline, no link times, and a draft that is always wrong."""
    stages = [{"device": {"stage_ms": {1: stage_ms}}}]
    scenario = Scenario.of(
        {
            "name": "by hand",
            "target": {"layers": 8},
            "drafts": [{"device": {"draft_ms": {1: draft_ms}, **more.get("draft", {})}}],
            "pipelines": [{"stages": stages, **more.get("pipeline", {})}],
            "links": {"default": {"latency_ms": 0.0}},
            "schedule": schedule,
            "acceptance": {"source": "bernoulli", "beta": 0},
            "workload": {"prompt_tokens": 1, "new_tokens": 6, **more.get("workload", {})},
        }
    )
    (trace,) = predict(scenario)
    return trace


def gaps(trace: Trace) -> list[float]:
    times = [at for at, _ in trace.requests[0].emitted]
    return [after - before for before, after in itertools.pairwise(times)]


@pytest.mark.parametrize(
    "schedule",
    [
        {"name": "dsd", "gamma": 3},
        {"name": "specinfer", "branching": [1, 1, 1], "draft_ahead": True},
    ],
)
def test_a_pass_that_is_given_up_before_it_begins_takes_no_time(schedule: dict[str, Any]) -> None:
    """Three passes of 21 ms, then 40 ms at the stage; meanwhile the draft has begun a second pass
    ahead, which ends 2 ms after the rejection is there. The third one ahead never begins."""
    assert gaps(simulated(schedule, 21.0, 40.0))[1:3] == [pytest.approx(3 * 21 + 2 * 21)] * 2
