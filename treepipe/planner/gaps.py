"""The relative gap of a plan to the best one: the statistic that is both shown and decisive.

Both plans are measured on the same runs (common random numbers), the interval is that of ``simulate
--versus``, and intervals hold for all pairs of a ranking together, which makes picking the best of
many valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt

import numpy as np
import numpy.typing as npt

from treepipe.planner.candidates import Candidate
from treepipe.results.metric import Metric
from treepipe.results.statistics import POSITIVE, ROUNDING, Interval, Paired, Values
from treepipe.results.units import number
from treepipe.sim.points import Outcome

NEAR = log(1.1)
"""Logarithm of the ratio to the best plan's goal up to which few runs never give a plan up."""
FAR = 10.0
"""Factor beyond which a ratio is given by this bound alone, and below whose inverse."""
DOUBT = 3.0
"""Standard errors of a plan's gap to the best one, beyond which it is given up."""


@dataclass(frozen=True, slots=True)
class Runs:
    """A figure of every run; ``common`` and ``exact`` as for ``Interval.over``; ``lacking``: not of
    every one, so that runs cannot be told apart."""

    values: Values
    common: float = 0.0
    exact: bool = False
    lacking: bool = False

    @classmethod
    def of(cls, outcome: Outcome, goal: str) -> Runs:
        values, all_seen = outcome.observations[goal], outcome.observations.values()
        lacking = len(values) < max(map(len, all_seen))
        return cls(values, outcome.common, outcome.exact, lacking)

    def with_same(self, other: Runs) -> tuple[Runs, Runs]:
        """Return both on the runs that both have, which are the first ones."""
        count = min(len(self.values), len(other.values))
        if self.lacking or other.lacking:
            return self, other
        return replace(self, values=self.values[:count]), replace(
            other, values=other.values[:count]
        )

    @property
    def mean(self) -> float:
        """The figure over all runs."""
        return float(np.mean(self.values))


@dataclass(frozen=True, slots=True)
class Simulated:
    """A plan and its figures."""

    candidate: Candidate
    outcome: Outcome

    def value(self, goal: str) -> float | None:
        """Return the mean of a figure, or a price; None if the plan has none."""
        if goal in self.candidate.prices:
            return self.candidate.prices[goal]
        figure = self.outcome.metrics.get(goal)
        return None if figure is None else figure.mean

    def runs(self, goal: str) -> Runs:
        """Return the figure in every run; a price is equal in all of them."""
        if goal in self.candidate.prices:
            count = max((len(each) for each in self.outcome.observations.values()), default=1)
            return Runs([self.candidate.prices[goal]] * count, exact=True)
        return Runs.of(self.outcome, goal)


def relative_gap(best: Runs, other: Runs, comparisons: int) -> Interval | None:
    """Return other / best - 1 of means over the runs of both; None if one is not above 0.

    No bound is below -100 %, and swapping the two plans swaps the bounds.

    Args:
        comparisons: number of intervals that hold together.

    >>> gap = relative_gap(Runs([10.0, 12.0, 11.0]), Runs([20.0, 24.0, 22.0]), 1)
    >>> gap, gap.fixed
    (Interval(mean=1.0, low=None, high=None), 'all equal')
    """
    best, other = best.with_same(other)
    if best.mean <= 0 or other.mean <= 0:
        return None
    if len(best.values) != len(other.values):  # some runs lack the figure
        return Interval(other.mean / best.mean - 1, None, None)
    return Paired.of(
        best.values,
        other.values,
        batches=False,
        within=POSITIVE,
        common=max(best.common, other.common),
        together=comparisons,
        exact=best.exact and other.exact,
    ).relative


def far_behind(plans: Sequence[Runs], best: Runs, goal: Metric) -> Callable[[Runs], bool]:
    """Return a test of whether a plan is so much worse than the best that further runs would not
    make it the best: by more than ``NEAR``, and than ``DOUBT`` standard errors of the paired
    differences, whose variance is pooled over ``plans``, since a plan has few runs."""

    def behind(plan: Runs) -> npt.NDArray[np.float64] | None:
        mine, its = (each.values for each in plan.with_same(best))
        if len(mine) != len(its) or len(its) < 2 or min(*mine, *its) <= 0:
            return None
        logs: npt.NDArray[np.float64] = np.log(mine) - np.log(its)
        return logs if goal.less_is_better else -logs

    gaps = [gap for gap in map(behind, plans) if gap is not None]
    spread = sqrt(float(np.mean([np.var(gap, ddof=1) for gap in gaps]))) if gaps else 0.0

    def far(plan: Runs) -> bool:
        gap = behind(plan)
        return gap is not None and float(gap.mean()) > max(NEAR, DOUBT * spread / sqrt(len(gap)))

    return far


def relative_change(stated: Runs, changed: Runs) -> Interval:
    """Return the relative change of a goal with its interval for one input alone; 0 for a goal of
    0, which factors do not change."""
    return relative_gap(stated, changed, 1) or Interval(0.0, None, None)


def may_be_equal(gap: Interval | None) -> bool:
    """Return whether two plans are indistinguishable: the interval holds 0, or there is none."""
    if gap is None:
        return True
    low, high = gap.ends
    return low is None or high is None or low - ROUNDING <= 0 <= high + ROUNDING


def shown(share: float) -> str:
    """Format a relative difference; factors beyond ten, either way, are abbreviated.

    >>> shown(-0.4), shown(0.545), shown(-0.9999), shown(41.0)
    ('-40.0%', '+54.5%', 'below 0.1x', 'above 10x')
    """
    return _beyond(1 + share) or f"{share:+.1%}"


def shown_factor(factor: float) -> str:
    """Format a ratio of two figures, beyond ten as ``shown`` does.

    >>> shown_factor(1.5449), shown_factor(4e150)
    ('1.54', 'above 10x')
    """
    return _beyond(factor) or number(factor, 3)


def _beyond(factor: float) -> str:
    return "above 10x" if factor > FAR else "below 0.1x" if factor < 1 / FAR else ""


def shown_interval(gap: Interval) -> str:
    """Format both ends for a table; without them say what is known instead, if anything is."""
    if gap.low is None or gap.high is None:
        return gap.fixed
    return f"{shown(gap.low)} … {shown(gap.high)}"
