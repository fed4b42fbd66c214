"""The far end of a link that is measured: another process here, or one on another host.

Law of this file: the two ends talk as workers do, with the executor's inboxes and outboxes, since
what encoding and decoding a message costs belongs to a link's time. Ends that a coordinator has
started have names, a key and a gate, as the workers of a run; any other one is named by its
address, so that an answer finds its way. Messages are due at once (``ANY_TIME``), as the clocks of
two hosts say nothing to each other.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
import zmq

from treepipe.core.errors import UserError
from treepipe.executor.control import LinkEnd
from treepipe.executor.fork_server import (
    end_process,
    end_with_fork_server,
    fork_server,
    start_worker,
)
from treepipe.executor.frames import Frames
from treepipe.executor.keys import Porter
from treepipe.executor.transport import LOOPBACK, Gate, Inbox, Outbox, Ping

ANY_TIME = 0.0
END_S = 5.0
WIDTH = 256
"""Of hidden states: a row is 1 KiB."""
SIZES = tuple(1024 * 4**power for power in range(7))
"""Bytes: 1 KiB to 4 MiB."""


def numeric(host: str, option: str) -> str:
    """The IPv4 address of a host. Raises ``UserError`` if there is no such host."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        raise UserError(f"{option} {host}: there is no host of that name") from None


def address_towards(host: str, port: int) -> str:
    """The address of this host that another one sees."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))  # nothing is sent
        except OSError as error:
            raise UserError(f"--peer {host}:{port}: no way leads there: {error.strerror}") from None
        return str(probe.getsockname()[0])


class End:
    """One end: an inbox, and outboxes to whom it has heard of.

    Attributes:
        ways: addresses of the inboxes of ends that have names.
    """

    def __init__(self, host: str, port: int, asked_by: str, named: LinkEnd | None = None) -> None:
        """Args: ``named``: whom alone it listens to, and what both hold; None: it listens to all.

        Raises ``UserError`` if it cannot listen there."""
        self._context: Any = zmq.Context()
        self._token, self._key = (b"", None) if named is None else (named.token, named.key)
        self._porter = None if self._key is None else Porter(self._context, self._key)
        gate = None if named is None else gate_of(named)
        try:
            self.inbox = Inbox(self._context, port, "calibration", host, asked_by, gate, self._key)
        except UserError:
            self._destroy()
            raise
        self._name = self.inbox.address if named is None else named.name
        self.ways: Mapping[str, str] = {}
        self._outboxes: dict[str, Outbox] = {}

    def send(self, receiver: str, message: Ping, hidden: torch.Tensor | None) -> None:
        """Args: ``receiver``: the other end's name, or the address of its inbox."""
        if receiver not in self._outboxes:
            ends, way = (self._name, receiver), self.ways.get(receiver, receiver)
            self._outboxes[receiver] = Outbox(
                self._context, way, ends, None, self._token, self._key
            )
        self._outboxes[receiver].send(message, ANY_TIME, 0, hidden)

    def forget(self, receiver: str) -> None:
        """Nothing more is sent there."""
        outbox = self._outboxes.pop(receiver, None)
        if outbox is not None:
            outbox.close()

    def close(self) -> None:
        for receiver in list(self._outboxes):
            self.forget(receiver)
        self.inbox.close()
        self._destroy()

    def _destroy(self) -> None:
        if self._porter is not None:
            self._porter.close()
        self._context.destroy(linger=0)


def gate_of(named: LinkEnd) -> Gate:
    """Lets in pings of the other end alone, none larger than the largest that is timed."""
    most_rows = SIZES[-1] // (4 * WIDTH)
    ends = frozenset({named.peer}), frozenset({named.name})
    return Gate(named.token, *ends, (Ping,), WIDTH, most_rows, waits=False)


def serve(end: End) -> None:
    """Answer pings as they ask, and pass over what is none; returns when a watched descriptor can
    be read."""
    while (received := end.inbox.get()) is not None:
        sender, body = received.envelope.sender, received.envelope.body
        if body == Ping("leave"):
            end.forget(sender)
        elif body == Ping("answer"):
            end.send(sender, body, received.hidden)


def listen(host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; ``ready`` is told the address. Raises ``UserError`` if it cannot
    listen there."""
    end = End(numeric(host, "--listen"), port, f"--listen {host}:{port}")
    try:
        ready(end.inbox.address)
        serve(end)
    finally:
        end.close()


@contextlib.contextmanager
def local_peer() -> Iterator[str]:
    """A peer in a process of its own on this host; yields its address."""
    started = start_worker(fork_server(), _peer_main, "the peer")
    try:
        yield started.control.recv_bytes().decode()
    finally:
        started.control.close()  # the peer ends when its control line does
        started.look.close()
        started.process.join(END_S)
        end_process(started.process)


def _peer_main(line: socket.socket, pulse: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other end ends us
    end_with_fork_server()
    pulse.close()
    torch.set_num_threads(1)
    end, control = End(LOOPBACK, 0, "calibration"), Frames(line)
    try:
        end.inbox.watch(control.fileno())
        control.send_bytes(end.inbox.address.encode())
        serve(end)
    finally:
        end.close()
