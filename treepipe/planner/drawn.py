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

from treepipe.results.statistics import CONFIDENCE, ROUNDING
from treepipe.scenario.scale import Estimated, most_misses, multiplied
from treepipe.scenario.scenario import Scenario

RUNS = 2
"""Runs of each plan in each case."""
FEWEST_CASES = 20
"""Fewest cases whose spread gives a range, and whose share is given in per cent: of 20 cases 95 %
are 19."""
Floats = npt.NDArray[np.float64]
QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def drawn_factors(
    inputs: Mapping[Estimated, float], cases: int, seed: int
) -> list[dict[Estimated, float]]:
    """Draw the factor of every input for each case, from a Latin hypercube (McKay, Beckman and
    Conover, *Technometrics* 1979)."""
    return factors_at(inputs, drawn_levels(len(inputs), cases, seed))


def drawn_levels(inputs: int, cases: int, seed: int) -> Floats:
    """Return the standard normal numbers [cases, inputs] of that hypercube."""
    rng = np.random.default_rng(seed)
    strata = rng.permuted(np.tile(np.arange(cases), (inputs, 1)), axis=1)
    shares = ((strata + rng.random(strata.shape)) / cases).T
    levels: Floats = np.vectorize(NormalDist().inv_cdf, otypes=[float])(shares)
    return levels


def orthogonal_levels(inputs: int) -> Floats:
    """Return +1 or -1 [cases, inputs] in as few cases as a power of two has, so that all columns
    are orthogonal (Plackett and Burman, *Biometrika* 1946): of a function that is linear in the
    levels, they tell the slopes, and so its spread over normal levels, exactly.

    >>> orthogonal_levels(3).tolist()
    [[1.0, 1.0, 1.0], [-1.0, 1.0, -1.0], [1.0, -1.0, -1.0], [-1.0, -1.0, 1.0]]
    """
    cases = range(1 << inputs.bit_length())
    signs = [[(-1.0) ** (case & (of + 1)).bit_count() for of in range(inputs)] for case in cases]
    return np.array(signs)


def factors_at(inputs: Mapping[Estimated, float], levels: Floats) -> list[dict[Estimated, float]]:
    """Return each case's factors at its levels: so many standard deviations of their logarithms."""
    spreads = [log1p(share) / QUANTILE for share in inputs.values()]
    return [
        {of: exp(spread * at) for of, spread, at in zip(inputs, spreads, row, strict=True)}
        for row in levels.tolist()
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
    if "misses" in mine:  # no more than all drafted tokens are wrong
        mine["misses"] = min(mine["misses"], most_misses(scenario) * (1 - ROUNDING))
    return scenario.with_(scale=multiplied(scenario.scale, mine), runs=RUNS)
