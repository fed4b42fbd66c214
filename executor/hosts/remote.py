"""The coordinator's side of a worker on another host, whose processes look like local ones.

A thread keeps the session with the host's daemon: it forwards messages between the controller and
the processes, sends signs of life, and reads the host's clock. The controller and this thread hold
the two ends of each process's control line.

The controller never waits for the network: a host that is gone is silent, which ``pulse.py``
notices, or its line ends.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import TypeVar

from treepipe.core.errors import RunError, UserError
from treepipe.executor.hosts.fork_server import WorkerLines
from treepipe.executor.wire import session
from treepipe.executor.wire.addresses import is_loopback, tcp
from treepipe.executor.wire.clock import Offset, Reading, now_ms
from treepipe.executor.wire.codec import BrokenRecordError
from treepipe.executor.wire.frames import Frames
from treepipe.executor.wire.transport import Channel, ClosedError, KeyPair, Transport, ZeroMQ
from treepipe.scenario.schema import endpoint

CONNECT_S = 10.0
"""Limit of a host's first answer."""
ASK_S = 5.0
"""Limit of the same before anything is loaded."""
LOOK_S, REFUSALS = 0.5, 3
"""Time between two tests whether a silent host refuses connections, and the limit of refusals."""
FIRST_READINGS = 9
"""Readings of the host's clock before work begins."""
SEEK_S = 0.5
"""Time between two attempts to find a host."""
Wanted = TypeVar("Wanted", bound=session.FromDaemon)


class SilentHostError(RunError):
    """A host does not answer."""


