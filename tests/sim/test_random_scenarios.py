"""Any valid scenario is simulated to a result that is valid, too: no traceback, no figure that
cannot be."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given

from tests.worlds.examples import examples
from tests.worlds.random_scenarios import scenarios
from treepipe.core.errors import UserError
from treepipe.results.estimates import observe
from treepipe.results.metrics import METRICS, run_metrics, utilization
from treepipe.results.result import make_result
from treepipe.results.statistics import SHARE, Interval, Range
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict


def assert_inside(interval: Interval, within: Range) -> None:
    for value in (interval.low, interval.mean, interval.high):
        assert value is None or within.low <= value <= within.high, interval


@examples(30, suppress_health_check=list(HealthCheck))
@given(scenarios)
def test_a_valid_scenario_has_a_valid_result(scenario: Scenario) -> None:
    try:
        traces = predict(scenario)
    except UserError:
        return  # this schedule is for one draft server, or the like
    estimates = observe(traces)
    result = make_result("simulation", "random", 0, traces, estimates=estimates).to_json()
    json.dumps(result, allow_nan=False)
    metrics, shares = estimates.intervals
    for name, interval in metrics.items():
        assert_inside(interval, METRICS[name].range)
    for interval in shares.values():
        assert_inside(interval, SHARE)
    for trace in traces:
        assert all(span.end_ms >= span.start_ms >= 0 for span in trace.spans)
        assert all(value >= 0 for value in (run_metrics(trace) | utilization(trace)).values())
