"""Offset of another host's clock against ours, measured by asking for its time (like NTP).

Invariant: an answer gives the difference to within half of its round trip, for any network. The
quickest recent answer counts; its uncertainty grows by ``DRIFT`` with its age.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

DRIFT = 1e-4
"""Relative drift between two boards' clocks, at most 100 parts in a million."""
KEPT = 120
"""Number of readings kept, those of the last minute."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer: ``theirs_ms`` by their clock, between ``sent_ms`` and ``back_ms`` by ours."""

    sent_ms: float
    theirs_ms: float
    back_ms: float

    @property
    def ahead_ms(self) -> float:
        return self.theirs_ms - (self.sent_ms + self.back_ms) / 2

    def uncertainty_ms(self, now_ms: float) -> float:
        return (self.back_ms - self.sent_ms) / 2 + DRIFT * abs(now_ms - self.back_ms)


class Offset:
    """The readings of one host's clock.

    >>> clock = Offset()
    >>> clock.note(Reading(0.0, 1_000.5, 1.0))
    >>> clock.note(Reading(10.0, 1_013.0, 20.0))
    >>> clock.at(20.0)
    (1000.0, 0.5019)
    """

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque(maxlen=KEPT)

    def note(self, reading: Reading) -> None:
        self._readings.append(reading)

    def at(self, now_ms: float) -> tuple[float, float]:
        """Advance of their clock against ours, and its uncertainty, in ms."""
        best = min(self._readings, key=lambda reading: reading.uncertainty_ms(now_ms))
        return best.ahead_ms, best.uncertainty_ms(now_ms)
