"""Figures as texts of a table: numbers, units, ends of intervals, and the order of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import floor, log10

from treepipe.results.metrics import PERCENTILES
from treepipe.results.statistics import CONFIDENCE, Interval

DIGITS = 3
"""Digits of a figure in a sentence; tables have more."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit of a row of a table: ``size`` of the values' own units."""

    size: float
    unit: str

    @classmethod
    def of(cls, unit: str, *values: float) -> Scale:
        """Choose the unit that suits the largest of the times; other units are unchanged.

        >>> Scale.of("ms", 33560.0).unit, Scale.of("ms", 207900.0, 12.0).unit
        ('s', 'min')
        """
        if unit != "ms":
            return cls(1.0, unit)
        most = max(map(abs, values))
        if not most:
            return MS
        return next((scale for scale, limit in _BELOW_MS if most < limit), TIMES[-1])

    def name(self, metric: str) -> str:
        """Return a metric's name, without its unit if the unit has its own column."""
        return metric.removesuffix("_ms") if self in TIMES else metric


MS = Scale(1.0, "ms")
TIMES = (Scale(1e-3, "µs"), MS, Scale(1e3, "s"), Scale(60e3, "min"), Scale(3.6e6, "h"))
SHARE = Scale(1.0, "1")
_BELOW_MS = tuple(zip(TIMES, (0.01, 1e3, 120e3, 7.2e6), strict=False))
"""Upper limit (ms) of each unit in tables, so that they show 0.05 ms, 90 s and 100 min."""


def number(value: float, digits: int = 4) -> str:
    """Format a number with at least ``digits`` significant digits and no power of ten.

    >>> number(33560.4), number(0.99996), number(0.0000123456), number(-2.5)
    ('33,560', '1', '0.00001235', '-2.5')
    """
    if not value:
        return "0"
    places = digits - 1 - floor(log10(abs(value)))
    text = f"{value:,.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if places > 0 else text


def ends(value: Interval, scale: Scale, digits: int = 4) -> str:
    """Format both ends of an interval, or why there are none."""
    if value.low is None or value.high is None:
        return value.fixed
    return " … ".join(number(end / scale.size, digits) for end in (value.low, value.high))


def speed(ms: Interval, *, each: bool = False) -> str:
    """Format a time between tokens as a rate with its interval, and as that time.

    >>> speed(Interval(100.0, 80.0, 125.0))
    '10 tokens/s (95%: 8 to 12.5), a token every 100 ms'
    """
    rate, of = ms.inverse(1e3), " for each request" * each
    per_second = f"{number(rate.mean, DIGITS)} tokens/s{of}{in_brackets(rate)}"
    return f"{per_second}, a token every {number(ms.mean, DIGITS)} ms"


def in_brackets(
    interval: Interval,
    text: Callable[[float], str] = lambda end: number(end, DIGITS),
    what: str = f"{CONFIDENCE:.0%}: ",
) -> str:
    """Format both ends of an interval for a sentence, each by ``text``, or why there are none."""
    if interval.low is None or interval.high is None:
        return f" ({interval.fixed})" if interval.fixed else ""
    return f" ({what}{text(interval.low)} to {text(interval.high)})"


def means_first(names: Iterable[str]) -> list[str]:
    """Order metrics so that percentiles follow all that they are percentiles of."""
    return sorted(names, key=PERCENTILES.__contains__)
