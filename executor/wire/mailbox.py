"""The two ends of links between workers: a validated header, then raw tensor bytes; no pickles.

Each worker has one inbox, and the others connect outboxes to it. With emulation a message carries
its delivery time on the link; the inbox holds it until then, and while the receiver's port is busy
(``physics/transfers.py``).

Invariant: an inbox returns only messages that its ``Gate`` admits, counts and drops all others, and
never raises.
"""

from __future__ import annotations

import errno
import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Any, Literal

import torch

from treepipe.core.errors import UserError
from treepipe.core.messages import Message
from treepipe.executor.wire.addresses import LOOPBACK
from treepipe.executor.wire.clock import LOOK_MS, now_ms, wait_until
from treepipe.executor.wire.envelope import (
    TOKEN_BYTES,
    Envelope,
    Gate,
    Ping,
    header,
    read_header,
)
from treepipe.executor.wire.link_order import LinkOrder
from treepipe.executor.wire.transport import Channel, Transport
from treepipe.physics.timing import PortLoad
from treepipe.physics.transfers import NO_LOAD, Port, Wire

HORIZON_MS = 86_400_000.0
"""Latest accepted delivery time, from now: one day."""
READ_AT_ONCE = 256
"""Limit of the messages read before the next one is served."""
MOST_WAITING = 64
"""Limit of one connection's unread messages in memory; further ones stay with the sender."""


@dataclass(frozen=True, slots=True)
class Received:
    """A delivered message and its hidden states [rows, width], if it has any."""

    envelope: Envelope
    hidden: torch.Tensor | None

    @property
    def message(self) -> Message:
        assert not isinstance(self.envelope.body, Ping)
        return self.envelope.body


class Outbox:
    """The sender's end of one link."""

    def __init__(
        self,
        transport: Transport,
        address: str,
        ends: tuple[str, str],
        wire: Wire | None,
        token: bytes = b"",
    ) -> None:
        """Connect to the receiver's inbox.

        Args:
            ends: sender and receiver.
            wire: the emulated link; None delivers at once.
        """
        self._channel = transport.connect(address)
        self._ends, self._wire, self._token = ends, wire, token
        self._count = 0

    def send(
        self,
        body: Message | Ping,
        sent_ms: float,
        size_bytes: int,
        hidden: torch.Tensor | None = None,
    ) -> None:
        """Send a message; ``sent_ms`` and ``size_bytes`` describe the emulated transfer."""
        rows, width = (len(hidden), hidden.shape[1]) if hidden is not None else (0, 0)
        begin = due = sent_ms
        if self._wire is not None:
            begin, _, due = self._wire.transfer(sent_ms, size_bytes)
        self._send(Envelope(*self._ends, begin, due, body, rows, width, self._count), hidden)
        self._count += 1

    def hand_on(self, received: Received, begin_ms: float, due_ms: float) -> None:
        """Forward another worker's message with the times of its transfer."""
        envelope = replace(received.envelope, sent_ms=begin_ms, due_ms=due_ms)
        self._send(envelope, received.hidden)

    def _send(self, envelope: Envelope, hidden: torch.Tensor | None) -> None:
        frames: list[Any] = [self._token + header(envelope)]
        if hidden is not None:
            frames.append(hidden.contiguous().view(torch.uint8).numpy().data)
        self._channel.send(*frames)

    def close(self) -> None:
        self._channel.close()


