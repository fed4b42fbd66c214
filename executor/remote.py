"""The coordinator's side of a worker on another host: its processes look as those of this one do.

A thread keeps the session with the host's daemon: it hands on what the controller and the processes
say to each other, shows that the coordinator lives, and asks the host's time.

Law of this file: the controller never waits for the network; a host that is gone is silent, which
``pulse.py`` notices, or its line ends.
"""

from __future__ import annotations

import math
import os
import secrets
import socket as sockets
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeVar

import zmq

from treepipe.core.errors import RunError, UserError
from treepipe.executor.clock import now_ms
from treepipe.executor.codec import BrokenRecordError
from treepipe.executor.keys import KeyPair, tcp
from treepipe.executor.offsets import Offset, Reading
from treepipe.executor.session import (
    ALIVE_S,
    FROM_COORDINATOR,
    FROM_DAEMON,
    MOST_ANSWER_BYTES,
    Alive,
    Beats,
    Declined,
    Ended,
    EndProcess,
    FromCoordinator,
    FromDaemon,
    Hello,
    HowAreYou,
    Leave,
    Said,
    Start,
    Status,
    TimeIs,
    Told,
    Versions,
    Welcome,
)
from treepipe.scenario.schema import endpoint

CONNECT_S = 10.0
"""How long a host may take to answer for the first time."""
LOOK_S, REFUSALS = 0.5, 3
"""How often a silent host is asked for a plain connection, and how many times it may refuse one
before no worker is taken to be there; one that is being started has that long."""
FIRST_READINGS = 9
"""Of its clock, before work begins."""
Wanted = TypeVar("Wanted", bound=FromDaemon)


class SilentHostError(RunError):
    """A host does not answer."""


class Line:
    """The control line of a process on another host, as the controller holds it.

    It has what the controller uses of ``Frames``; while records wait there is a byte in a socket,
    which a poll finds.
    """

    left_bytes = 0
    """The host's thread takes all at once."""

    def __init__(self, host: RemoteHost, name: str) -> None:
        self._host, self._name = host, name
        self._arrived: deque[bytes | None] = deque()
        self._guard = threading.Lock()  # of the records and the byte together
        self._ready, self._bell = sockets.socketpair()
        self._bell.setblocking(False)

    def fileno(self) -> int:
        return self._ready.fileno()

    def put(self, data: bytes) -> None:
        self._host.say(Told(self._name, data))

    def flush(self) -> None:
        """Nothing is ever left."""

    def read(self) -> None:
        """The host's thread has."""

    @property
    def holds(self) -> bool:
        return bool(self._arrived)

    def take(self) -> bytes | None:
        """Return the next record, None if there is none; raises ``EOFError`` when the process is
        over."""
        with self._guard:
            if not self._arrived:
                return None
            found = self._arrived[0]
            if found is None:
                raise EOFError  # and stays over
            self._arrived.popleft()
            if not self._arrived:
                self._ready.recv(1)
        return found

    def arrive(self, data: bytes | None) -> None:
        """The process said this; None: it is over. Called by the host's thread."""
        with self._guard, suppress(OSError):  # the controller may have closed it
            self._arrived.append(data)
            if len(self._arrived) == 1:
                self._bell.send(b"!")

    def close(self) -> None:
        self._host.say(EndProcess(self._name, now=False))
        self._ready.close()
        self._bell.close()


class RemoteProcess:
    """A process on another host, with what the controller uses of a ``BaseProcess``."""

    def __init__(self, host: RemoteHost, name: str) -> None:
        self._host, self._name = host, name
        self._over = threading.Event()
        self.exitcode: int | None = None

    def kill(self) -> None:
        self._host.say(EndProcess(self._name, now=True))

    def join(self, timeout: float | None = None) -> None:
        """Args: ``timeout``: None: as long as the host answers at all."""
        self._over.wait(self._host.patience_s if timeout is None else timeout)

    @property
    def why(self) -> str:
        """Why it is over where it has no exit code."""
        return f"worker {self._host.address} ended the session, since {self._host.refusal}"

    def is_alive(self) -> bool:
        return not self._over.is_set()

    def answers(self, within_ms: float) -> bool:
        """Whether its host was heard of within this time."""
        return self._host.answers(within_ms)

    def ended(self, exit_code: int | None) -> None:
        """Called by the host's thread."""
        self.exitcode = exit_code
        self._over.set()


