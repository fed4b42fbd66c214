"""What counts as one observation: windows, batches, warm-up; on simulated and made runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.worlds.command_line import SCENARIO
from tests.worlds.examples import THOROUGH
from treepipe.core.errors import UserError
from treepipe.core.protocol import RoundRecord
from treepipe.core.requests import Objectives, RequestTrace
from treepipe.results.estimates import find_warmup, observe, possible_batches, summarize
from treepipe.results.metric import Sums, Windows
from treepipe.results.metrics import (
    METRICS,
    PERCENTILES,
    metric_ratios,
    run_metrics,
    utilization_ratios,
)
from treepipe.results.result import make_result
from treepipe.results.trace import Span, Trace
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict

METRIC = "time_between_tokens_ms"


def simulated(folder: Path, *settings: str) -> list[Trace]:
    path = folder / "small.toml"
    path.write_text(SCENARIO)
    return predict(Scenario.load(path, ["runs=1", *settings]))


def made(latencies: list[float], *, asked_every: float | None = None) -> Trace:
    """Requests of 11 tokens each, one after another or asked for at fixed intervals (ms)."""
    trace = Trace(("a",))
    now = 0.0
    for session, latency in enumerate(latencies, start=1):
        if asked_every is not None:
            now = (session - 1) * asked_every
        emitted = ((now, 1), (now + latency, 10))
        record = RoundRecord(10, 2, (4, 6), 20, 5)
        end = now + latency
        request = RequestTrace(session, 4, now, end, emitted, (0,) * 11, (record,), "length")
        trace.requests.append(request)
        trace.spans.append(Span("a", "compute", now, now + latency / 2, session, 1))
        now = end
    return trace


@pytest.mark.parametrize("schedule", ["flowspec", "starsd", "specpipe_db", "pp"])
def test_windows_add_up_to_the_run(tmp_path: Path, schedule: str) -> None:
    settings = ["workload.requests=30", "workload.concurrency=3", f"schedule.name={schedule}"]
    trace = simulated(tmp_path, *settings)[0]
    whole, parts = Windows.of(trace), Windows.of(trace, 7)
    for ratios in (metric_ratios, utilization_ratios):
        once, many = ratios(Sums(trace, whole)), ratios(Sums(trace, parts))
        assert once.keys() == many.keys()
        for name, columns in once.items():
            for column, split in zip(columns, many[name], strict=True):
                assert len(split) == 7
                assert split.sum() == pytest.approx(column[0], rel=1e-9, abs=1e-9), name
    assert sum(map(len, parts.requests)) == 30


@pytest.mark.long
def test_every_metric_and_device_has_an_interval_over_runs_and_over_batches(tmp_path: Path) -> None:
    several = simulated(tmp_path, "runs=3")
    long = simulated(tmp_path, "workload.requests=40", "workload.new_tokens=60")
    for traces, over in ((several, "runs"), (long, "batches")):
        for trace in traces:
            trace.paged, trace.slo = True, Objectives(request_latency_ms=1e6)
            trace.machines = tuple(
                replace(machine, power_w=(5.0, 20.0), usd_per_hour=1.0)
                for machine in trace.machines
            )
        result = make_result("simulation", "s", 0, traces).to_json()
        assert result["intervals_over"] == over
        few = {name for name, each in PERCENTILES.items() if each.of_requests}
        assert set(result["metrics"]) - few == set(METRICS) - few - {"fairness"}, "of one pipeline"
        many = [each for name, each in result["metrics"].items() if name not in few]
        for shown in (*many, *result["utilization"].values()):
            assert shown["low"] is None or shown["low"] < shown["mean"] < shown["high"]
        assert result["metrics"][METRIC]["low"] is not None


def test_one_short_run_has_no_interval(tmp_path: Path) -> None:
    traces = simulated(tmp_path, "workload.requests=9")
    result = make_result("simulation", "s", 0, traces).to_json()
    assert result["intervals_over"] is None
    assert {each["low"] for each in result["metrics"].values()} == {None}
    assert result["metrics"][METRIC]["mean"] == run_metrics(traces[0])[METRIC]


def test_a_long_text_weighs_more_than_a_short_one() -> None:
    """Two runs, 10 and 30 tokens: time over tokens is not the mean of the two quotients."""
    metrics, shares = summarize([made([100.0]), made([300.0] * 3)])
    assert metrics[METRIC].mean == pytest.approx((100 + 900) / (10 + 30))
    assert shares["a"].mean == pytest.approx(0.5)


def test_batches_are_intervals_of_the_requests_where_they_never_overlap() -> None:
    latencies = [100.0, 120, 90, 110, 105, 95, 130, 80, 100, 115]
    estimates = observe([made(latencies)])
    assert estimates.over == "batches"
    assert estimates.metrics[METRIC] == pytest.approx(np.array(latencies) / 10)
    assert possible_batches(made(latencies[:9]), 0) == 1


def test_a_batch_outlasts_the_requests_that_are_open_at_once() -> None:
    overlapping = made([100.0] * 100, asked_every=25.0)  # four open at once
    assert possible_batches(overlapping, 0) == 12
    assert possible_batches(overlapping, 60) == 1


def test_warm_up_that_is_asked_for_is_left_out() -> None:
    trace = made([500.0, 100, 100, 100])
    estimates = observe([trace], warmup=1)
    assert estimates.metrics[METRIC] == pytest.approx([10.0])
    assert estimates.metrics["throughput_tokens_s"] == pytest.approx([1e3 * 3 * 11 / 300], rel=0.1)
    assert estimates.utilization["a"] == pytest.approx([0.5])
    with pytest.raises(UserError, match=r"warmup_requests = 4 leaves nothing of a run's 4"):
        observe([trace], warmup=4)


def test_warm_up_is_found_only_where_requests_meet_and_are_many() -> None:
    slow_start = [400.0] * 20 + [100.0] * 180
    assert find_warmup([made(slow_start, asked_every=25.0)]) == (20, True)
    assert find_warmup([made(slow_start)]) == (0, True)
    assert find_warmup([made(slow_start[:99], asked_every=25.0)]) == (0, True)
    both = observe([made(slow_start, asked_every=25.0)] * 2)
    assert both.warmup == 20
    assert both.metrics[METRIC] == pytest.approx([10.0, 10.0])


def test_a_run_that_never_settles_and_correlated_batches_are_warned_of() -> None:
    growing = [100.0 + i for i in range(120)]
    result = make_result("simulation", "s", 0, [made(growing, asked_every=50.0)]).to_json()
    assert any("the first half of the requests differs" in each for each in result["warnings"])
    alone = make_result("simulation", "s", 0, [made(growing)]).to_json()
    assert any(METRIC in each and "correlated" in each for each in alone["warnings"])


def test_refused_requests_count_for_nothing() -> None:
    trace = made([100.0] * 12)
    trace.requests.append(RequestTrace.refused(13, 4, 50.0))
    assert observe([trace]).metrics[METRIC].mean() == pytest.approx(10.0)
    nothing = Trace(("a",), [], [RequestTrace.refused(1, 4, 0.0)])
    nothing.requests[0] = RequestTrace(1, 4, 0.0, 1.0, (), (), (), "refused")
    assert observe([nothing]).metrics == {}


@pytest.mark.long
def test_batches_of_a_simulated_run_cover_what_long_runs_find(tmp_path: Path) -> None:
    """One closed loop of three clients: intervals of short runs, one each, and two long ones."""
    runs = 40 if THOROUGH else 20
    base = ["schedule.name=chain", "workload.new_tokens=5", "workload.concurrency=3"]
    long = simulated(tmp_path, *base, "workload.requests=500", "runs=2", "seed=99")
    truth = {name: each.mean for name, each in summarize(long)[0].items()}
    names = (METRIC, "tokens_per_round", "request_latency_ms", "draft_service_ms")
    hits = dict.fromkeys(names, 0)
    for trace in simulated(tmp_path, *base, "workload.requests=60", f"runs={runs}"):
        metrics, _ = summarize([trace])
        for name in names:
            low, high = metrics[name].low, metrics[name].high
            hits[name] += low <= truth[name] <= high
    assert all(0.82 * runs <= count for count in hits.values()), hits


@pytest.mark.parametrize(
    ("settings", "exact"),
    [
        (["schedule.name=pp"], True),
        (["schedule.name=chain", "acceptance.beta=1.0"], True),
        (["schedule.name=chain", "acceptance.beta=0.0"], True),
        (["schedule.name=chain"], False),
        (["schedule.name=pp", "links.default={latency_ms=1,jitter_ms=1}"], False),
        (["schedule.name=pp", "links.default={latency_ms=1,loss=0.1,retransmit_ms=9}"], False),
        (["schedule.name=pp", "workload.new_tokens={distribution='uniform',min=2,max=20}"], False),
        (["schedule.name=pp", "workload.arrivals={process='poisson',rate_per_s=1.0}"], False),
    ],
)
def test_a_figure_is_exact_where_nothing_is_drawn(
    settings: list[str], exact: bool, tmp_path: Path
) -> None:
    """So that any other seed would give the same; else two runs give no interval, nor say so."""
    one, other = (simulated(tmp_path, "runs=2", *settings, seed) for seed in ("seed=1", "seed=8"))
    found = observe(one, 0)
    assert found.exact == exact
    metrics, shares = found.intervals
    assert {each.fixed for each in (*metrics.values(), *shares.values())} == {"exact" * exact}
    assert (found.warnings == []) == exact
    alike = all(metrics[name] == each for name, each in observe(other, 0).intervals[0].items())
    assert alike == exact
