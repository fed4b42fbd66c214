"""How far a plan is behind the best one: the statistic that is shown is the one that decides.

Law of this file: both are measured on the same runs (common random numbers), and intervals hold for
all pairs of a ranking together, so that picking the best of many costs no certainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, log, sqrt
from typing import TypeAlias

import numpy as np

from treepipe.results.statistics import CONFIDENCE, ROUNDING, Interval, student_t

Runs: TypeAlias = Sequence[float]
"""A figure of every run."""
MOST = 700.0
"""A logarithm whose exponential is still a number."""


def relative_gap(best: Runs, other: Runs, comparisons: int) -> Interval | None:
    """other / best - 1, of means over the same runs; None where one of them is not above 0.

    The interval is Student's t on the logarithm of the ratio: run i stands for
    log(B / A) + b_i / B - a_i / A, whose mean is log(B / A) and whose spread is that of the ratio
    of the means (by its first-order expansion). So no bound is below -100 %, and swapping the two
    plans swaps the bounds, with two runs, too. A difference of a ratio's rounding is none.

    Args:
        comparisons: intervals that are to hold together with ``CONFIDENCE`` (Bonferroni).

    >>> relative_gap([10.0, 12.0], [20.0, 24.0], 1)
    Interval(mean=1.0, low=1.0, high=1.0)
    """
    a, b = np.asarray(best, float), np.asarray(other, float)
    if a.mean() <= 0 or b.mean() <= 0:
        return None
    middle = log(b.mean() / a.mean())
    if abs(middle) <= ROUNDING:
        middle = 0.0
    if len(a) != len(b) or len(a) < 2:
        return Interval(expm1(middle), None, None)  # a figure that some of the runs have not
    apart = b / b.mean() - a / a.mean()
    apart[abs(apart) <= ROUNDING] = 0.0
    quantile = student_t(len(a) - 1, 1 - (1 - CONFIDENCE) / (2 * comparisons))
    half = quantile * float(apart.std(ddof=1)) / sqrt(len(a))
    return Interval(expm1(middle), _bound(middle - half), _bound(middle + half))


def relative_change(stated: Runs, changed: Runs) -> Interval:
    """What a change of one input does to a goal, with an interval for it alone; a goal that is 0
    (all times are) has no relative change: factors leave it as it is."""
    return relative_gap(stated, changed, 1) or Interval(0.0, None, None)


def may_be_equal(gap: Interval | None) -> bool:
    """Whether the runs cannot tell the two plans apart: the interval holds 0, or there is none."""
    return gap is None or gap.low is None or gap.high is None or gap.low <= 0 <= gap.high


def shown(share: float) -> str:
    """A relative difference in a table; factors beyond ten say no more than that.

    >>> shown(-0.4), shown(0.545), shown(-0.9999), shown(41.0)
    ('-40.0%', '+54.5%', 'below -90%', 'above 10x')
    """
    if share > 9:
        return "above 10x"
    return "below -90%" if share < -0.9 else f"{share:+.1%}"


def _bound(logarithm: float) -> float:
    return expm1(min(logarithm, MOST))
