"""The two ends of a measured link: processes of one host, or of two.

The ends use the executor's inboxes and outboxes as workers do, since encoding and decoding a
message belongs to a link's time. Ends that a coordinator has started have names, a key and a gate,
like a run's workers; any other end is named by its address, to which answers go. Messages are due
at once (``ANY_TIME``), since two hosts' clocks differ.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection

import torch

from treepipe.core.errors import UserError
from treepipe.executor.addresses import LOOPBACK
from treepipe.executor.control import LinkEnd
from treepipe.executor.fork_server import (
    end_process,
    end_with_fork_server,
    fork_server,
    start_worker,
)
from treepipe.executor.frames import Frames
from treepipe.executor.mailbox import Gate, Inbox, Outbox, Ping
from treepipe.executor.transport import ZeroMQ

ANY_TIME = 0.0
END_S = 5.0
WIDTH = 256
"""Width of hidden states: a row is 1 KiB."""
SIZES = tuple(1024 * 4**power for power in range(7))
"""Message sizes in bytes: 1 KiB to 4 MiB."""


def numeric(host: str, option: str) -> str:
    """Resolve the IPv4 address of a host. Raises ``UserError`` if there is no such host."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        raise UserError(f"{option} {host}: there is no host of that name") from None


class End:
    """One end: an inbox, and outboxes to other ends.

    ``ways`` has the addresses of named ends' inboxes.
    """

    def __init__(self, host: str, port: int, asked_by: str, named: LinkEnd | None = None) -> None:
        """Listen; an end that ``named`` describes admits messages of its other end alone.

        Raises ``UserError`` if it cannot listen there.
        """
        self._transport = ZeroMQ(None if named is None else named.key)
        self._token = b"" if named is None else named.token
        gate = None if named is None else gate_of(named)
        try:
            self.inbox = Inbox(self._transport, port, "calibration", host, asked_by, gate)
        except UserError:
            self._transport.close()
            raise
        self._name = self.inbox.address if named is None else named.name
        self.ways: Mapping[str, str] = {}
        self._outboxes: dict[str, Outbox] = {}

    def send(self, receiver: str, message: Ping, hidden: torch.Tensor | None) -> None:
        """Send to an end by its name, or by the address of its inbox."""
        if receiver not in self._outboxes:
            ends, way = (self._name, receiver), self.ways.get(receiver, receiver)
            self._outboxes[receiver] = Outbox(self._transport, way, ends, None, self._token)
        self._outboxes[receiver].send(message, ANY_TIME, 0, hidden)

    def forget(self, receiver: str) -> None:
        """Close the outbox to an end."""
        outbox = self._outboxes.pop(receiver, None)
        if outbox is not None:
            outbox.close()

    def close(self) -> None:
        self._transport.close()


def gate_of(named: LinkEnd) -> Gate:
    """Make a gate for pings of the other end alone, up to the largest timed size."""
    most_rows = SIZES[-1] // (4 * WIDTH)
    ends = frozenset({named.peer}), frozenset({named.name})
    return Gate(named.token, *ends, (Ping,), WIDTH, most_rows, waits=False)


def serve(end: End) -> None:
    """Answer pings that request it, until a watched descriptor becomes readable."""
    while (received := end.inbox.get()) is not None:
        sender, body = received.envelope.sender, received.envelope.body
        if body == Ping("leave"):
            end.forget(sender)
        elif body == Ping("answer"):
            end.send(sender, body, received.hidden)


def listen(host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; ``ready`` is called with the address.

    Raises ``UserError`` if it cannot listen there.
    """
    with contextlib.closing(End(numeric(host, "--listen"), port, f"--listen {host}:{port}")) as end:
        ready(end.inbox.address)
        serve(end)


@contextlib.contextmanager
def local_peer() -> Iterator[str]:
    """Start a peer in a process of this host, and yield its address."""
    started = start_worker(fork_server(), _peer_main, "the peer")
    try:
        yield started.control.recv_bytes().decode()
    finally:
        started.control.close()  # the peer ends when its control line does
        started.look.close()
        started.process.join(END_S)
        end_process(started.process)


def _peer_main(line: socket.socket, pulse: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other end ends this process
    end_with_fork_server()
    pulse.close()
    torch.set_num_threads(1)
    control = Frames(line)
    with contextlib.closing(End(LOOPBACK, 0, "calibration")) as end:
        end.inbox.watch(control.fileno())
        control.send_bytes(end.inbox.address.encode())
        serve(end)