class Inbox:
    """A worker's incoming messages in the order in which they are due.

    Attributes:
        count: admitted messages.
        dropped: counts of dropped messages by reason.
        idle: True while it waits without a message.
        enter: callback at the start of waiting, and of reading.
        arrives: what an emulated message takes of the receiver's port.
        lacks: callback with sender, receiver and number of a message that is missing though later
            ones arrived.
    """

    def __init__(
        self,
        transport: Transport,
        port: int,
        worker: str,
        host: str = LOOPBACK,
        asked_by: str = "key base_port",
        gate: Gate | None = None,
    ) -> None:
        """Listen on a port.

        Args:
            port: 0 for any free one.
            asked_by: start of the error's sentence.
            gate: None outside a run: every well-formed message is admitted.

        Raises:
            UserError: the port is in use, or this host has no such address.
        """
        most_bytes = -1 if gate is None else gate.most_bytes
        try:
            self._channel = transport.listen(host, port, MOST_WAITING, most_bytes)
        except OSError as error:
            fault = f"{host} is no address that {worker} could listen on: {error.strerror}"
            if error.errno == errno.EADDRINUSE:
                fault = f"port {port}, wanted by {worker}, is in use on {host}"
            raise UserError(f"{asked_by}: {fault}") from None
        self.address = self._channel.address
        self.count = 0
        self.dropped: Counter[str] = Counter()
        self.idle = False
        self.enter: Callable[[Literal["wait", "receive"]], object] = lambda kind: None
        self.lacks: Callable[[str, str, int], object] = lambda sender, receiver, number: None
        self.arrives: Callable[[Envelope], PortLoad] = lambda envelope: NO_LOAD
        self._asked_at = 0
        self._gate = gate
        self._held: list[tuple[float, int, Received]] = []
        self._port = Port()
        self._coming: list[tuple[float, int, PortLoad, Received]] = []
        self._order: LinkOrder[Received] = LinkOrder()
        self._watched: list[Channel | int] = []

    def watch(self, other: Channel | int) -> None:
        """Let ``get`` return None when another channel or a descriptor has something to read."""
        self._watched.append(other)

    def get(self, until_ms: float | None = None) -> Received | None:
        """Wait for the next due message; None at ``until_ms`` or for a watched descriptor."""
        while True:
            self._read()
            self._take_in(now_ms())
            due = self._held[0][0] if self._held else math.inf
            comes = self._coming[0][0] if self._coming else math.inf
            alarm = min(due, comes, math.inf if until_ms is None else until_ms)
            left = alarm - now_ms()
            if left <= 1.0:
                wait_until(alarm)
                if comes <= alarm < due:
                    continue
                return heapq.heappop(self._held)[2] if due <= alarm else None
            # Periodic wake-ups show that this worker is not stuck.
            self.idle = left == math.inf
            self.enter("wait")
            called = self._channel.poll(int(min(left, LOOK_MS)), self._watched)
            self.enter("receive")
            self.idle = False
            if called:
                return None

    def rests(self) -> bool:
        """Whether the inbox is idle and has received nothing since the last call."""
        before, self._asked_at = self._asked_at, self.count
        return self.idle and before == self.count

    def get_due(self, now_ms: float) -> Received | None:
        """Return the next message that was due by ``now_ms``, or None."""
        self._read()
        self._take_in(now_ms)
        if self._held and self._held[0][0] <= now_ms:
            return heapq.heappop(self._held)[2]
        return None

    def close(self) -> None:
        self._channel.close()

    def _read(self) -> None:
        for _ in range(READ_AT_ONCE):
            if (frames := self._channel.receive()) is None:
                for link, number in self._order.missing(now_ms()):
                    self.lacks(*link, number)
                return
            self.take(frames)

    def take(self, frames: Sequence[bytes | memoryview]) -> None:
        """Admit a message and the later ones that it held up, or count and drop it."""
        received = self._admitted(frames)
        admitted = received if isinstance(received, str) else self._ordered(received)
        if isinstance(admitted, str):
            self.dropped[admitted] += 1
            return
        for each in admitted:
            self.count += 1
            due = each.envelope.due_ms
            if self._gate is not None and not self._gate.waits:
                due = min(due, now_ms())
            load = self.arrives(each.envelope)
            if load != NO_LOAD:
                heapq.heappush(self._coming, (due - load.lasts_ms, self.count, load, each))
            else:
                heapq.heappush(self._held, (due, self.count, each))

    def _take_in(self, now_ms: float) -> None:
        """Pass the messages that arrived by now through the port, one at a time."""
        while self._coming and self._coming[0][0] <= now_ms:
            comes, count, load, received = heapq.heappop(self._coming)
            self._port.take(comes, load)
            due = max(received.envelope.due_ms, self._port.free_ms)
            envelope = replace(received.envelope, due_ms=due)
            heapq.heappush(self._held, (due, count, replace(received, envelope=envelope)))

    def _ordered(self, received: Received) -> list[Received] | str:
        """Return the messages whose turn it is by number (in a run), or the reason to drop."""
        if self._gate is None:
            return [received]
        envelope = received.envelope
        link = envelope.sender, envelope.receiver
        return self._order.take(link, envelope.number, received, now_ms())

    def _admitted(self, frames: Sequence[bytes | memoryview]) -> Received | str:
        """Return the message, or the reason to drop it."""
        gate, data = self._gate, memoryview(frames[0])
        if gate is not None:
            if not compare_digest(data[:TOKEN_BYTES], gate.token):
                return "does not carry the run's token"
            data = data[TOKEN_BYTES:]
        envelope = read_header(data)
        if envelope is None:
            return "has a broken header"
        if not 0.0 <= envelope.sent_ms <= envelope.due_ms <= now_ms() + HORIZON_MS:
            return "has impossible times"
        if gate is not None and (fault := gate.fault(envelope)) is not None:
            return fault
        hidden = _hidden(envelope, frames[1:], torch.float32 if gate is None else gate.dtype)
        if isinstance(hidden, str):
            return hidden
        return Received(envelope, hidden)


def _hidden(
    envelope: Envelope, frames: Sequence[bytes | memoryview], dtype: torch.dtype
) -> torch.Tensor | str | None:
    """Return a message's hidden states, None without any, or the reason to drop it."""
    rows, width = envelope.rows, envelope.width
    if not rows and not width and not frames:
        return None
    size = dtype.itemsize * rows * width
    if min(rows, width) < 1 or len(frames) != 1 or len(frames[0]) != size:
        return "does not hold the hidden states of its rows"
    return torch.frombuffer(frames[0], dtype=dtype).view(rows, width)
