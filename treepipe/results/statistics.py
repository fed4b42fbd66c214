"""Estimates with 95 % confidence intervals from observations, for any series of numbers.

Sources: Cochran, Sampling Techniques (1977), chapter 6, for ratios; Fishman, Principles of Discrete
Event Simulation (1978), for batch means and the test of their correlation; White, Journal of
Simulation 1997 ("MSER-5"), for warm-up; Casella and Berger, Statistical Inference (2002), section
5.5.4, for intervals on another scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log, sqrt
from statistics import fmean
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Values: TypeAlias = Sequence[float] | npt.NDArray[np.float64]

LEAST_BATCHES, MOST_BATCHES = 10, 30
"""Limits on the number of batches: fewer say too little of their spread, more are shorter."""
MSER_BATCH = 5
ROUNDING = 1e-9
"""Relative rounding error of times, which are differences of sums; smaller variation is ignored."""
CONFIDENCE = 0.95
_CORRELATED = 1.645
"""Standard normal quantile, 5 % one-sided: beyond it, successive batches are correlated."""
_STRONGEST = 0.9
"""Largest correlation of batches used, as it is estimated from few batches."""


FEWEST = 3
"""Fewest observations from which an interval is made: two are equal, or nearly so, by chance too
often."""
_WIDEST = 600.0
"""Largest exponent of e whose power, and products with it, do not overflow."""
_FARTHEST = log(1e3)
"""Logarithm of the largest factor between a value and an end of its interval; observations that say
no more give none."""
Fixed: TypeAlias = Literal["", "exact", "all equal"]


@dataclass(frozen=True, slots=True)
class Range:
    """The values a quantity can have; an interval is made on a scale where this range has no ends.

    With one end the scale is the logarithm of the distance to it, with two the logit. The
    half-width is multiplied by the scale's slope (delta method), so a small one is unchanged to
    first order.
    """

    low: float = -inf
    high: float = inf

    def around(self, mean: float, half: float) -> tuple[float, float] | tuple[None, None]:
        """Return both ends of an interval that is ``mean`` +- ``half`` where nothing bounds it; no
        ends where one end of the range leaves them more than a thousandfold apart.

        At an end of the range the scale has no slope. An interval there is the part inside the
        range, which loses nothing: the truth is not outside (Mandelkern, Statistical Science 2002).

        >>> Range().around(1.0, 2.0), Range(0.0).around(1.0, 50.0)
        ((-1.0, 3.0), (None, None))
        >>> low, high = Range(0.0, 1.0).around(0.9, 0.09)
        >>> round(low, 3), round(high, 3)
        (0.768, 0.961)
        """
        above, below = mean - self.low, self.high - mean
        if above == below == inf or above < 0 or below < 0:
            return mean - half, mean + half  # a value outside must not look as if it were inside
        if above == 0 or below == 0:
            return max(self.low, mean - half), min(self.high, mean + half)
        # Slopes: 1 / above of log(above), 1 / above + 1 / below of the logit.
        factor = exp(min(half / above + half / below, _WIDEST))
        if inf in (above, below) and half / min(above, below) > _FARTHEST:
            return None, None
        if below == inf:
            return self.low + above / factor, self.low + above * factor
        if above == inf:
            return self.high - below * factor, self.high - below / factor
        odds, width = above / below, self.high - self.low
        return (
            self.low + width * (odds / factor) / (1 + odds / factor),
            self.high - width / (1 + odds * factor),
        )

    def clear_of_rounding(self, value: float) -> float:
        """Clip a value that is outside the range by rounding only; larger errors stay visible."""
        for end in (self.low, self.high):
            if abs(value - end) <= ROUNDING * abs(end) < inf:
                return end
        return value


ANYWHERE, POSITIVE, SHARE = Range(), Range(0.0), Range(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % confidence interval.

    Attributes:
        low, high: None if there are fewer than ``FEWEST`` observations, if none differs from
            another, or if they are so unlike that they bound nothing.
        fixed: why there is no interval though the value is known: it is "exact", since nothing is
            drawn at random, or its observations (``FEWEST`` or more) are "all equal".
    """

    mean: float
    low: float | None
    high: float | None
    fixed: Fixed = field(default="", repr=False)

    @classmethod
    def over(
        cls,
        values: Values,
        within: Range = ANYWHERE,
        common: float = 0.0,
        together: int = 1,
        batches: bool = False,
        exact: bool = False,
    ) -> Interval:
        """Estimate the mean of independent observations (at least one), by Student's t, or of
        successive batches of one run.

        If neighbouring batches are correlated, they are merged in pairs (where at least
        ``LEAST_BATCHES`` are left); a remaining correlation r widens the interval by sqrt((1 + r) /
        (1 - r)), as for the mean of a first-order autoregressive series.

        Args:
            within: range of the mean.
            common: share of the observations' variance that more of them do not average away (each
                had its own resample of the same few data). With 1, the interval is that of one
                further observation: Student's prediction interval. Of batches: variance that all of
                them share, as a multiple of their mean's.
            together: number of intervals that hold jointly (Bonferroni).
            exact: nothing in the observations is drawn at random.

        >>> Interval.over([2.0, 2.1])
        Interval(mean=2.05, low=None, high=None)
        >>> Interval.over([2.0, 2.0, 2.0]).fixed
        'all equal'
        """
        factor = sqrt(1 + common * (1 if batches else len(values)))
        if batches:
            values = _merged(values)
            if is_correlated(values):
                r = min(lag_one(values), _STRONGEST)
                factor *= sqrt((1 + r) / (1 - r))
        mean = within.clear_of_rounding(float(np.mean(values)))
        if exact:
            return cls(mean, None, None, "exact")
        if len(values) < FEWEST:
            return cls(mean, None, None)
        quantile = student_t(len(values) - 1, 1 - (1 - CONFIDENCE) / (2 * together))
        half = factor * quantile * float(np.std(values, ddof=1) / np.sqrt(len(values)))
        if half <= ROUNDING * abs(mean):
            return cls(mean, None, None, "all equal")
        return cls(mean, *within.around(mean, half))

    @classmethod
    def within_factor(cls, mean: float, log_half: float | None) -> Interval:
        """Make an interval around a positive value with a half-width of its logarithm, if any."""
        if not log_half:
            return cls(mean, None, None)
        return cls(mean, mean * exp(-log_half), mean * exp(log_half))

    @classmethod
    def averaged(cls, values: Sequence[Interval]) -> Interval:
        """Return the mean, with the mean of the ends: as wide as if all errors had one sign."""
        mean, every = fmean(each.mean for each in values), [each.ends for each in values]
        lows = [low for low, _ in every if low is not None]
        highs = [high for _, high in every if high is not None]
        if len(lows) < len(values) or len(highs) < len(values):
            return cls(mean, None, None)
        if all(each.fixed for each in values):
            return cls(mean, None, None, values[0].fixed)
        return cls(mean, fmean(lows), fmean(highs))

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """Both ends, of a ``fixed`` value the value itself.

        >>> Interval(2.0, 1.0, 3.0).ends, Interval(2.0, None, None, "exact").ends
        ((1.0, 3.0), (2.0, 2.0))
        """
        return (self.mean, self.mean) if self.fixed else (self.low, self.high)

    def holds(self, value: float) -> bool:
        """Return whether a value is inside, both ends included; False where an end is missing.

        >>> Interval(2.0, 1.0, 3.0).holds(3.0), Interval(2.0, None, None).holds(2.0)
        (True, False)
        """
        return self.low is not None and self.high is not None and self.low <= value <= self.high

    def scaled(self, factor: float) -> Interval:
        """Multiply by a number of either sign.

        >>> Interval(2.0, 1.0, None).scaled(3.0), Interval(2.0, 1.0, None).scaled(-1.0)
        (Interval(mean=6.0, low=3.0, high=None), Interval(mean=-2.0, low=None, high=-1.0))
        """
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        ends = (low, high) if factor >= 0 else (high, low)
        return replace(self, mean=self.mean * factor, low=ends[0], high=ends[1])

    def shifted(self, by: float) -> Interval:
        """Add a number."""
        low, high = (None if end is None else end + by for end in (self.low, self.high))
        return replace(self, mean=self.mean + by, low=low, high=high)

    def inverse(self, above: float = 1.0) -> Interval:
        """Divide ``above`` by a positive quantity; an end that is not positive gives no bound.

        >>> Interval(60.0, 50.0, 75.0).inverse(300.0)
        Interval(mean=5.0, low=4.0, high=6.0)
        >>> Interval(2.0, -1.0, 4.0).inverse()
        Interval(mean=0.5, low=0.25, high=None)
        """
        low, high = (
            None if end is None or end <= 0 else above / end for end in (self.high, self.low)
        )
        return replace(self, mean=above / self.mean, low=low, high=high)

    def complement(self) -> Interval:
        """Return the complement of a share.

        >>> Interval(0.25, 0.0, 0.5).complement()
        Interval(mean=0.75, low=0.5, high=1.0)
        """
        return self.scaled(-1.0).shifted(1.0)

    def as_dict(self) -> dict[str, float | None]:
        return {"mean": self.mean, "low": self.low, "high": self.high}


