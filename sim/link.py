"""A link of the simulated world, which takes the time that ``physics/transfers.py`` computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from treepipe.physics.timing import LinkTimes, PortLoad, later
from treepipe.physics.transfers import NO_LOAD, Port, Resources, TransferQueue, Wire
from treepipe.sim.clock import Clock

Item = TypeVar("Item")
StartTransfer: TypeAlias = Callable[[], float]
"""Begins a transfer now; returns the end of its hold on its resources (ms)."""


class Pending(NamedTuple):
    """A waiting transfer, and the start of its wait."""

    link: str
    begin: StartTransfer
    since_ms: float


class Traffic:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: TransferQueue[Pending] = TransferQueue()

    def ask(self, held: Resources, link: str, begin: StartTransfer) -> None:
        """Begin as soon as all of ``held`` is free."""
        self._begin(self._queue.ask(held, Pending(link, begin, self._clock.now)))

    def _begin(self, started: list[tuple[Resources, Pending]]) -> None:
        for held, asked in started:
            self._clock.bound(partial(self._start, held, asked))(None)

    def _start(self, held: Resources, asked: Pending, _: object) -> None:
        now = self._clock.now
        self._clock.waited(asked.link, "transfer", asked.since_ms)
        until = asked.begin()
        self._clock.after(until - now, partial(self._end, held, asked.link, now))

    def _end(self, held: Resources, link: str, since_ms: float, _: object) -> None:
        self._clock.spent(link, "transfer", since_ms)
        self._begin(self._queue.end(held))


class Claim(NamedTuple):
    """The resources that a link's own transfers wait for.

    Attributes:
        held: resources of each transfer.
        until_delivered: whether it holds them until delivery, not only until the message has left.
    """

    traffic: Traffic
    held: Resources
    until_delivered: bool


class Ports(NamedTuple):
    sender: Port
    receiver: Port


class SimulatedLink(Generic[Item]):
    """A link whose messages leave one at a time and arrive in order after the latency."""

    def __init__(
        self,
        clock: Clock,
        times: LinkTimes,
        deliver: Callable[[Item], None],
        rng: np.random.Generator,
        claim: Claim | None = None,
        note: Callable[[Item, float, float], None] | None = None,
        name: str = "link",
        ports: Ports | None = None,
    ) -> None:
        """Make a link. ``note`` is called with each message's transfer, its begin and its delivery
        (ms); ``ports`` are shared with other links."""
        self._name = name
        self._clock, self._deliver, self._claim, self._note = clock, deliver, claim, note
        self._wire = Wire(times, rng, None if ports is None else ports.sender)
        self._port = None if ports is None else ports.receiver
        self._under_way: deque[Item] = deque()
        self.send: Callable[[Item, int], object] = self._begin if claim is None else self._ask
        """Send an item of a number of bytes as soon as its transfer's resources are free."""

    def _ask(self, item: Item, size_bytes: int) -> None:
        assert self._claim is not None
        begin = partial(self._begin, item, size_bytes)
        self._claim.traffic.ask(self._claim.held, self._name, begin)

    def _begin(self, item: Item, size_bytes: int) -> float:
        clock, wire = self._clock, self._wire
        now = clock.now
        begin, free, due = wire.transfer(now, size_bytes)
        self._under_way.append(item)
        load = wire.load(size_bytes)
        if self._port is not None and load != NO_LOAD:
            reached = due - load.lasts_ms
            take_in = partial(self._receive, self._port, item, begin, load)
            receive = clock.transferred(wire.port, self._name, begin, free, reached, take_in)
            clock.after(later(reached - now, 0.0), receive)  # a difference of sums is rounded
        else:
            self._due(wire.port, item, begin, begin, free, due)
        return due if self._claim is not None and self._claim.until_delivered else free

    def _receive(self, port: Port, item: Item, sent: float, load: PortLoad, _: object) -> None:
        begin = port.take(self._clock.now, load)
        self._due(port, item, sent, begin, port.free_ms, port.free_ms)

    def _due(
        self, port: Port, item: Item, sent: float, begin: float, free: float, due: float
    ) -> None:
        clock = self._clock
        arrive = clock.transferred(port, self._name, begin, free, due, self._arrive)
        clock.after(due - clock.now, arrive)
        if self._note is not None:
            self._note(item, sent, due)

    def _arrive(self, _: object) -> None:
        """Deliver the oldest message, whichever delay has ended.

        ``now + (due - now)`` is rounded: two messages due together may wake in either order.
        """
        self._deliver(self._under_way.popleft())
