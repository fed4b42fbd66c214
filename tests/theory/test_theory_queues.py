"""Queueing results: against the simulator where its times are random in that way, else against an
independent solution.

The simulator has no exponential service or think times, so the machine-repairman model is checked
against the balance equations, mean value analysis, and the constant times that bound it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.worlds.theory_scenarios import EXACTLY, Written
from treepipe.results.estimates import summarize
from treepipe.sim.theory.queues import (
    machine_repairman,
    md1_wait_ms,
    mean_value_analysis,
    pollaczek_khinchine_ms,
)
from treepipe.sim.theory.starsd import Cycle

SHORT = (
    "pipelines=[{ stages = [{ device = { stage_ms = { 1 = 20.0 } } }] }]",
    "workload.prompt_tokens=8",
    "workload.new_tokens=4",
)
QUEUE = ("serving.places=1", "workload.requests=330", "runs=8", "workload.warmup_requests=30")


def poisson(rate_per_s: float) -> str:
    return f'workload.arrivals={{process="poisson",rate_per_s={rate_per_s}}}'


# --- open arrivals -------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("load", "beta"), [(0.5, 1.0), (0.5, 0.6)])
def test_requests_wait_as_pollaczek_and_khinchin_say(
    tmp_path: Path, load: float, beta: float
) -> None:
    """M/D/1 if all drafted tokens are accepted, M/G/1 with the chain's own variance if not."""
    settings = (*SHORT, f"acceptance.beta={beta}")
    alone = Written(tmp_path, "chain", *settings).expected()
    rate = 1e3 * load / alone.metrics["request_latency_ms"]
    written = Written(tmp_path, "chain", *settings, *QUEUE, poisson(rate))
    expected = written.expected()
    wait = expected.terms["queue_wait_ms"]
    constant = md1_wait_ms(rate, alone.metrics["request_latency_ms"])
    if beta == 1:
        assert wait == pytest.approx(constant, rel=EXACTLY)
    else:
        assert wait > 1.05 * constant, "the variance is worth testing"
    found, shares = summarize(written.simulated(), 30)
    for name in ("request_latency_ms", "time_to_first_token_ms", "throughput_tokens_s"):
        low, high = found[name].low, found[name].high
        assert low is not None
        assert high is not None
        assert low < expected.metrics[name] < high, name
        assert high - low < 0.5 * expected.metrics[name], name
    for device, share in expected.utilization.items():
        assert shares[device].mean == pytest.approx(share, rel=0.05), device


def test_waiting_grows_with_variation_and_has_no_end_at_full_load() -> None:
    assert pollaczek_khinchine_ms(50.0, 10.0, 1.0) == 2 * md1_wait_ms(50.0, 10.0)
    with pytest.raises(ValueError, match="load 1: a queue"):
        md1_wait_ms(100.0, 10.0)


# --- a closed loop -------------------------------------------------------------------------------


def balance(machines: int, back_ms: float, service_ms: float, servers: int) -> list[float]:
    """Probabilities of 0..N machines down, from the generator matrix of the birth-death chain."""
    size = machines + 1
    rates = np.zeros((size, size))
    for down in range(machines):
        rates[down, down + 1] = (machines - down) / back_ms
        rates[down + 1, down] = min(down + 1, servers) / service_ms
    rates -= np.diag(rates.sum(axis=1))
    equations = np.vstack([rates.T, np.ones(size)])
    answer, *_ = np.linalg.lstsq(equations, np.r_[np.zeros(size), 1.0], rcond=None)
    return [float(share) for share in answer]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("machines", [1, 2, 5, 9])
@pytest.mark.parametrize("back_ms", [4.0, 30.0])
def test_machine_repairman_solves_the_balance_equations(
    machines: int, back_ms: float, servers: int
) -> None:
    shares = balance(machines, back_ms, 12.0, servers)
    found = machine_repairman(machines, back_ms, 12.0, servers)
    busy = sum(min(down, servers) * share for down, share in enumerate(shares))
    assert found.load == pytest.approx(busy / servers, rel=EXACTLY)
    assert found.rate_s == pytest.approx(1e3 * busy / 12.0, rel=EXACTLY)
    waiting = sum(max(0, down - servers) * share for down, share in enumerate(shares))
    assert found.wait_ms * found.rate_s / 1e3 == pytest.approx(waiting, abs=1e-8), "Little's law"
    if servers == 1:
        assert mean_value_analysis(machines, back_ms, [12.0], [1.0]) == pytest.approx(
            found.rate_s, rel=EXACTLY
        )


@pytest.mark.parametrize("targets", range(1, 10))
def test_random_times_only_take_from_starsds_load(targets: int) -> None:
    """Constant times reach min(1, N S / (Z + S)); exponential ones stay below, but for N = 1."""
    constant = Cycle(30.0, 12.0, 1.0).load(targets)
    random = machine_repairman(targets, 30.0, 12.0).load
    assert constant == pytest.approx(min(1.0, targets * 12.0 / 42.0))
    assert random == pytest.approx(constant) if targets == 1 else random < constant


def test_two_draft_servers_halve_the_visits() -> None:
    """Mean value analysis by hand: one machine, two servers it visits in turn."""
    assert mean_value_analysis(1, 10.0, [10.0, 30.0], [0.5, 0.5]) == pytest.approx(1e3 / 30.0)