class RemoteProcess:
    """A process on another host, with the part of ``BaseProcess`` that the controller uses."""

    def __init__(self, host: RemoteHost, name: str) -> None:
        self._host, self._name = host, name
        self._over = threading.Event()
        self.exitcode: int | None = None

    def kill(self) -> None:
        self._host.say(session.EndProcess(self._name, now=True))

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end; without a timeout as long as the host answers."""
        self._over.wait(self._host.patience_s if timeout is None else timeout)

    @property
    def why(self) -> str:
        """Reason of an end without an exit code."""
        return f"worker {self._host.address} ended the session, since {self._host.refusal}"

    def is_alive(self) -> bool:
        return not self._over.is_set()

    def answers(self, within_ms: float) -> bool:
        return self._host.answers(within_ms)

    def ended(self, exit_code: int | None) -> None:
        self.exitcode = exit_code
        self._over.set()


class RemoteHost:
    """A session with one daemon.

    Attributes:
        address: the host's address in the scenario.
        clock: offset of the host's clock to ours.
        refusal: the daemon's reason for ending the session.
    """

    def __init__(self, address: str, key: KeyPair | None, within_s: float = CONNECT_S) -> None:
        """Open the session. Raises ``SilentHostError`` without an answer ``within_s``, ``RunError``
        if the host refuses."""
        self.address, (self.host, _) = address, endpoint(address)
        self.clock = Offset()
        self._transport = ZeroMQ(key)
        self._roles: dict[str, WorkerLines] = {}  # the thread's ends of each process's lines
        self.refusal: str | None = None
        self._heard_ms = now_ms()
        self._thread = threading.Thread(target=self._attend, name=f"host {address}", daemon=True)
        try:
            self._channel = connection(self._transport, address)
            self.versions = self._meet(within_s)
        except BaseException:
            self._transport.close()
            raise
        # Orders of the controller to the thread.
        self._said, self._orders = map(Frames, socket.socketpair())
        self._thread.start()

    def _meet(self, within_s: float) -> session.Versions:
        ours = session.Versions.here()
        welcome = ask(self._channel, self.address, session.Hello(ours), session.Welcome, within_s)
        for _ in range(FIRST_READINGS):
            asked = now_ms()
            self._note(ask(self._channel, self.address, session.Alive(asked), session.TimeIs))
        return welcome.versions

    def start(self, name: str) -> WorkerLines:
        """Start a process there. Raises ``RunError`` if this host has no room for its lines."""
        try:
            near, far = map(Frames, socket.socketpair())
            look, beat = Pipe(duplex=False)
        except OSError as error:
            raise RunError(f"{name} cannot be started: {error.strerror}") from None
        os.set_blocking(beat.fileno(), False)
        process = RemoteProcess(self, name)
        self._roles[name] = WorkerLines(process, far, beat)
        self.say(session.Start(name))
        return WorkerLines(process, near, look)

    def say(self, record: session.FromCoordinator) -> None:
        with suppress(OSError):  # the session is over
            self._said.put(session.FROM_COORDINATOR.encoded(record))

    @property
    def patience_s(self) -> float:
        """Seconds for which the controller still waits for the host."""
        return max(0.0, CONNECT_S - (now_ms() - self._heard_ms) / 1e3)

    def answers(self, within_ms: float) -> bool:
        """Whether the session is open and the host sent a message within this time."""
        return self.refusal is None and now_ms() - self._heard_ms < within_ms

    def close(self) -> None:
        """End the session and its processes."""
        self._said.close()
        self._thread.join(CONNECT_S)
        self._orders.close()
        for role in self._roles.values():
            role.control.close()
            role.look.close()
        self._roles.clear()
        self._transport.close(linger_ms=500)

    # --- the thread ------------------------------------------------------------------------------

    def _attend(self) -> None:
        with suppress(ClosedError):  # ``close`` has waited in vain, since the host takes nothing
            self._serve()

    def _serve(self) -> None:
        next_ms = now_ms()
        while True:
            lines = {each.control.fileno(): name for name, each in [*self._roles.items()]}
            lines.pop(-1, None)  # lines of ended processes
            full = [each for each, name in lines.items() if self._roles[name].control.left_bytes]
            within_ms = max(0, math.ceil(next_ms - now_ms()))
            ready = self._channel.poll(within_ms, [self._orders.fileno(), *lines], full)
            try:
                self._forward()
            except EOFError:
                self._send(session.Leave())
                return
            self._read()
            for name in {lines[each] for each in ready if each in lines}:
                self._hear(name)
            if now_ms() >= next_ms:
                next_ms = now_ms() + 1e3 * session.ALIVE_S
                self._send(session.Alive(now_ms()))

    def _send(self, record: session.FromCoordinator) -> None:
        self._channel.send(session.FROM_COORDINATOR.encoded(record))

    def _forward(self) -> None:
        """Forward the controller's own orders, before those to the processes that they start.

        Raises ``EOFError`` after the last one.
        """
        self._orders.read()
        while (order := self._orders.take()) is not None:
            self._channel.send(order)

    def _hear(self, name: str) -> None:
        """Forward the controller's orders to a process, and send the rest of its answers."""
        role = self._roles[name]
        try:
            role.control.flush()
            role.control.read()
            while (order := role.control.take()) is not None:
                self._send(session.ForwardOrder(name, order))
            self._close_line(role)
        except (EOFError, OSError):  # the controller has closed the line
            self._send(session.EndProcess(name, now=False))
            role.control.close()

    def _close_line(self, role: WorkerLines) -> None:
        """Close the line of an ended process, after its last answer."""
        if not role.process.is_alive() and not role.control.left_bytes:
            role.control.close()

    def _read(self) -> None:
        while (frames := self._channel.receive()) is not None:
            with suppress(BrokenRecordError):  # it comes from no daemon of this version
                self._take(session.FROM_DAEMON.decoded(frames[0]))
                self._heard_ms = now_ms()

    def _take(self, record: session.FromDaemon) -> None:
        match record:
            case session.ForwardAnswer(name, data) if name in self._roles:
                with suppress(OSError):  # the controller has closed the line
                    self._roles[name].control.put(data)
            case session.Beats(name, data) if name in self._roles:
                with suppress(OSError):  # the watch has closed the pipe, or does not read it
                    os.write(self._roles[name].look.fileno(), data)
            case session.Ended(name, exit_code):
                self._end(name, exit_code)
            case session.TimeIs():
                self._note(record)
            case session.Declined(sentence):
                self.refusal = sentence
                for name in [*self._roles]:  # the controller may be starting more
                    self._end(name, None)

    def _end(self, name: str, exit_code: int | None) -> None:
        role = self._roles.get(name)
        if role is not None and role.process.is_alive():
            role.process.ended(exit_code)
            self._close_line(role)

    def _note(self, time: session.TimeIs) -> None:
        self.clock.note(Reading(time.sent_ms, time.here_ms, now_ms()))


