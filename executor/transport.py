"""Messages between workers: ZeroMQ, a validated JSON header, raw tensor bytes; no pickles.

An inbox belongs to one worker, everyone else connects an outbox to it. With emulation on, a
message carries the time at which its link would have delivered it, and the inbox holds it until
then: the sender's side of a link is busy one message at a time, latency is added behind it.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import zmq
from pydantic import TypeAdapter, ValidationError

from treepipe.errors import RunError, UserError
from treepipe.executor.clock import now_ms, wait_until
from treepipe.messages import Beat, Close, Flight, Message
from treepipe.transfers import Wire

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Envelope:
    """The header of a message.

    Attributes:
        sender, receiver: names of the workers at the two ends of its link.
        sent_ms, due_ms: when its transfer begins, and when its link delivers it (monotonic clock).
        body: what it says.
        rows, width: shape of the float32 hidden states in the second frame, 0 if there is none.
    """

    sender: str
    receiver: str
    sent_ms: float
    due_ms: float
    body: Flight | Beat | Close
    rows: int = 0
    width: int = 0


_HEADER = TypeAdapter(Envelope)


@dataclass(frozen=True, slots=True)
class Received:
    """A delivered message and its hidden states [rows, width], if it has any."""

    envelope: Envelope
    hidden: torch.Tensor | None


class Outbox:
    """The sender's end of one link."""

    def __init__(
        self,
        context: Any,
        address: str,
        ends: tuple[str, str],
        wire: Wire | None,
    ) -> None:
        """Args: ``ends``: sender and receiver; ``wire``: to emulate, None to deliver at once."""
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.connect(address)
        self._ends, self._wire = ends, wire

    def send(
        self, body: Message, sent_ms: float, size_bytes: int, hidden: torch.Tensor | None = None
    ) -> None:
        """Send; ``sent_ms`` and ``size_bytes`` are what the emulated link reckons with."""
        rows, width = (len(hidden), hidden.shape[1]) if hidden is not None else (0, 0)
        begin = due = sent_ms
        if self._wire is not None:
            begin, _, due = self._wire.transfer(sent_ms, size_bytes)
        self._send(Envelope(*self._ends, begin, due, body, rows, width), hidden)

    def hand_on(self, received: Received, begin_ms: float, due_ms: float) -> None:
        """Send what came from another worker, as its own, with the times of its transfer."""
        envelope = replace(received.envelope, sent_ms=begin_ms, due_ms=due_ms)
        self._send(envelope, received.hidden)

    def _send(self, envelope: Envelope, hidden: torch.Tensor | None) -> None:
        frames = [_HEADER.dump_json(envelope)]
        if hidden is not None:
            frames.append(hidden.contiguous().numpy().data)
        self._socket.send_multipart(frames)

    def close(self) -> None:
        self._socket.close()


class Inbox:
    """A worker's incoming messages in the order in which they are due."""

    def __init__(
        self,
        context: Any,
        port: int,
        worker: str,
        host: str = LOOPBACK,
        asked_by: str = "key base_port",
    ) -> None:
        """Args:
            port: 0 for any free one.
            host: the address of this host to listen on.
            asked_by: start of the error's sentence.

        Raises:
            UserError: the port is in use, or this host has no such address.
        """
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise UserError(
                    f"{asked_by}: {host} is no address that {worker} could listen on: {error}"
                ) from None
            raise UserError(
                f"{asked_by}: port {port}, wanted by {worker}, is in use on {host}"
            ) from None
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._held: list[tuple[float, int, Received]] = []
        self._count = 0
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
            due = self._held[0][0] if self._held else math.inf
            alarm = min(due, math.inf if until_ms is None else until_ms)
            left = alarm - now_ms()
            if left <= 1.0:
                wait_until(alarm)
                return heapq.heappop(self._held)[2] if due <= alarm else None
            events = dict(self._poller.poll(None if left == math.inf else int(left)))
            if any(source is not self._socket for source in events):
                return None

    def get_due(self, now_ms: float) -> Received | None:
        """The next message if it was due by ``now_ms``, else None."""
        self._read()
        if self._held and self._held[0][0] <= now_ms:
            return heapq.heappop(self._held)[2]
        return None

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            received = _decode(frames)
            self._count += 1
            heapq.heappush(self._held, (received.envelope.due_ms, self._count, received))


def _decode(frames: list[bytes]) -> Received:
    try:
        envelope = _HEADER.validate_json(frames[0])
    except ValidationError as error:
        raise RunError(f"a message with a broken header came in: {error}") from None
    if not envelope.rows:
        return Received(envelope, None)
    shape = (envelope.rows, envelope.width)
    if len(frames) != 2 or len(frames[1]) != 4 * shape[0] * shape[1]:
        raise RunError(f"a message from {envelope.sender} does not hold {shape} floats")
    # A copy, since torch wants memory that it may write to.
    states = np.frombuffer(frames[1], dtype=np.float32).reshape(shape).copy()
    return Received(envelope, torch.from_numpy(states))
