"""The worker's end of its line, over a transport: it dials the coordinator and says who it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from treepipe.executor.wire.clock import LOOK_MS, now_ms
from treepipe.executor.wire.line import Line
from treepipe.executor.wire.processor import Versions
from treepipe.executor.wire.records import SPANS, Here, Lacks, Leave, Post
from treepipe.executor.wire.transport import ZeroMQ


class LeaveError(Exception):
    """The coordinator lets the worker leave."""


class DialledLine:
    """A line to the coordinator.

    Attributes:
        transport: the worker's, with the run's key.
        channel: the connection; it has something when the coordinator has sent an order.
        waits: whether ``wait`` waits for one.
    """

    def __init__(self, post: Post) -> None:
        self._post, self._line = post, Line("worker", post.secret)
        self.transport = ZeroMQ(post.key)
        self.channel = self.transport.connect(post.address, SPANS, asks=True)
        self._orders, self.waits = deque[Any](), False
        self.say(Here(post.name, Versions.here()))

    def say(self, record: object) -> None:
        """Send a record; it never waits."""
        if self._line.state != "over":
            self.channel.send(self._line.put(record))

    def take(self) -> Any | None:
        """Return the coordinator's next order, or None.

        Raises:
            LeaveError: the worker is to leave.
            BrokenLineError: the coordinator has sent no order.
        """
        while not self._orders and (frames := self.channel.receive()) is not None:
            self._orders.extend(self._line.take(frames[0], now_ms()))
        if not self._orders:
            if (number := self._line.missing(now_ms())) is not None:
                self.say(Lacks("", self._post.name, number))
            return None
        order = self._orders.popleft()
        if isinstance(order, Leave):
            raise LeaveError
        return order

    def wait(self, look_ms: int | None = LOOK_MS) -> Any:
        """Wait for an order, waking every ``look_ms`` (None: never). Raises as ``take``."""
        while (order := self.take()) is None:
            self.waits = True
            self.channel.poll(look_ms)
            self.waits = False
        return order

    @property
    def called(self) -> bool:
        """Whether an order waits."""
        return bool(self._orders) or self.channel.waiting

    def beats(self) -> Callable[[bool], None]:
        """Return a function by which another thread sends signs of life, on a second connection."""
        channel = self.transport.connect(self._post.address, SPANS, asks=True)
        return lambda idle: channel.send(self._line.beat(idle))

    def close(self, linger_ms: int) -> None:
        """Close all connections; records that are not sent within this time are lost."""
        self.transport.close(linger_ms)
