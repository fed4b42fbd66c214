"""How messages get through links, without clock or network; both worlds ask it.

Laws of this file: a device sends one message at a time over all of its links, and receives one at a
time; messages of a link arrive in the order in which they left, whatever the jitter. Links meet in
a full-duplex switch that holds what a receiver has no time for yet, so a message keeps its
sender's port busy while it leaves and its receiver's while it arrives, and latency neither. A link
without a rate keeps nobody busy. Where transfers must have something to themselves (a medium, a
direction at a time, their two devices in PipeDec's central scheduler, appendix A), pending ones are
looked through in the order in which they were asked for, and each one that finds all of it free
starts.
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


class Port:
    """One direction of a device's way into the network.

    >>> port = Port()
    >>> port.take(0.0, 10.0), port.take(4.0, 1.0), port.take(30.0, 1.0)
    (0.0, 10.0, 30.0)
    """

    def __init__(self) -> None:
        self._free_ms = 0.0

    def take(self, from_ms: float, lasts_ms: float) -> float:
        """Keep the port busy for ``lasts_ms`` from ``from_ms`` on, or as soon as what came before
        is over; returns when that is (ms)."""
        free = self._free_ms
        begin = from_ms if from_ms > free else free
        self._free_ms = begin + lasts_ms
        return begin


class Wire:
    """One direction of a link."""

    def __init__(
        self, times: LinkTimes, rng: np.random.Generator, port: Port | None = None
    ) -> None:
        """Make a wire that nothing has left yet.

        Args:
            rng: of this link alone.
            port: the sender's, which it shares with its other links; None: one of its own.
        """
        self._times, self._rng, self.port = times, rng, port or Port()
        self._steady = not (times.loss or times.jitter_ms)
        self._occupied_ms: dict[int, float] = {}  # by bytes; few sizes come again and again
        self._last_due_ms = 0.0

    def occupied_ms(self, size_bytes: int) -> float:
        """How long a message keeps a port busy if it is not lost."""
        occupied = self._occupied_ms.get(size_bytes)
        if occupied is None:
            occupied = self._occupied_ms[size_bytes] = self._times.occupied_ms(size_bytes)
        return occupied

    def transfer(self, now_ms: float, size_bytes: int) -> Transfer:
        """A message is sent now; it begins when those before it have left. It is delivered then
        unless the receiver's port is busy.

        What is lost is sent again behind a timeout: it occupies the sender's side once more, which
        is counted right behind the first try. A lost message holds up those behind it, which then
        come in one behind another: none sooner than its own time after the one before.
        """
        times = self._times
        occupied, delay = self.occupied_ms(size_bytes), times.latency_ms
        earliest = self._last_due_ms + occupied
        if not self._steady:
            again = int(self._rng.geometric(1.0 - times.loss)) - 1 if times.loss else 0
            occupied *= 1 + again
            delay += again * times.retransmit_ms
            if times.jitter_ms:
                delay += times.draw_jitter_ms(self._rng)
        begin = self.port.take(now_ms, occupied) if occupied else now_ms
        free = begin + occupied
        due = free + delay
        if due < earliest:
            due = earliest
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
