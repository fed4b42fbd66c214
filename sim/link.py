"""A link: one direction between two devices, with its own delay.

Law of this file: messages of a link arrive in the order they were sent in, whatever the jitter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import simpy

from treepipe.timing import LinkTimes

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """What was delivered to one process, in order; only that process reads it."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self.items: deque[Item] = deque()
        self._waiting: Any = None

    def put(self, item: Item) -> None:
        self.items.append(item)
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.succeed()

    def arrival(self) -> Any:
        """An event to wait for while there is no item."""
        self._waiting = self._env.event()
        return self._waiting


class CentralScheduler:
    """PipeDec's transfers (section 3.2): a device takes part in one transfer at a time.

    Pending transfers are looked through in the order in which they were asked for, and each one
    whose two ends are free starts.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
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
                self._env.timeout(duration).callbacks.append(partial(self._end, ends, done))
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
        env: simpy.Environment,
        times: LinkTimes,
        deliver: Callable[[Item], None],
        rng: np.random.Generator,
        central: tuple[CentralScheduler, tuple[str, str]] | None = None,
    ) -> None:
        """Args: ``central``: who decides when a transfer between its two ends starts."""
        self._env, self._times, self._deliver, self._rng = env, times, deliver, rng
        self._central = central
        self._free_ms = 0.0
        self._last_due_ms = 0.0
        self._under_way: deque[Item] = deque()

    def send(self, item: Item, size_bytes: int) -> tuple[float, float]:
        """Send now; returns when it was sent and when it will be delivered (ms).

        With a central scheduler the second is the earliest time possible.
        """
        now = self._env.now
        if self._central is not None:
            scheduler, ends = self._central
            self._under_way.append(item)
            duration = self._times.latency_ms + self._times.occupied_ms(size_bytes)
            scheduler.ask(ends, duration, partial(self._arrive, None))
            return now, now + duration
        self._free_ms = max(now, self._free_ms) + self._times.occupied_ms(size_bytes)
        jitter = self._times.jitter_ms
        extra = abs(self._rng.normal(0.0, jitter)) if jitter else 0.0
        due = max(self._free_ms + self._times.latency_ms + extra, self._last_due_ms)
        self._last_due_ms = due
        self._under_way.append(item)
        self._env.timeout(due - now).callbacks.append(self._arrive)
        return now, due

    def _arrive(self, _: object) -> None:
        """Deliver the oldest message, whichever delay has ended.

        ``now + (due - now)`` is rounded: two messages due together may wake in either order.
        """
        self._deliver(self._under_way.popleft())
