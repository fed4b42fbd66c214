"""Messages between workers: ZeroMQ, a validated binary header, raw tensor bytes; no pickles.

An inbox belongs to one worker, everyone else connects an outbox to it. With emulation on, a
message carries the time at which its link would have delivered it, and the inbox holds it until
then, longer where the receiver's port is busy (``physics/transfers.py`` has the law).

Law of this file: whatever comes in over a socket, an inbox hands out only what its ``Gate`` lets
in, and raises nothing. All else is counted and dropped.
"""

from __future__ import annotations

import heapq
import math
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import torch
import zmq

from treepipe.core.errors import UserError
from treepipe.core.messages import Flight, Message, MessageLimits
from treepipe.executor.clock import LOOK_MS, now_ms, wait_until
from treepipe.executor.keys import KeyPair, tcp
from treepipe.executor.link_order import LinkOrder
from treepipe.physics.transfers import Port, Wire

LOOPBACK = "127.0.0.1"
UNNAMED = sys.platform == "linux"
"""Whether sockets of this host alone need no file, which a killed process would leave behind."""
TOKEN_BYTES = 16
HEADER_BYTES = 2**20
"""Of the longest header without rows: names, times, and words that keep thousands of nodes."""
ROW_HEADER_BYTES = 64
"""At most, of a row's entries in a header: its token, position and parent."""
HORIZON_MS = 86_400_000.0
"""No link delivers a message more than a day from now."""
READ_AT_ONCE = 256
"""So many messages are read before the next one is served, however many more come in."""
MOST_WAITING = 64
"""Messages of one connection that wait in memory until they are read; more stay with the sender."""


@dataclass(frozen=True, slots=True)
class Ping:
    """What the two ends of a measured link say to each other; never part of a run.

    Attributes:
        asks: "nothing" (of a burst, another one follows), "answer" (the same ping, with the same
            hidden states, comes back), "leave" (the sender is gone).
    """

    asks: Literal["nothing", "answer", "leave"]


Body: TypeAlias = Message | Ping


@dataclass(frozen=True, slots=True)
class Envelope:
    """The header of a message.

    Attributes:
        sender, receiver: names of the workers at the two ends of its link.
        sent_ms, due_ms: when its transfer begins, and when its link delivers it (monotonic clock).
        body: what it says.
        rows, width: shape of the hidden states in the second frame, 0 if there is none. All of a
            run's are of one type, which its workers know.
        number: of the messages on its link before it.
    """

    sender: str
    receiver: str
    sent_ms: float
    due_ms: float
    body: Body
    rows: int = 0
    width: int = 0
    number: int = 0


KINDS: tuple[type[Body], ...] = (*get_args(Message), Ping)
"""What a body can be; a header begins with its place here, a byte, MessagePack follows."""
_MARKS = {kind: bytes([place]) for place, kind in enumerate(KINDS)}
_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = [
    msgspec.msgpack.Decoder(tuple[str, str, float, float, kind, int, int, int]).decode  # type: ignore[valid-type]
    for kind in KINDS
]
"""By kind: an envelope's values, each of its declared type."""


def header(envelope: Envelope) -> bytes:
    """An envelope as bytes."""
    e = envelope
    values = (e.sender, e.receiver, e.sent_ms, e.due_ms, e.body, e.rows, e.width, e.number)
    return _MARKS[type(e.body)] + _ENCODE(values)


def read_header(data: memoryview) -> Envelope | None:
    """The envelope of these bytes, None if they are not one."""
    if not len(data) or data[0] >= len(KINDS):
        return None
    try:
        return Envelope(*_DECODE[data[0]](data[1:]))
    except Exception:  # whatever strange bytes make the decoder or a message's own checks raise
        return None


@dataclass(frozen=True, slots=True)
class Received:
    """A delivered message and its hidden states [rows, width], if it has any."""

    envelope: Envelope
    hidden: torch.Tensor | None

    @property
    def message(self) -> Message:
        """What it says in a run; no gate lets a ping in."""
        assert not isinstance(self.envelope.body, Ping)
        return self.envelope.body