@dataclass(slots=True)
class _Lines:
    line: Line
    pulse: Connection
    process: RemoteProcess


class RemoteHost:
    """A session with one daemon.

    Attributes:
        address: as the scenario gives it.
        host: of it.
        versions: what it has.
        clock: how far it is ahead of ours.
    """

    def __init__(self, address: str, key: KeyPair | None, within_s: float = CONNECT_S) -> None:
        """Raises ``SilentHostError`` if it does not answer ``within_s``, ``RunError`` if it
        refuses."""
        self.address, (self.host, _) = address, endpoint(address)
        self.clock = Offset()
        self._context = zmq.Context()
        self._orders: SimpleQueue[FromCoordinator] = SimpleQueue()
        self._lines: dict[str, _Lines] = {}
        self.refusal: str | None = None
        self._heard_ms = now_ms()
        self._thread = threading.Thread(target=self._attend, name=f"host {address}", daemon=True)
        try:
            self._socket = connection(self._context, address, key)
            self.versions = self._meet(within_s)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._woken, self._bell = sockets.socketpair()
        self._bell.setblocking(False)
        self._thread.start()

    def _meet(self, within_s: float) -> Versions:
        ours = Versions.here()
        welcome = ask(self._socket, self.address, Hello(ours), Welcome, within_s)
        for _ in range(FIRST_READINGS):
            asked = now_ms()
            self._note(ask(self._socket, self.address, Alive(asked), TimeIs))
        return welcome.versions

    def start(self, name: str) -> tuple[RemoteProcess, Line, Connection]:
        """Start a process there; gives its handle, its control line, and the end of its pulse."""
        process, line = RemoteProcess(self, name), Line(self, name)
        look, beat = Pipe(duplex=False)
        os.set_blocking(beat.fileno(), False)
        self._lines[name] = _Lines(line, beat, process)
        self.say(Start(name))
        return process, line, look

    def say(self, record: FromCoordinator) -> None:
        """Tell the daemon; returns at once."""
        self._orders.put(record)
        try:
            self._bell.send(b"!")
        except BlockingIOError:
            return  # it will look anyway
        except OSError:
            return  # the session is over

    @property
    def patience_s(self) -> float:
        """How much longer it may be silent before it is given up."""
        return max(0.0, CONNECT_S - (now_ms() - self._heard_ms) / 1e3)

    def answers(self, within_ms: float) -> bool:
        """Whether the session goes on, and the host was heard of within this time."""
        return self.refusal is None and now_ms() - self._heard_ms < within_ms

    def route(self) -> str:
        """Our address on the way to this host."""
        return route(self.host)

    def close(self) -> None:
        """End the session; its processes end with it."""
        if self._thread.is_alive():
            self.say(Leave())
            self._thread.join(CONNECT_S)
        for each in self._lines.values():
            each.pulse.close()
        self._lines.clear()
        self._woken.close()
        self._bell.close()
        self._context.destroy(linger=500)

    # --- the thread ------------------------------------------------------------------------------

    def _attend(self) -> None:
        with suppress(zmq.ZMQError):  # ``close`` has waited in vain, since the host takes nothing
            self._serve()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._woken.fileno(), zmq.POLLIN)
        next_ms = now_ms()
        while True:
            ready = dict(poller.poll(max(0, math.ceil(next_ms - now_ms()))))
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            while not self._orders.empty():
                order = self._orders.get()
                self._socket.send(FROM_COORDINATOR.encoded(order))
                if isinstance(order, Leave):
                    return
            if self._socket in ready:
                self._read()
            if now_ms() >= next_ms:
                next_ms = now_ms() + 1e3 * ALIVE_S
                self._socket.send(FROM_COORDINATOR.encoded(Alive(now_ms())))

    def _read(self) -> None:
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._take(FROM_DAEMON.decoded(data))
            except BrokenRecordError:
                continue  # no daemon of ours says this
            self._heard_ms = now_ms()

    def _take(self, record: FromDaemon) -> None:
        match record:
            case Said(name, data):
                if name in self._lines:
                    self._lines[name].line.arrive(data)
            case Beats(name, data):
                if name in self._lines:
                    try:
                        os.write(self._lines[name].pulse.fileno(), data)
                    except OSError:
                        return  # nobody looks, or not any more
            case Ended(name, exit_code):
                self._end(name, exit_code)
            case TimeIs():
                self._note(record)
            case Declined(sentence):
                self.refusal = sentence
                for name in [*self._lines]:  # the controller may be starting more
                    self._end(name, None)

    def _end(self, name: str, exit_code: int | None) -> None:
        found = self._lines.get(name)
        if found is not None and found.process.is_alive():
            found.process.ended(exit_code)
            found.line.arrive(None)

    def _note(self, time: TimeIs) -> None:
        self.clock.note(Reading(time.sent_ms, time.here_ms, now_ms()))