class HostSearch:
    """A thread that requests a session from a silent host until the host answers."""

    def __init__(self, address: str, key: KeyPair | None) -> None:
        self._found: RemoteHost | None = None
        self._guard, self._over = threading.Lock(), threading.Event()
        seek = threading.Thread(target=self._seek, args=(address, key), daemon=True)
        seek.start()

    def take(self) -> RemoteHost | None:
        """Return the session once, when there is one; else None."""
        with self._guard:
            found, self._found = self._found, None
        return found

    def close(self) -> None:
        self._over.set()
        if (found := self.take()) is not None:
            found.close()

    def _seek(self, address: str, key: KeyPair | None) -> None:
        while not self._over.wait(SEEK_S):
            try:
                found = RemoteHost(address, key)
            except (RunError, UserError):
                continue
            with self._guard:
                if not self._over.is_set():
                    self._found = found
                    return
            found.close()


def connection(transport: Transport, address: str) -> Channel:
    """Connect to a daemon. Raises ``UserError`` if there can be no such host."""
    try:
        return transport.connect(tcp(*endpoint(address)), session.MOST_ANSWER_BYTES, asks=True)
    except OSError as error:
        raise UserError(f"worker {address}: {error.strerror}") from None


def ask(
    channel: Channel,
    address: str,
    question: session.FromCoordinator,
    answer: type[Wanted],
    within_s: float = CONNECT_S,
) -> Wanted:
    """Return a daemon's answer. Raises ``RunError`` on refusal, ``SilentHostError`` on silence."""
    channel.send(session.FROM_COORDINATOR.encoded(question))
    until, refused = now_ms() + 1e3 * within_s, 0
    while (left_ms := until - now_ms()) > 0:
        channel.poll(math.ceil(min(left_ms, 1e3 * LOOK_S)))
        if (frames := channel.receive()) is None:
            refused += now_ms() < until and _refuses(address)
            if refused == REFUSALS:
                raise SilentHostError(
                    f"worker {address} does not answer: its host refuses connections to that "
                    f"port, so no treepipe worker listens there"
                )
            continue
        try:
            found = session.FROM_DAEMON.decoded(frames[0])
        except BrokenRecordError:
            raise RunError(f"worker {address} answers as no treepipe worker does") from None
        if isinstance(found, session.Declined):
            raise RunError(f"worker {address} refuses: {found.sentence}")
        if isinstance(found, answer):
            return found
    raise SilentHostError(
        f"worker {address} does not answer within {within_s:g} s: it is not there, or holds "
        f"another key"
    )


def _refuses(address: str) -> bool:
    """Whether the host refuses connections to the port, which a channel does not report."""
    try:
        socket.create_connection(endpoint(address), LOOK_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def status(address: str, key: KeyPair | None, within_s: float = CONNECT_S) -> session.Status:
    """Return a daemon's state. Raises ``RunError`` if it does not answer."""
    with closing(ZeroMQ(key)) as transport:
        channel = connection(transport, address)
        return ask(channel, address, session.HowAreYou(), session.Status, within_s)


def others_reach(addresses: Collection[str]) -> bool:
    """Whether workers at these addresses are on other hosts than ours.

    Raises ``UserError`` if one is on a loopback that another cannot reach.
    """
    inner = next((each for each in addresses if is_loopback(endpoint(each)[0])), None)
    outer = next((each for each in addresses if not is_loopback(endpoint(each)[0])), None)
    if inner is not None and outer is not None:
        raise UserError(
            f"worker {inner!r} is on this host's loopback, which worker {outer!r} cannot "
            f"reach; give the first one's address on their network"
        )
    return outer is not None


def key_for(addresses: Collection[str], key_file: Path | None) -> KeyPair | None:
    """Return the key of workers at these addresses; None if only this host can reach them.

    Raises ``UserError`` if a key is missing or cannot be read.
    """
    if others_reach(addresses) and key_file is None:
        raise UserError(
            f"worker {min(addresses)!r} needs key run.key, the file of the key that the "
            f"worker holds (treepipe worker --make-key)"
        )
    return None if key_file is None or not addresses else KeyPair.load(key_file)


def ask_all(addresses: Collection[str], key_file: Path | None) -> None:
    """Ask whether a worker is at each address, all at once and before anything is loaded.

    Raises:
        UserError: as ``others_reach`` and ``key_for``.
        RunError: one does not answer, or is none of ours.
    """
    if not addresses:
        return
    key = key_for(addresses, key_file)
    with ThreadPoolExecutor(len(addresses)) as pool:
        answers = {each: pool.submit(status, each, key, ASK_S) for each in sorted(addresses)}
    faults = {each: fault for each, answer in answers.items() if (fault := answer.exception())}
    if not faults:
        return
    first, *more = faults
    if more and isinstance(faults[first], RunError):
        raise RunError(f"{faults[first]}; nor does {', '.join(more)}") from None
    raise faults[first]
