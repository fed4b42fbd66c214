"""Queueing results against the simulator, where its times are random in that way."""

from __future__ import annotations

import pytest

from tests.worlds.theory_scenarios import EXACTLY, Written
from treepipe.results.estimates import observe
from treepipe.sim.theory.queues import pollaczek_khinchine_ms

SHORT = (
    "pipelines=[{ stages = [{ device = { stage_ms = { 1 = 20.0 } } }] }]",
    "workload.prompt_tokens=8",
    "workload.new_tokens=4",
)
QUEUE = ("serving.places=1", "workload.requests=330", "runs=8", "workload.warmup_requests=30")


def poisson(rate_per_s: float) -> str:
    return f'workload.arrivals={{process="poisson",rate_per_s={rate_per_s}}}'


@pytest.mark.long
@pytest.mark.parametrize(("load", "beta"), [(0.5, 1.0), (0.5, 0.6)])
def test_requests_wait_as_pollaczek_and_khinchin_say(load: float, beta: float) -> None:
    """M/D/1 if all drafted tokens are accepted, M/G/1 with the chain's own variance if not."""
    settings = (*SHORT, f"acceptance.beta={beta}")
    alone = Written("chain", *settings).expected()
    rate = 1e3 * load / alone.metrics["request_latency_ms"]
    written = Written("chain", *settings, *QUEUE, poisson(rate))
    expected = written.expected()
    wait = expected.terms["queue_wait_ms"]
    constant = pollaczek_khinchine_ms(rate, alone.metrics["request_latency_ms"], 0.0)
    if beta == 1:
        assert wait == pytest.approx(constant, rel=EXACTLY)
    else:
        assert wait > 1.05 * constant, "the variance is worth testing"
    found, shares = observe(written.simulated(), 30).intervals
    for name in ("request_latency_ms", "time_to_first_token_ms", "throughput_tokens_s"):
        low, high = found[name].low, found[name].high
        assert low is not None
        assert high is not None
        assert low < expected.metrics[name] < high, name
        assert high - low < 0.5 * expected.metrics[name], name
    for device, share in expected.utilization.items():
        assert shares[device].mean == pytest.approx(share, rel=0.05), device


def test_waiting_grows_with_variation_and_has_no_end_at_full_load() -> None:
    assert pollaczek_khinchine_ms(50.0, 10.0, 0.0) == 5.0
    assert pollaczek_khinchine_ms(50.0, 10.0, 1.0) == 10.0
    with pytest.raises(ValueError, match="load 1: a queue"):
        pollaczek_khinchine_ms(100.0, 10.0, 0.0)
