"""Times of a mixture's pass by its rows, between and beyond those that were measured.

A pass reads the weights of the experts that its rows touch. Its time is

    t(n) = a + b E (1 - (1 - k/E)^n) + c n

for n rows of which each is routed to k of E experts (``Experts.touched``): b is the time to read an
expert, c what each row costs besides. A dense model's pass over as few rows is nearly flat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from treepipe.profiles.shapes import Experts

UNTOUCHED = 4
"""Rows, in E/k, from which on nearly all experts are touched (all but exp(-4), 2 %)."""
ROWS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512)
"""Rows at which the law is put into a table, which is linear between them."""


def bend(experts: Experts) -> float:
    """Return E/k, the number of rows that would touch every expert if none shared one.

    Below it the touched experts grow almost linearly, so that measured times cannot tell a cost of
    experts from a cost of rows.
    """
    return experts.count / experts.per_token


def law(points: Mapping[int, float], experts: Experts) -> Callable[[int], float]:
    """Fit the law to milliseconds by rows: least squares of relative errors, no term negative.

    Times that end before ``bend`` are explained without a cost of each row (c = 0): it could not be
    told from that of experts, and only experts run out.
    """
    from scipy.optimize import nnls  # takes long to load, and most models are dense

    rows = sorted(points)

    def terms(n: int) -> list[float]:
        every = [1.0, experts.touched(n), float(n)]
        return every if rows[-1] >= bend(experts) else every[:2]

    relative = np.array([np.array(terms(n)) / points[n] for n in rows])
    weights, _ = nnls(relative, np.ones(len(rows)))
    return lambda n: float(weights @ np.array(terms(n)))


def with_law(points: Mapping[int, float], experts: Experts) -> dict[int, float]:
    """Add rows to a table, by the law plus the measured times' differences from it (linear between
    rows, constant outside them), up to where nearly all experts are touched.

    One measured row alone tells nothing, and no time of zero is told apart: such tables stay.
    """
    rows = sorted(points)
    if len(rows) < 2 or not min(points.values()):
        return dict(points)
    fitted = law(points, experts)
    beyond = [points[n] - fitted(n) for n in rows]
    end = max(rows[-1], math.ceil(UNTOUCHED * bend(experts)))
    added = {
        n: max(0.0, fitted(n) + float(np.interp(n, rows, beyond)))
        for n in (*ROWS, end)
        if n <= end and n not in points
    }
    return dict(sorted({**points, **added}.items()))
