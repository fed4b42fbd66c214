"""Queueing results in steady state: the mean wait of requests that arrive at random."""

from __future__ import annotations


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
