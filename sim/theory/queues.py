"""Queueing results: what random times make of StarSD's threshold, and of open arrivals.

Law of this file: steady state; times in milliseconds, and random ones are exponential unless said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClosedQueue:
    """A closed loop in steady state.

    Attributes:
        load: busy share of a server.
        rate_s: services per second of all servers.
        wait_ms: mean wait for a server, per service.
    """

    load: float
    rate_s: float
    wait_ms: float


def machine_repairman(
    machines: int, back_ms: float, service_ms: float, servers: int = 1
) -> ClosedQueue:
    """N machines that run for Z and are then served for S, both exponential (M/M/c//N, exact).

    For StarSD the machines are the targets, Z the return and S the service time. It blurs the
    threshold at ceil(Z/S) + 1: the load stays below min(1, N S / (Z + S)), which constant times
    reach. ``servers`` share one queue. The law depends on Z only through its mean.

    >>> machine_repairman(1, 30.0, 10.0)
    ClosedQueue(load=0.25, rate_s=25.0, wait_ms=0.0)
    >>> machine_repairman(2, 10.0, 10.0).load  # weights 1, 2, 2 of 0, 1, 2 machines down
    0.8
    """
    weights = [1.0]
    for down in range(machines):
        ratio = (machines - down) * service_ms / (min(down + 1, servers) * back_ms)
        weights.append(weights[-1] * ratio)
    total = sum(weights)
    busy = sum(min(down, servers) * weight for down, weight in enumerate(weights)) / total
    rate = busy / service_ms
    return ClosedQueue(busy / servers, 1e3 * rate, max(0.0, machines / rate - back_ms - service_ms))


def mean_value_analysis(
    machines: int, back_ms: float, service_ms: Sequence[float], visits: Sequence[float]
) -> float:
    """Cycles per second of N machines over several servers with a queue each (Reiser, Lavenberg).

    For several draft servers: ``visits`` are the shares of requests that go to each.

    >>> round(mean_value_analysis(2, 10.0, [10.0], [1.0]), 9)
    80.0
    """
    queued = [0.0] * len(service_ms)
    rate = 0.0
    for machine in range(1, machines + 1):
        stays = [time * (1 + length) for time, length in zip(service_ms, queued, strict=True)]
        cycle = back_ms + sum(v * stay for v, stay in zip(visits, stays, strict=True))
        rate = machine / cycle
        queued = [rate * v * stay for v, stay in zip(visits, stays, strict=True)]
    return 1e3 * rate


def pollaczek_khinchine_ms(rate_s: float, service_ms: float, variation: float) -> float:
    """Mean wait of open Poisson arrivals (M/G/1): rho S (1 + CV^2) / (2 (1 - rho)).

    Raises ``ValueError`` if the server cannot keep up.

    >>> pollaczek_khinchine_ms(50.0, 10.0, 1.0)
    10.0
    """
    load = rate_s * service_ms / 1e3
    if load >= 1:
        raise ValueError(f"load {load:g}: a queue with open arrivals needs a load below 1")
    return load * service_ms * (1 + variation**2) / (2 * (1 - load))


def md1_wait_ms(rate_s: float, service_ms: float) -> float:
    """Mean wait with constant service (M/D/1): half of what exponential service has.

    >>> md1_wait_ms(50.0, 10.0)
    5.0
    """
    return pollaczek_khinchine_ms(rate_s, service_ms, 0.0)