def student_t(freedom: int, probability: float) -> float:
    """Return the quantile of Student's t with ``freedom`` degrees of freedom.

    >>> round(student_t(1, 0.75), 6), round(student_t(9, 0.975), 3)
    (1.0, 2.262)
    """
    from scipy.special import stdtrit  # costs a fifth of the start of a command without intervals

    return float(stdtrit(freedom, probability))


def ratio_observations(numerators: Values, denominators: Values) -> npt.NDArray[np.float64]:
    """Return observations whose mean is sum(numerators) / sum(denominators).

    A figure such as time per token is a ratio of two sums. The mean of the runs' own ratios is
    biased where the denominator varies, however many runs there are. So run i stands for
    R + (N_i - R D_i) / mean(D): the mean is R, and Student's interval over these values is that of
    the ratio estimator (by its first-order expansion). Equal denominators give the runs' ratios.

    Raises ``ValueError`` if the denominators' sum is 0.

    >>> ratio_observations([2.0, 4.0], [1.0, 1.0]).tolist()
    [2.0, 4.0]
    """
    above, below = np.asarray(numerators, float), np.asarray(denominators, float)
    total = float(below.sum())
    if not total:
        raise ValueError("a ratio needs a denominator")
    ratio = float(above.sum()) / total
    if len(below) == 1:
        return np.array([ratio])  # free of rounding
    observations: npt.NDArray[np.float64] = ratio + (above - ratio * below) * (len(below) / total)
    return observations


