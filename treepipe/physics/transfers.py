"""How messages get through links, without clock or network; both worlds ask it.

Laws of this file: messages of a link leave one at a time and arrive in the order in which they
left, whatever the jitter. Where transfers must have something to themselves (a medium, a direction
at a time, their two devices in PipeDec's central scheduler, section 3.2), pending ones are looked
through in the order in which they were asked for, and each one that finds all of it free starts.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from treepipe.physics.timing import LinkTimes

Item = TypeVar("Item")
Held: TypeAlias = tuple[str, ...]
"""Names of all that a transfer has to itself while it lasts."""
Transfer: TypeAlias = tuple[float, float, float]
"""Times of one message (ms): it begins, the sender's side is free again, it is delivered."""


class Wire:
    """One direction of a link."""

    def __init__(self, times: LinkTimes, rng: np.random.Generator) -> None:
        """Args: ``rng``: of this link alone."""
        self._times, self._rng = times, rng
        self._steady = not (times.loss or times.jitter_ms)
        self._occupied_ms: dict[int, float] = {}  # by bytes; few sizes come again and again
        self._free_ms = 0.0
        self._last_due_ms = 0.0

    def transfer(self, now_ms: float, size_bytes: int) -> Transfer:
        """A message is sent now; it begins when those before it have left.

        What is lost is sent again behind a timeout: it occupies the sender's side once more, which
        is counted right behind the first try. A lost message holds up those behind it.
        """
        times = self._times
        occupied, delay = self._occupied_ms.get(size_bytes), times.latency_ms
        if occupied is None:
            occupied = self._occupied_ms[size_bytes] = times.occupied_ms(size_bytes)
        if not self._steady:
            again = int(self._rng.geometric(1.0 - times.loss)) - 1 if times.loss else 0
            occupied *= 1 + again
            delay += again * times.retransmit_ms
            if times.jitter_ms:
                delay += times.draw_jitter_ms(self._rng)
        free = self._free_ms
        begin = now_ms if now_ms > free else free
        self._free_ms = free = begin + occupied
        due = free + delay
        if due < self._last_due_ms:
            due = self._last_due_ms
        self._last_due_ms = due
        return begin, free, due


class TransferQueue(Generic[Item]):
    """The queue that says which transfers start now."""

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._pending: deque[tuple[Held, Item]] = deque()

    def ask(self, held: Held, item: Item) -> list[tuple[Held, Item]]:
        """A transfer is wanted; returns those that start."""
        self._pending.append((held, item))
        return self._start()

    def end(self, held: Held) -> list[tuple[Held, Item]]:
        """A transfer is over; returns those that start."""
        self._busy.difference_update(held)
        return self._start()

    def _start(self) -> list[tuple[Held, Item]]:
        started, waiting = [], deque[tuple[Held, Item]]()
        for held, item in self._pending:
            if self._busy.isdisjoint(held):
                self._busy.update(held)
                started.append((held, item))
            else:
                waiting.append((held, item))
        self._pending = waiting
        return started
