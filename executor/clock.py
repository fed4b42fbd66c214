"""Time in the executor: the host's monotonic clock, and that of the device a worker stands for.

Law of this file: an emulated device's time moves on by its profile's service times and by when
messages are due, not by what this host spends between them (reading headers, sending). Waiting
keeps it from running ahead of the host's. The host may be behind by ``LAG_MS``, which it makes up
for where the device is slower or idle; beyond that the device's time is late, too: overload shows.
"""

from __future__ import annotations

import time

SPIN_S = 2e-4
"""A sleep overshoots by about 0.1 ms, so the last part of a wait is spun."""
LOOK_MS = 100
"""Whoever waits for long looks up so often: a process that never does is stuck (``pulse.py``)."""
LAG_MS = 20.0
"""A few time slices of a busy host's scheduler; one that is slower for good falls back further."""


_ahead_ms = 0.0
"""Of a worker on another host: how far its host's clock is ahead of the controller's."""


def set_ahead(ms: float) -> None:
    """Tell the time of the controller's host from now on."""
    global _ahead_ms
    _ahead_ms = ms


def now_ms() -> float:
    """Milliseconds of the monotonic clock of the controller's host (the same in every process of a
    run: on that host exactly, on others as well as ``offsets.py`` knows the difference)."""
    return time.monotonic() * 1e3 - _ahead_ms


def wait_until(deadline_ms: float) -> None:
    """Return as soon after ``deadline_ms`` as the machine allows."""
    deadline = (deadline_ms + _ahead_ms) / 1e3
    while (left := deadline - time.monotonic()) > SPIN_S:
        time.sleep(min(left - SPIN_S, LOOK_MS / 1e3))
    while time.monotonic() < deadline:
        pass


class DeviceClock:
    """The time a worker lives in: its emulated device's, or simply the host's."""

    def __init__(self, emulate: bool) -> None:
        self._emulate = emulate
        self._now_ms = 0.0

    def now_ms(self) -> float:
        """The time on the device's clock."""
        return self._now_ms if self._emulate else now_ms()

    @staticmethod
    def reached(time_ms: float) -> bool:
        """Whether the host has come to this time."""
        return now_ms() >= time_ms

    def wake(self, at_ms: float) -> None:
        """Something happens at ``at_ms``, which the device was not busy before."""
        self._now_ms = max(self._now_ms, at_ms)

    def spend(self, start_ms: float, emulated_ms: float) -> float:
        """Work that began at ``start_ms`` is done: wait until it would be on the device.

        Returns when that is.
        """
        if not self._emulate:
            return now_ms()
        self._now_ms = max(start_ms + emulated_ms, now_ms() - LAG_MS)
        wait_until(self._now_ms)
        return self._now_ms