def batch_count(items: int, least_items: int = 1) -> int:
    """Return the number of batches of at least ``least_items`` to cut ``items`` successive ones
    into.

    An even number (so that pairs can be merged) from ``LEAST_BATCHES`` to ``MOST_BATCHES``; 1 if
    there are too few items.
    """
    count = min(MOST_BATCHES, items // least_items) // 2 * 2
    return count if count >= LEAST_BATCHES else 1


def lag_one(values: Values) -> float:
    """Return neighbours' correlation, without the ends' bias (1 - von Neumann's ratio / 2)."""
    centred = np.asarray(values, float) - np.mean(values)
    total = float(centred @ centred)
    if len(centred) < 3 or total <= ROUNDING**2 * float(np.sum(np.square(values))):
        return 0.0
    ends = float(centred[0] ** 2 + centred[-1] ** 2) / 2
    return (float(centred[:-1] @ centred[1:]) + ends) / total


def is_correlated(values: Values) -> bool:
    """Test whether the correlation of neighbours would be rare (5 %) among independent values.

    von Neumann's test: ``lag_one`` of n of them has the variance (n - 2) / (n^2 - 1).
    """
    n = len(values)
    return n > 2 and lag_one(values) > _CORRELATED * float(np.sqrt((n - 2) / (n * n - 1)))


def stays_correlated(values: Values) -> bool:
    """Return whether batches stay correlated after merging of neighbours: the run is too short."""
    return is_correlated(_merged(values))


def mser5(series: Values) -> int:
    """Return the items to drop at the beginning of a series, a multiple of 5 and at most half of
    it.

    MSER-5: in means of five items each, the number to drop minimizes sum((x - mean)^2) / n^2 over
    the rest. At the bound of one half the series did not settle.
    """
    count = len(series) // MSER_BATCH
    means = np.asarray(series[: count * MSER_BATCH], float).reshape(count, MSER_BATCH).mean(axis=1)
    if count < 2 or np.ptp(means) <= ROUNDING * abs(means).max():
        return 0
    centred = means - means.mean()
    left = np.arange(count, 0, -1)
    sums, squares = (np.cumsum(part[::-1])[::-1] for part in (centred, centred**2))
    spread = ((squares - sums**2 / left) / left**2)[: count // 2 + 1]
    return MSER_BATCH * int(np.argmax(spread <= spread.min() + ROUNDING * spread[0]))


@dataclass(frozen=True, slots=True)
class Paired:
    """Difference (second minus first) of two series of paired observations.

    Attributes:
        relative: the difference over the first's mean; None where that is 0.
        variance_reduction: 1 - var(b - a) / (var(a) + var(b)): the share of the difference's
            variance that pairing removes; None where nothing varies, or too few pairs tell.
    """

    difference: Interval
    relative: Interval | None
    variance_reduction: float | None

    @classmethod
    def of(
        cls,
        a: Values,
        b: Values,
        *,
        batches: bool,
        within: Range = ANYWHERE,
        common: float = 0.0,
        together: int = 1,
        exact: bool = False,
    ) -> Paired:
        """Pair ``a`` and ``b``.

        Args:
            batches: observations are successive batches of one run, not runs.
            within: range of both, which also bounds differences.
            common, together, exact: as in ``Interval.over``.
        """
        first, second = np.asarray(a, float), np.asarray(b, float)
        smallest = ROUNDING * max(abs(first).max(), abs(second).max())
        apart = second - first
        apart[abs(apart) <= smallest] = 0.0
        relative = None
        if first.mean():
            # The second is at least 0, so it is below the first by no more than the first's value.
            least = Range(-1.0) if within.low >= 0 else ANYWHERE
            shares = ratio_observations(apart, first)
            relative = Interval.over(shares, least, common, together, batches, exact)
        unpaired = float(first.var() + second.var())
        reduction = None
        if unpaired > smallest**2 and len(first) >= FEWEST:
            reduction = 1 - float(apart.var()) / unpaired
        width = within.high - within.low
        difference = Interval.over(apart, Range(-width, width), common, together, batches, exact)
        return cls(difference, relative, reduction)


def _merged(values: Values) -> npt.NDArray[np.float64]:
    """Merge neighbours in pairs if they are correlated and enough pairs are left."""
    given = np.asarray(values, float)
    if len(given) < 2 * LEAST_BATCHES or len(given) % 2 or not is_correlated(given):
        return given
    pairs: npt.NDArray[np.float64] = given.reshape(-1, 2).mean(axis=1)
    return pairs