@dataclass(frozen=True, slots=True)
class Gate:
    """What one worker's inbox lets in during a run.

    Attributes:
        token: the run's secret, the first bytes of every message; only the run's workers know it.
        senders, receivers: names that may stand in a header (a switch takes in what is for others).
        kinds: what a message may say.
        width: of the target's hidden states.
        most_rows: that one message can hold.
        bare: senders whose flights hold no hidden states, since the first stage embeds.
        dtype: of the hidden states.
        limits: on the numbers of what a message says.
        waits: a message is held until it is due; else it is there when it comes, whatever clocks of
            other hosts say.
    """

    token: bytes
    senders: frozenset[str]
    receivers: frozenset[str]
    kinds: tuple[type, ...]
    width: int
    most_rows: int
    bare: frozenset[str] = frozenset()
    dtype: torch.dtype = torch.float32
    limits: MessageLimits | None = None
    waits: bool = True

    @property
    def most_bytes(self) -> int:
        """The longest frame allowed; a connection on which a longer one is announced is cut."""
        row: int = self.dtype.itemsize * self.width
        return HEADER_BYTES + self.most_rows * max(row, ROW_HEADER_BYTES)

    def fault(self, envelope: Envelope) -> str | None:
        """Why a message is not let in, None if it is."""
        if envelope.sender not in self.senders or envelope.receiver not in self.receivers:
            return "names other ends"
        body = envelope.body
        if not isinstance(body, self.kinds):
            return "says what this worker is never told"
        if isinstance(body, Ping):
            rows = envelope.rows  # any number that its frame holds, which is no longer than allowed
        elif self.limits is not None and not body.within(self.limits):
            return "holds numbers that this run has not"
        else:
            embedded = isinstance(body, Flight) and envelope.sender in self.bare
            rows = 0 if embedded else body.state_rows
        if envelope.rows != rows or envelope.width != (self.width if rows else 0):
            return "does not hold the hidden states of its rows"
        return None


class Outbox:
    """The sender's end of one link."""

    def __init__(
        self,
        context: Any,
        address: str,
        ends: tuple[str, str],
        wire: Wire | None,
        token: bytes = b"",
        key: KeyPair | None = None,
    ) -> None:
        """Args:
        ends: sender and receiver.
        wire: to emulate, None to deliver at once.
        token: of the run, in front of every header.
        key: of the run, where other hosts can reach its ports.
        """
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.IPV6, "[" in address)
        if key is not None:
            key.enter(self._socket)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.connect(address)
        self._ends, self._wire, self._token = ends, wire, token
        self._count = 0

    def send(
        self,
        body: Message | Ping,
        sent_ms: float,
        size_bytes: int,
        hidden: torch.Tensor | None = None,
    ) -> None:
        """Send; ``sent_ms`` and ``size_bytes`` are what the emulated link reckons with."""
        rows, width = (len(hidden), hidden.shape[1]) if hidden is not None else (0, 0)
        begin = due = sent_ms
        if self._wire is not None:
            begin, _, due = self._wire.transfer(sent_ms, size_bytes)
        self._send(Envelope(*self._ends, begin, due, body, rows, width, self._count), hidden)
        self._count += 1

    def hand_on(self, received: Received, begin_ms: float, due_ms: float) -> None:
        """Send what came from another worker, as its own, with the times of its transfer."""
        envelope = replace(received.envelope, sent_ms=begin_ms, due_ms=due_ms)
        self._send(envelope, received.hidden)

    def _send(self, envelope: Envelope, hidden: torch.Tensor | None) -> None:
        frames: list[Any] = [self._token + header(envelope)]
        if hidden is not None:
            frames.append(hidden.contiguous().view(torch.uint8).numpy().data)
        # Long frames are sent from where they are, so nobody may write to hidden states.
        self._socket.send_multipart(frames, copy=False)

    def close(self) -> None:
        self._socket.close()


