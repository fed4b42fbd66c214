"""Time in the executor: the host's monotonic clock, other hosts', and an emulated device's.

An emulated device's time advances by its profile's service times and by messages' due times, not by
this host's own work between them (reading headers, sending). Waiting keeps it from running ahead of
the host's time. The host may lag by ``LAG_MS``, which it makes up for while the device is slower or
idle; beyond that the device's time is late, too, so that overload shows.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

SPIN_S = 2e-4
"""Last part of a wait, which is spun, since a sleep overshoots by about 0.1 ms."""
LOOK_MS = 100
"""Interval at which a waiting process wakes; one that never does is stuck (``pulse.py``)."""
LAG_MS = 20.0
"""A few time slices of a busy host's scheduler."""
DRIFT = 1e-4
"""Relative drift between two boards' clocks, at most 100 parts in a million."""
KEPT = 120
"""Number of readings kept, those of the last minute."""
_ahead_ms = 0.0
"""Advance of this host's clock against the controller's."""


def set_ahead(ms: float) -> None:
    """Set this host's clock advance, so that ``now_ms`` is the controller's time."""
    global _ahead_ms
    _ahead_ms = ms


def now_ms() -> float:
    """Clock of the controller's host in ms; ``Offset`` estimates it on other hosts."""
    return time.monotonic() * 1e3 - _ahead_ms


def wait_until(deadline_ms: float) -> None:
    """Return as soon after ``deadline_ms`` as the machine allows."""
    deadline = (deadline_ms + _ahead_ms) / 1e3
    while (left := deadline - time.monotonic()) > SPIN_S:
        time.sleep(min(left - SPIN_S, LOOK_MS / 1e3))
    while time.monotonic() < deadline:
        pass


class DeviceClock:
    """A worker's time: its emulated device's, or the host's."""

    def __init__(self, emulate: bool) -> None:
        self._emulate = emulate
        self._now_ms = 0.0

    def now_ms(self) -> float:
        return self._now_ms if self._emulate else now_ms()

    @staticmethod
    def reached(time_ms: float) -> bool:
        return now_ms() >= time_ms

    def wake(self, at_ms: float) -> None:
        """Advance an idle device's clock to an event at ``at_ms``."""
        self._now_ms = max(self._now_ms, at_ms)

    def spend(self, start_ms: float, emulated_ms: float) -> float:
        """Wait until the device would finish work that began at ``start_ms``; return that time."""
        if not self._emulate:
            return now_ms()
        self._now_ms = max(start_ms + emulated_ms, now_ms() - LAG_MS)
        wait_until(self._now_ms)
        return self._now_ms


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
    """The readings of one host's clock: its offset against ours, measured like NTP.

    Invariant: an answer gives the difference to within half of its round trip, for any network. The
    quickest recent answer counts; its uncertainty grows by ``DRIFT`` with its age.

    >>> clock = Offset()
    >>> clock.note(Reading(0.0, 1_000.5, 1.0))
    >>> clock.note(Reading(10.0, 1_013.0, 20.0))
    >>> clock.at(20.0)
    (1000.0, 0.5019)
    """

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        return len(self._readings)

    def note(self, reading: Reading) -> None:
        self._readings.append(reading)

    def at(self, now_ms: float) -> tuple[float, float]:
        """Advance of their clock against ours, and its uncertainty, in ms."""
        readings = tuple(self._readings)  # at once, since another thread notes some, too
        best = min(readings, key=lambda reading: reading.uncertainty_ms(now_ms))
        return best.ahead_ms, best.uncertainty_ms(now_ms)
