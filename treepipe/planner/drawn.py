"""Cases drawn from the uncertainty of inputs.

An input that is an estimate states a relative uncertainty u: its true value is within a factor of 1
+ u of the stated one, with a confidence of 95 %. Each case multiplies every such input by a factor
from the corresponding lognormal distribution (drawn by a Latin hypercube, so that few cases cover
the range).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import exp, log1p
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from treepipe.results.statistics import CONFIDENCE
from treepipe.scenario.scale import Estimated, multiplied
from treepipe.scenario.scenario import Scenario

RUNS = 2
"""Runs of each plan in each case."""
Floats = npt.NDArray[np.float64]
QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def drawn_factors(
    inputs: Mapping[Estimated, float], cases: int, seed: int
) -> list[dict[Estimated, float]]:
    """Draw the factor of every input for each case, from a Latin hypercube (McKay, Beckman and
    Conover, *Technometrics* 1979)."""
    rng = np.random.default_rng(seed)
    strata = rng.permuted(np.tile(np.arange(cases), (len(inputs), 1)), axis=1)
    shares = ((strata + rng.random(strata.shape)) / cases).T
    normal = NormalDist()
    spreads = [log1p(share) / QUANTILE for share in inputs.values()]
    return [
        {
            of: exp(spread * normal.inv_cdf(at))
            for of, spread, at in zip(inputs, spreads, row, strict=True)
        }
        for row in shares.tolist()
    ]


def in_case(
    scenario: Scenario, own: Collection[Estimated], factors: Mapping[Estimated, float]
) -> Scenario:
    """Multiply those inputs that the plan's scenario uses (``own``) by their factors, on top of the
    scenario's own factors. As stated it is the scenario of a search's first rung, if that has as
    many runs, whose outcome is remembered."""
    table = {"device": "devices", "link": "links", "acceptance": "misses", "rows": "rows"}
    mine = {
        f"{table[of.kind]}.{of.name}".rstrip("."): factor
        for of, factor in factors.items()
        if of in own and factor != 1
    }
    if not mine:
        return scenario.with_(runs=RUNS)
    return scenario.with_(scale=multiplied(scenario.scale, mine), runs=RUNS)
