"""How far another host's clock is ahead of ours, and how well we know: measured by asking the time.

Law of this file: an answer that was ``round_trip_ms`` on its way says the difference to within half
of that, whatever the network did; so the quickest answer of late is believed, and its uncertainty
stated. Clocks drift apart, so an old answer is worth ``DRIFT`` less for every moment since.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

DRIFT = 1e-4
"""Two boards' clocks differ by up to 100 parts in a million."""
KEPT = 120
"""Readings of the last minute."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer: asked at ``sent_ms``, back at ``back_ms`` (our clock), ``theirs_ms`` (theirs)."""

    sent_ms: float
    theirs_ms: float
    back_ms: float

    @property
    def ahead_ms(self) -> float:
        return self.theirs_ms - (self.sent_ms + self.back_ms) / 2

    def uncertainty_ms(self, now_ms: float) -> float:
        """At most so far from the truth at ``now_ms``."""
        return (self.back_ms - self.sent_ms) / 2 + DRIFT * abs(now_ms - self.back_ms)


class Offset:
    """What is known of one host's clock.

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
        """How far their clock is ahead of ours, and how wrong that can be, in ms; at least one
        reading is known."""
        best = min(self._readings, key=lambda reading: reading.uncertainty_ms(now_ms))
        return best.ahead_ms, best.uncertainty_ms(now_ms)
