"""How far a plan is behind the best one: the statistic that is shown is the one that decides.

Law of this file: both are measured on the same runs (common random numbers), the interval is that
of ``simulate --versus``, and intervals hold for all pairs of a ranking together, so that picking
the best of many costs no certainty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from treepipe.results.statistics import POSITIVE, Interval, Paired, Values
from treepipe.sim.points import Outcome


@dataclass(frozen=True, slots=True)
class Runs:
    """A figure of every run; ``common``: as ``Interval.over`` takes it."""

    values: Values
    common: float = 0.0

    @classmethod
    def of(cls, outcome: Outcome, goal: str) -> Runs:
        return cls(outcome.observations[goal], outcome.common)

    @property
    def mean(self) -> float:
        """The figure over all runs."""
        return float(np.mean(self.values))


def relative_gap(best: Runs, other: Runs, comparisons: int) -> Interval | None:
    """other / best - 1, of means over the same runs; None where one of them is not above 0.

    No bound is below -100 %, and swapping the two plans swaps the bounds, with two runs, too.

    Args:
        comparisons: intervals that are to hold together.

    >>> relative_gap(Runs([10.0, 12.0]), Runs([20.0, 24.0]), 1)
    Interval(mean=1.0, low=1.0, high=1.0)
    """
    if best.mean <= 0 or other.mean <= 0:
        return None
    if len(best.values) != len(other.values):  # a figure that some of the runs have not
        return Interval(other.mean / best.mean - 1, None, None)
    return Paired.of(
        best.values,
        other.values,
        batches=False,
        within=POSITIVE,
        common=max(best.common, other.common),
        together=comparisons,
    ).relative


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


def shown_interval(low: float | None, high: float | None) -> str:
    """Both ends in a table; nothing where one is not known."""
    return "" if low is None or high is None else f"{shown(low)} … {shown(high)}"
