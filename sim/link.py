"""A link: one direction between two devices, with its own delay.

Law of this file: messages of a link arrive in the order they were sent in, whatever the jitter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from treepipe.sim.clock import Clock
from treepipe.timing import LinkTimes

Item = TypeVar("Item")


class CentralScheduler:
    """PipeDec's transfers (section 3.2): a device takes part in one transfer at a time.

    Pending transfers are looked through in the order in which they were asked for, and each one
    whose two ends are free starts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._busy: set[str] = set()
        self._pending: deque[tuple[tuple[str, str], float, Callable[[], None]]] = deque()

    def ask(self, ends: tuple[str, str], duration_ms: float, done: Callable[[], None]) -> None:
        """Transfer when both ends are free; ``done`` is called at its end."""
        self._pending.append((ends, duration_ms, done))
        self._start()

    def _start(self) -> None:
        waiting: deque[tuple[tuple[str, str], float, Callable[[], None]]] = deque()
        for ends, duration, done in self._pending:
            if self._busy.isdisjoint(ends):
                self._busy.update(ends)
                self._clock.after(duration, partial(self._end, ends, done))
            else:
                waiting.append((ends, duration, done))
        self._pending = waiting

    def _end(self, ends: tuple[str, str], done: Callable[[], None], _: object) -> None:
        self._busy.difference_update(ends)
        done()
        self._start()


class Link(Generic[Item]):
    """Messages leave one at a time (bandwidth) and arrive in order after the latency."""

    def __init__(
        self,
        clock: Clock,
        times: LinkTimes,
        deliver: Callable[[Item], None],
        rng: np.random.Generator,
        central: tuple[CentralScheduler, tuple[str, str]] | None = None,
    ) -> None:
        """Args: ``central``: who decides when a transfer between its two ends starts."""
        self._clock, self._times, self._deliver, self._rng = clock, times, deliver, rng
        self._central = central
        self._free_ms = 0.0
        self._last_due_ms = 0.0
        self._under_way: deque[Item] = deque()

    def send(self, item: Item, size_bytes: int) -> tuple[float, float]:
        """Send now; returns when it was sent and when it will be delivered (ms).

        With a central scheduler the second is the earliest time possible.
        """
        now, times = self._clock.now, self._times
        self._under_way.append(item)
        occupied = times.occupied_ms(size_bytes)
        if self._central is not None:
            scheduler, ends = self._central
            duration = times.latency_ms + occupied
            scheduler.ask(ends, duration, partial(self._arrive, None))
            return now, now + duration
        self._free_ms = free = max(now, self._free_ms) + occupied
        due = free + times.latency_ms
        if times.jitter_ms:
            due += abs(self._rng.normal(0.0, times.jitter_ms))
        self._last_due_ms = due = max(due, self._last_due_ms)
        self._clock.after(due - now, self._arrive)
        return now, due

    def _arrive(self, _: object) -> None:
        """Deliver the oldest message, whichever delay has ended.

        ``now + (due - now)`` is rounded: two messages due together may wake in either order.
        """
        self._deliver(self._under_way.popleft())
