"""The rules by which messages get through links, without clock or network; both worlds apply them.

A device sends one message at a time over all of its links, and receives one at a time; messages of
a link arrive in the order in which they left, whatever the jitter. Links meet in a full-duplex
switch that buffers, so a message keeps its sender's port busy while it leaves and its receiver's
while it arrives, and latency occupies neither. A link without a rate occupies no port. Messages of
links with a burst draw on a token bucket of either port, which always fills at the link's rate.
Where transfers need exclusive resources (a medium, a direction at a time, their two devices in
PipeDec's central scheduler, appendix A), pending ones whose resources are all free start in the
order of their requests.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from treepipe.physics.timing import LinkTimes, PortLoad, later

Item = TypeVar("Item")
Resources: TypeAlias = tuple[str, ...]
"""Names of the resources that a transfer holds exclusively while it lasts."""
NO_LOAD = PortLoad(0.0)
"""The load of a message that passes no port."""
Transfer: TypeAlias = tuple[float, float, float]
"""Times of one message (ms): it begins, the sender's side is free again, it is delivered."""


class Port:
    """One direction of a device's way into the network.

    Its token bucket is kept as the time at which all tokens drawn so far are paid for, at the rate
    at which the bucket fills (the virtual scheduling algorithm of ITU-T I.371).

    Attributes:
        free_ms: end of the last message.

    >>> port = Port()
    >>> [port.take(at, PortLoad(ms)) for at, ms in ((0.0, 10.0), (4.0, 1.0), (30.0, 1.0))]
    [0.0, 10.0, 30.0]
    """

    def __init__(self) -> None:
        self.free_ms = 0.0
        self._paid_ms = -inf  # the bucket is full

    def take(self, from_ms: float, load: PortLoad) -> float:
        """Keep the port busy with a message as soon as it is free; return the begin (ms)."""
        lasts, drawn, burst = load
        free = self.free_ms
        begin: float = later(from_ms, free)
        free = begin + lasts
        if drawn:
            self._paid_ms = later(begin - burst, self._paid_ms) + drawn
            free = later(free, self._paid_ms)
        self.free_ms = free
        return begin


class Wire:
    def __init__(
        self, times: LinkTimes, rng: np.random.Generator, port: Port | None = None
    ) -> None:
        """Make one direction of a link.

        Args:
            rng: random numbers of this link alone.
            port: the sender's port, shared with its other links; None: a port of its own.
        """
        self._times, self._rng, self.port = times, rng, port or Port()
        self._steady = not (times.loss or times.jitter_ms)
        self._loads: dict[int, PortLoad] = {}  # by bytes; few sizes come again and again
        self._last_due_ms = 0.0

    def load(self, size_bytes: int) -> PortLoad:
        """Return what a message takes of a port if it is not lost."""
        load = self._loads.get(size_bytes)
        if load is None:
            load = self._loads[size_bytes] = self._times.load(size_bytes)
        return load

    def transfer(self, now_ms: float, size_bytes: int) -> Transfer:
        """Send a message now; it begins when those before it have left, and is delivered at the
        returned time unless the receiver's port is busy.

        A lost message is sent again after a timeout: it occupies the sender's side once more, which
        is counted right behind the first try. It delays those behind it, which then arrive one
        after another, none sooner than its own time after the one before.
        """
        times = self._times
        load, delay = self.load(size_bytes), times.latency_ms
        earliest = self._last_due_ms + load.lasts_ms
        if not self._steady:
            again = int(self._rng.geometric(1.0 - times.loss)) - 1 if times.loss else 0
            load = times.load(size_bytes, 1 + again) if again else load
            delay += again * times.retransmit_ms
            if times.jitter_ms:
                delay += times.draw_jitter_ms(self._rng)
        begin = free = now_ms
        if load != NO_LOAD:
            begin, free = self.port.take(now_ms, load), self.port.free_ms
        due = later(free + delay, earliest)
        self._last_due_ms = due
        return begin, free, due


class TransferQueue(Generic[Item]):
    """The queue of transfers that need exclusive resources."""

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._pending: deque[tuple[Resources, Item]] = deque()

    def ask(self, held: Resources, item: Item) -> list[tuple[Resources, Item]]:
        """Ask for a transfer; return the transfers that start."""
        self._pending.append((held, item))
        return self._start()

    def end(self, held: Resources) -> list[tuple[Resources, Item]]:
        """End a transfer; return the transfers that start."""
        self._busy.difference_update(held)
        return self._start()

    def _start(self) -> list[tuple[Resources, Item]]:
        started, waiting = [], deque[tuple[Resources, Item]]()
        for held, item in self._pending:
            if self._busy.isdisjoint(held):
                self._busy.update(held)
                started.append((held, item))
            else:
                waiting.append((held, item))
        self._pending = waiting
        return started
