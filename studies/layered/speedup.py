"""Speed-ups, with the intervals of the times they come from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from treepipe.results.statistics import Interval


def speedup(slow_ms: float, time: Interval) -> Interval:
    """Of a slower time, taken as it is, to a time in milliseconds.

    >>> speedup(300.0, Interval(60.0, 50.0, 75.0))
    Interval(mean=5.0, low=4.0, high=6.0)
    """
    low, high = (None if end is None else slow_ms / end for end in (time.high, time.low))
    return Interval(slow_ms / time.mean, low, high)


def average(values: Sequence[Interval]) -> Interval:
    """The mean, with the mean of the ends: as wide as if all erred the same way."""
    lows = [value.low for value in values if value.low is not None]
    highs = [value.high for value in values if value.high is not None]
    mean = fmean(value.mean for value in values)
    if len(lows) < len(values) or len(highs) < len(values):
        return Interval(mean, None, None)
    return Interval(mean, fmean(lows), fmean(highs))
