"""The far end of a link that is measured: another process here, or one on another host.

Law of this file: the two ends talk as workers do, with the executor's inboxes and outboxes, since
what encoding and decoding a message costs belongs to a link's time. Outside a run a process is
named by its address, so that an answer finds its way; messages are due at once (``ANY_TIME``), as
the clocks of two hosts say nothing to each other.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
import zmq

from treepipe.core.errors import UserError
from treepipe.executor.fork_server import fork_server
from treepipe.executor.transport import LOOPBACK, Inbox, Outbox, Ping
from treepipe.scenario.schema import endpoint

ANY_TIME = 0.0
END_S = 5.0


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Host and port.

    >>> parse_address("10.0.0.7:5000", "--peer")
    ('10.0.0.7', 5000)

    Raises:
        UserError: it is something else.
    """
    try:
        return endpoint(text.removeprefix("tcp://"))
    except ValueError:
        raise UserError(f"{option} {text}: must be HOST:PORT, e.g. 192.168.1.20:5555") from None


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
    """One end: an inbox, and outboxes to whom it has heard of."""

    def __init__(self, host: str, port: int, asked_by: str) -> None:
        """Raises ``UserError`` if it cannot listen there."""
        self._context: Any = zmq.Context()
        try:
            self.inbox = Inbox(self._context, port, "calibration", host, asked_by)
        except UserError:
            self._context.destroy(linger=0)
            raise
        self._outboxes: dict[str, Outbox] = {}

    def send(self, address: str, message: Ping, hidden: torch.Tensor | None) -> None:
        """Args: ``address``: of the other end's inbox."""
        if address not in self._outboxes:
            ends = (self.inbox.address, address)
            self._outboxes[address] = Outbox(self._context, address, ends, None)
        self._outboxes[address].send(message, ANY_TIME, 0, hidden)

    def forget(self, address: str) -> None:
        """Nothing more is sent there."""
        outbox = self._outboxes.pop(address, None)
        if outbox is not None:
            outbox.close()

    def close(self) -> None:
        for address in list(self._outboxes):
            self.forget(address)
        self.inbox.close()
        self._context.destroy(linger=0)


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
    context = fork_server()
    ours, theirs = context.Pipe()
    process = context.Process(target=_peer_main, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()  # the peer ends when its control pipe does
        process.join(END_S)
        if process.is_alive():
            process.kill()
            process.join()


def _peer_main(control: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other end ends us
    torch.set_num_threads(1)
    end = End(LOOPBACK, 0, "calibration")
    try:
        end.inbox.watch(control.fileno())
        control.send(end.inbox.address)
        serve(end)
    finally:
        end.close()