def connection(context: Any, address: str, key: KeyPair | None) -> Any:
    """A socket to a daemon; connecting is done behind our back. The name by which it knows us is a
    secret of this session. Raises ``UserError`` if there can be no such host."""
    socket, (host, port) = context.socket(zmq.DEALER), endpoint(address)
    socket.setsockopt(zmq.ROUTING_ID, secrets.token_bytes(32))
    socket.setsockopt(zmq.MAXMSGSIZE, MOST_ANSWER_BYTES)
    socket.setsockopt(zmq.IPV6, ":" in host)
    if key is not None:
        key.enter(socket)
    try:
        socket.connect(tcp(host, port))
    except zmq.ZMQError as error:
        socket.close(linger=0)  # or the context waits for it without end
        raise UserError(f"worker {address}: {zmq.strerror(error.errno or 0)}") from None
    return socket


def ask(
    socket: Any,
    address: str,
    question: FromCoordinator,
    answer: type[Wanted],
    within_s: float = CONNECT_S,
) -> Wanted:
    """What a daemon answers. Raises ``RunError`` if it refuses, ``SilentHostError`` if it says
    nothing, or nobody listens at its address."""
    socket.send(FROM_COORDINATOR.encoded(question))
    until, refused = now_ms() + 1e3 * within_s, 0
    while (left_ms := until - now_ms()) > 0:
        if not socket.poll(min(left_ms, 1e3 * LOOK_S)):
            refused += now_ms() < until and _refuses(address)
            if refused == REFUSALS:
                raise SilentHostError(
                    f"worker {address} does not answer: its host refuses connections to that "
                    f"port, so no treepipe worker listens there"
                )
            continue
        try:
            found = FROM_DAEMON.decoded(socket.recv())
        except BrokenRecordError:
            raise RunError(f"worker {address} answers as no treepipe worker does") from None
        if isinstance(found, Declined):
            raise RunError(f"worker {address} refuses: {found.sentence}")
        if isinstance(found, answer):
            return found
    raise SilentHostError(
        f"worker {address} does not answer within {within_s:g} s: it is not there, or holds "
        f"another key"
    )


def _refuses(address: str) -> bool:
    """Whether nobody listens there: ZeroMQ tries again and again without a word."""
    try:
        sockets.create_connection(endpoint(address), LOOK_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def status(address: str, key: KeyPair | None, within_s: float = CONNECT_S) -> Status:
    """How a daemon is. Raises ``RunError`` if it does not answer."""
    with zmq.Context() as context:
        socket = connection(context, address, key)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            return ask(socket, address, HowAreYou(), Status, within_s)
        finally:
            socket.close()


def route(host: str) -> str:
    """The address of this host that another one sees. Raises ``UserError`` if there is no way."""
    try:
        family, kind, _, _, there = sockets.getaddrinfo(host, 9, type=sockets.SOCK_DGRAM)[0]
        with sockets.socket(family, kind) as probe:
            probe.connect(there)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(f"there is no way from this host to {host}: {error.strerror}") from None
