"""Time in the executor: the host's monotonic clock, and an emulated device's.

An emulated device's time advances by its profile's service times and by messages' due times, not by
this host's own work between them (reading headers, sending). Waiting keeps it from running ahead of
the host's time. The host may lag by ``LAG_MS``, which it makes up for while the device is slower or
idle; beyond that the device's time is late, too, so that overload shows.
"""

from __future__ import annotations

import time

SPIN_S = 2e-4
"""Last part of a wait, which is spun, since a sleep overshoots by about 0.1 ms."""
LOOK_MS = 100
"""Interval at which a waiting process wakes; one that never does is stuck (``pulse.py``)."""
LAG_MS = 20.0
"""A few time slices of a busy host's scheduler."""
_ahead_ms = 0.0
"""Advance of this host's clock against the controller's."""


def set_ahead(ms: float) -> None:
    """Set this host's clock advance, so that ``now_ms`` is the controller's time."""
    global _ahead_ms
    _ahead_ms = ms


def now_ms() -> float:
    """Clock of the controller's host in ms; ``offsets.py`` estimates it on other hosts."""
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