class Inbox:
    """A worker's incoming messages in the order in which they are due.

    Attributes:
        address: for outboxes to connect to.
        count: messages that were let in.
        dropped: how many were not, by the reason.
        idle: True while it waits with nothing in hand.
        turn_to: told when it begins to wait, and to read what has come.
        arrives_ms: says how long an emulated message keeps the receiver's port busy.
        lacks: told of a message that stays away while later ones of its link are there: its sender,
            its receiver, and how many were sent before it.
    """

    def __init__(
        self,
        context: Any,
        port: int,
        worker: str,
        host: str = LOOPBACK,
        asked_by: str = "key base_port",
        gate: Gate | None = None,
        key: KeyPair | None = None,
    ) -> None:
        """Args:
            port: 0 for none: on the loopback a socket of this host alone, which takes two thirds
                of TCP's time, else, and where there are none such, any free one.
            host: the address of this host to listen on.
            asked_by: start of the error's sentence.
            gate: None outside a run: every well-formed message is let in.
            key: who does not hold it is refused by the context's ``Porter``; None: nobody is.

        Raises:
            UserError: the port is in use, or this host has no such address.
        """
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, MOST_WAITING)
        self._socket.setsockopt(zmq.IPV6, ":" in host)
        if key is not None:
            key.open(self._socket)
        if gate is not None:
            self._socket.setsockopt(zmq.MAXMSGSIZE, gate.most_bytes)
        try:
            if not port and host == LOOPBACK and UNNAMED:
                self._socket.bind(f"ipc://@treepipe-{secrets.token_hex(8)}")
            else:
                self._socket.bind(tcp(host, port or "*"))
        except zmq.ZMQError as error:
            fault = f"{host} is no address that {worker} could listen on: {error}"
            if error.errno == zmq.EADDRINUSE:
                fault = f"port {port}, wanted by {worker}, is in use on {host}"
            raise UserError(f"{asked_by}: {fault}") from None
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.count = 0
        self.dropped: Counter[str] = Counter()
        self.idle = False
        self.turn_to: Callable[[Literal["wait", "receive"]], object] = lambda kind: None
        self.lacks: Callable[[str, str, int], object] = lambda sender, receiver, number: None
        self.arrives_ms: Callable[[Envelope], float] = lambda envelope: 0.0
        self._asked_at = 0
        self._gate = gate
        self._held: list[tuple[float, int, Received]] = []
        self._port = Port()
        self._coming: list[tuple[float, int, float, Received]] = []
        self._order: LinkOrder[Received] = LinkOrder()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    def watch(self, descriptor: int) -> None:
        """``get`` also returns (with None) when this file descriptor can be read."""
        self._poller.register(descriptor, zmq.POLLIN)

    def get(self, until_ms: float | None = None) -> Received | None:
        """Wait for the next message that is due; None if there is none by ``until_ms``, or if a
        watched descriptor woke us."""
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
            # Waiting looks up now and then, which shows that this worker is not stuck.
            self.idle = left == math.inf
            self.turn_to("wait")
            events = dict(self._poller.poll(int(min(left, LOOK_MS))))
            self.turn_to("receive")
            self.idle = False
            if any(source is not self._socket for source in events):
                return None

    def rests(self) -> bool:
        """Whether it waits with nothing in hand, and nothing came in since this was last asked."""
        before, self._asked_at = self._asked_at, self.count
        return self.idle and before == self.count

    def get_due(self, now_ms: float) -> Received | None:
        """The next message if it was due by ``now_ms``, else None."""
        self._read()
        self._take_in(now_ms)
        if self._held and self._held[0][0] <= now_ms:
            return heapq.heappop(self._held)[2]
        return None

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        for _ in range(READ_AT_ONCE):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                for link, number in self._order.missing(now_ms()):
                    self.lacks(*link, number)
                return
            self.take([frame.buffer for frame in frames])

    def take(self, frames: Sequence[bytes | memoryview]) -> None:
        """Let a message in, with those that came before their turn, or count and drop it."""
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
            lasts = self.arrives_ms(each.envelope)
            if lasts:
                heapq.heappush(self._coming, (due - lasts, self.count, lasts, each))
            else:
                heapq.heappush(self._held, (due, self.count, each))

    def _take_in(self, now_ms: float) -> None:
        """Let what has come to the port by now through it, one message at a time."""
        while self._coming and self._coming[0][0] <= now_ms:
            comes, count, lasts, received = heapq.heappop(self._coming)
            due = max(received.envelope.due_ms, self._port.take(comes, lasts) + lasts)
            envelope = replace(received.envelope, due_ms=due)
            heapq.heappush(self._held, (due, count, replace(received, envelope=envelope)))

    def _ordered(self, received: Received) -> list[Received] | str:
        """Those whose turn it is; outside a run, whoever comes."""
        if self._gate is None:
            return [received]
        envelope = received.envelope
        link = envelope.sender, envelope.receiver
        return self._order.take(link, envelope.number, received, now_ms())

    def _admitted(self, frames: Sequence[bytes | memoryview]) -> Received | str:
        """The message, or why it is not let in."""
        gate, data = self._gate, memoryview(frames[0])
        if gate is not None:
            # First, since nothing of what a stranger sends is worth reading.
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
    """The hidden states of a message, None if it has none, or what is wrong with them."""
    rows, width = envelope.rows, envelope.width
    if not rows and not width and not frames:
        return None
    size = dtype.itemsize * rows * width
    if min(rows, width) < 1 or len(frames) != 1 or len(frames[0]) != size:
        return "does not hold the hidden states of its rows"
    return torch.frombuffer(frames[0], dtype=dtype).view(rows, width)
