"""The interface to the network, ``Transport``, and its implementation by ZeroMQ.

Invariant: the handshake refuses and counts a peer without the key before any of its messages is
read; neither ``repr`` nor an error shows a key.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import zmq
from zmq.auth.thread import ThreadAuthenticator

from treepipe.executor.wire.addresses import LOOPBACK, tcp
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.processor import real_time_class

UNNAMED = sys.platform == "linux"
"""Whether local sockets need no file, which a killed process would leave behind."""
HANDSHAKE_MS = 5_000
"""Limit of the handshake on a port for questions, after which its descriptor is freed."""
ClosedError: type[Exception] = zmq.ZMQError
"""Error of a channel whose transport is closed."""


class Channel(Protocol):
    """One end of connections, at ``address``; it never waits to send or to receive."""

    address: str

    def send(self, *frames: bytes | memoryview) -> None:
        """Send a message of some frames, which must not change afterwards."""

    def receive(self) -> Sequence[memoryview] | None:
        """Return the frames of the next message that has arrived, or None."""

    @property
    def waiting(self) -> bool:
        """Whether ``receive`` has a message."""

    def poll(self, within_ms: int | None, others: Collection[Channel | int] = ()) -> bool:
        """Wait for a message here, or for one of other channels or descriptors; return whether one
        of the others is ready."""

    def close(self, linger_ms: int = 0) -> None:
        """Free the channel; messages that are not sent within this time are lost."""


class Transport(Protocol):
    """A factory of channels; with a key it refuses strangers, which ``refused`` counts.

    Messages go one way, to the listening end, or are questions and answers: then the listening end
    receives and sends the other end's name as the first frame.
    """

    refused: int

    def listen(
        self, host: str, port: int, most_waiting: int, most_bytes: int, *, answers: bool = False
    ) -> Channel:
        """Open a port.

        Args:
            port: 0 for any free one.
            most_waiting: limit of a connection's unread messages; more stay with the sender. 0: no
                limit, nor one of messages to be sent.
            most_bytes: limit of a frame; a connection that announces a longer one is cut. -1: any.

        Raises:
            OSError: the port is in use, or this host has no such address.
        """

    def connect(self, address: str, most_bytes: int = -1, *, asks: bool = False) -> Channel:
        """Connect in the background. Raises ``OSError`` if there can be no such address."""

    def close(self, linger_ms: int = 0) -> None:
        """Close all channels; messages that are not sent within this time are lost."""


class ZeroMQ:
    """``Transport`` by one context of ZeroMQ, with CURVE and ZAP if there is a key."""

    def __init__(self, key: KeyPair | None = None) -> None:
        self.refused = 0
        self._context, self._key = _context(), key
        self._sockets = list[Any]()  # ``close`` closes also sockets without a holder
        self._authenticator: ThreadAuthenticator | None = None

    def listen(
        self, host: str, port: int, most_waiting: int, most_bytes: int, *, answers: bool = False
    ) -> _Socket:
        socket = self._socket(zmq.ROUTER if answers else zmq.PULL, most_bytes, ipv6=":" in host)
        socket.rcvhwm = most_waiting
        if not most_waiting:
            socket.sndhwm = 0
        if answers:
            socket.router_handover = 1  # a peer that reconnects keeps its name
            socket.handshake_ivl = HANDSHAKE_MS
        if self._key is not None:
            self._guard()
            socket.curve_server = True
        address = tcp(host, port or "*")
        if not port and host == LOOPBACK and UNNAMED:
            # This takes two thirds of TCP's time.
            address = f"ipc://@treepipe-{secrets.token_hex(8)}"
        return self._opened(socket, socket.bind, address)

    def connect(self, address: str, most_bytes: int = -1, *, asks: bool = False) -> _Socket:
        socket = self._socket(zmq.DEALER if asks else zmq.PUSH, most_bytes, ipv6="[" in address)
        if asks:
            socket.routing_id = secrets.token_bytes(32)  # no other peer can send in its name
        socket.sndhwm = 0
        if self._key is not None:
            socket.curve_serverkey = self._key.public.encode()
        return self._opened(socket, socket.connect, address)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the holder of this public key is admitted; pyzmq's thread calls this."""
        known = self._key is not None and key == self._key.public.encode()
        self.refused += not known
        return known

    def close(self, linger_ms: int = 0) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=linger_ms)

    def _socket(self, kind: int, most_bytes: int, *, ipv6: bool) -> Any:
        socket: Any = self._context.socket(kind)
        self._sockets.append(socket)
        socket.linger, socket.maxmsgsize, socket.ipv6 = 0, most_bytes, ipv6
        if self._key is not None:
            socket.curve_publickey = self._key.public.encode()
            socket.curve_secretkey = self._key.secret.encode()
        return socket

    def _guard(self) -> None:
        """Answer the context's handshakes in a thread."""
        if self._authenticator is None:
            silent = logging.Logger("treepipe.silent", logging.CRITICAL + 1)
            self._authenticator = ThreadAuthenticator(self._context, log=silent)
            self._authenticator.start()
            self._authenticator.configure_curve_callback("*", self)

    def _opened(self, socket: Any, reach: Any, address: str) -> _Socket:
        try:
            reach(address)
        except zmq.ZMQError as error:
            socket.close()  # or the context would wait for it forever
            raise OSError(error.errno, zmq.strerror(error.errno or 0)) from None
        return _Socket(socket)


class _Socket:
    """``Channel`` by a socket of ZeroMQ."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.address: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, *frames: bytes | memoryview) -> None:
        self._socket.send_multipart(frames, copy=False)

    def receive(self) -> Sequence[memoryview] | None:
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return [frame.buffer for frame in frames]

    @property
    def waiting(self) -> bool:
        return bool(self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)

    def poll(self, within_ms: int | None, others: Collection[Channel | int] = ()) -> bool:
        return bool(ready(within_ms, [self, *others]) - {self})

    def close(self, linger_ms: int = 0) -> None:
        self._socket.close(linger_ms)


def ready(within_ms: int | None, watched: Sequence[Channel | int]) -> set[Channel | int]:
    """Wait for messages of channels of ZeroMQ, or for descriptors; return those that have some."""
    items = [each._socket if isinstance(each, _Socket) else each for each in watched]
    polled: list[tuple[Any, int]] = [(each, zmq.POLLIN) for each in items]
    there = [each for each, _ in zmq.zmq_poll(polled, -1 if within_ms is None else within_ms)]
    return {each for each, item in zip(watched, items, strict=True) if item in there}


def _context() -> zmq.Context[Any]:
    """Return a context whose I/O threads precede a real-time process's other threads.

    Threads of the same real-time priority do not preempt each other: a message would wait until a
    role on the same processor has computed, where the I/O thread of a usual process wakes at once.
    """
    context = zmq.Context()
    if (policy := real_time_class()) is not None:
        priority = os.sched_getparam(0).sched_priority
        context.set(zmq.THREAD_SCHED_POLICY, policy)
        context.set(zmq.THREAD_PRIORITY, min(priority + 1, os.sched_get_priority_max(policy)))
    return context
