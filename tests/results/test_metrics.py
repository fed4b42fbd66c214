"""Metrics of hand-made traces, and the files that traces and recordings go to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from treepipe.core.errors import UserError
from treepipe.core.protocol import RoundRecord
from treepipe.core.requests import RequestTrace
from treepipe.results.estimates import observe, summarize
from treepipe.results.metrics import run_metrics, utilization
from treepipe.results.recording import Recording
from treepipe.results.result import make_result
from treepipe.results.trace import Span, Trace
from treepipe.scenario.deployment import Machine
from treepipe.scenario.resolve import running_warnings


def _trace(speed: float = 1.0) -> Trace:
    """One request: first token at 10, then 2 tokens at 30 and 1 at 50 (ms, times ``speed``)."""
    emitted = ((10 * speed, 1), (30 * speed, 2), (50 * speed, 1))
    rounds = (RoundRecord(3, 4, (0, 2, 0, 1), 10, 3),)
    request = RequestTrace(1, 5, 0.0, 50 * speed, emitted, (7, 8, 9, 4), rounds, "length")
    spans = [
        Span("a", "compute", 0.0, 20 * speed, 1, 5),
        Span("a", "transfer", 20 * speed, 50 * speed, 1, 5),
        Span("b", "prune", 45 * speed, 60 * speed, 1, 5),
    ]
    return Trace(("a", "b"), spans, [request])


def test_metrics_by_hand() -> None:
    metrics = run_metrics(_trace())
    expected = {
        "time_between_tokens_ms": 40 / 3,
        "time_to_first_token_ms": 10,
        "request_latency_ms": 50,
        "throughput_tokens_s": 80,
        "tokens_per_round": 3,
        "tokens_per_step": 0.75,
        "wasted_node_share": 0.7,
        "flushes_per_100_tokens": 100 / 3,
        "p99_time_between_tokens_ms": 20,  # gaps are 20, 0 (emitted together) and 20
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    means = summarize([_trace(), _trace(2.0)])[0]
    assert means["time_to_first_token_ms"].mean == 15
    assert run_metrics(Trace(("a",))) == {}


def test_targets_and_their_fairness_by_hand() -> None:
    """4 tokens in 50 ms, and 4 in 100: x and x / 2, so (3/2)^2 / (2 (1 + 1/4)) = 0.9."""
    trace, slow = _trace(), replace(_trace(2.0).requests[0], session=2, pipeline=1)
    assert "fairness" not in run_metrics(trace), "one target is no fairness"
    trace.requests.append(slow)
    assert run_metrics(trace)["fairness"] == pytest.approx(0.9)
    result = make_result("simulation", "two", 0, [trace])
    assert result.metrics["fairness"].mean == pytest.approx(0.9)
    means = {t: [each.mean for each in told.values()] for t, told in result.targets.items()}
    assert means == {
        "pipeline0": [pytest.approx(80), pytest.approx(40 / 3), pytest.approx(20)],
        "pipeline1": [pytest.approx(40), pytest.approx(80 / 3), pytest.approx(40)],
    }
    told = result.to_json()["targets"]["pipeline1"]["p99_time_between_tokens_ms"]
    assert told == {"mean": pytest.approx(40), "low": None, "high": None, "unit": "ms"}
    assert "targets" not in make_result("simulation", "one", 0, [_trace()]).to_json()


def test_transfers_occupy_no_device_and_nothing_counts_beyond_the_end() -> None:
    assert utilization(_trace()) == {"a": pytest.approx(0.4), "b": pytest.approx(0.1)}


def test_energy_and_price_by_hand() -> None:
    """50 ms and 4 tokens; a is busy for 20 ms, b for 5 ms of the 50."""
    trace = _trace()
    trace.machines = (
        Machine("a", ("a",), power_w=(10.0, 110.0), usd_per_hour=3.6),
        Machine("b", ("b",), power_w=(20.0, 20.0), usd_per_hour=7.2),
    )
    metrics = run_metrics(trace)
    assert metrics["joules_per_token"] == pytest.approx((0.5 + 2.0 + 1.0) / 4)
    assert metrics["usd_per_million_tokens"] == pytest.approx((1e-3 + 2e-3) * 0.05 / 4 * 1e6)
    trace.machines = (Machine("box", ("a", "b"), 2, power_w=(10.0, 110.0), usd_per_hour=3.6),)
    metrics = run_metrics(trace)
    assert metrics["joules_per_token"] == pytest.approx((0.5 + 100 * 0.025 / 2) / 4)
    assert utilization(trace)["box"] == pytest.approx(0.25)


def test_energy_and_price_of_some_machines_are_nobodys() -> None:
    trace = _trace()
    assert "joules_per_token" not in run_metrics(trace)
    machines = (Machine("a", ("a",), power_w=(10.0, 110.0), usd_per_hour=3.6), Machine("b", ("b",)))
    trace.machines = machines
    assert not {"joules_per_token", "usd_per_million_tokens"} & set(run_metrics(trace))
    assert running_warnings(machines) == [
        "joules_per_token is left out: no key power for b",
        "usd_per_million_tokens is left out: no key price_usd_per_hour for b",
    ]
    assert running_warnings(machines[:1]) == running_warnings(machines[1:]) == []


def test_a_host_that_only_one_role_names_has_its_energy_and_price() -> None:
    plain, named = _trace(), _trace()
    a, b = (Machine(name, (name,), 1, None, (), (2.0, 9.0), 1.0) for name in "ab")
    plain.machines, named.machines = (a, b), (a, replace(b, name="solo"))
    assert run_metrics(plain) == run_metrics(named)
    assert {"joules_per_token", "usd_per_million_tokens"} <= run_metrics(named).keys()
    assert utilization(named) == utilization(plain), "it is shown as the role's"


def test_where_no_time_passes_there_are_times_and_no_rates() -> None:
    metrics = run_metrics(_trace(0.0))
    assert metrics["time_between_tokens_ms"] == metrics["request_latency_ms"] == 0
    assert metrics["tokens_per_round"] == 3
    assert not {"throughput_tokens_s", "per_session_throughput_tokens_s"} & set(metrics)
    empty = replace(_trace(0.0), spans=[])
    assert utilization(empty) == {}
    for traces in ([empty], [empty] * 3):
        estimates = observe(traces)
        assert estimates.utilization == {}
        (sentence,) = estimates.warnings
        assert sentence.startswith("no time passes")
        assert sentence.endswith(
            "per_session_throughput_tokens_s, throughput_tokens_s, utilization"
        )
    assert observe([_trace()]).warnings == []


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"schema": "treepipe.recording/1"}'])
def test_wrong_recordings_are_one_sentence(tmp_path: Path, content: str) -> None:
    bad = tmp_path / "recording.json"
    with pytest.raises(UserError, match="there is no such recording"):
        Recording.load(bad)
    bad.write_text(content)
    with pytest.raises(UserError, match="is not a recording"):
        Recording.load(bad)
