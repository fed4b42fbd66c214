"""``treepipe worker``: serves one coordinator's session at a time and starts its roles.

A role's process is the same as on the coordinator's host (``worker.py``), forked from the daemon's
own fork server. The daemon forwards messages between coordinator and process, and the process's
signs of life.

Invariant: no message stops the daemon, and no process outlives its session.
"""

from __future__ import annotations

import importlib
import logging
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from treepipe.core.errors import RunError, UserError
from treepipe.core.failover import MOST_BEAT_MS
from treepipe.executor.hosts.fork_server import end_process, fork_server, start_worker, starves
from treepipe.executor.wire import session
from treepipe.executor.wire.addresses import is_loopback
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.codec import BrokenRecordError
from treepipe.executor.wire.frames import Frames
from treepipe.executor.wire.processor import Processor
from treepipe.executor.wire.transport import KeyPair, ZeroMQ

WORKER = "treepipe.executor.run.worker"
"""Module of the body of all processes. It is imported late, since it imports PyTorch."""
LOOK_S = 0.25
"""Time between two checks for the coordinator's silence."""
MOST_LEFT_BYTES = session.MOST_ORDER_BYTES
"""Limit of the orders that wait for a process; the daemon ends a process that exceeds it."""
MOST, KEPT = 2**14, 2**9
"""Limit of a daemon's descriptors, and the number reserved for its processes; each connection of a
stranger takes one of the others."""
LOG = logging.getLogger("treepipe.worker")
"""The log of sessions and dropped messages, without any message's content."""


class Descriptors:
    """The limit on this process's descriptors, raised as far as the system allows."""

    def __init__(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._hard = hard
        self._most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
        self._limit(self._most - min(KEPT, self._most // 2))

    @contextmanager
    def all_of_them(self) -> Iterator[None]:
        """Allow the use of the reserved descriptors."""
        self._limit(self._most)
        try:
            yield
        finally:
            self._limit(self._most - min(KEPT, self._most // 2))

    def _limit(self, count: int) -> None:
        with suppress(OSError, ValueError):  # some systems allow less than they report
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, self._hard))


@dataclass(slots=True)
class _Role:
    """A process of the session, our ends of its lines, and the time of its last sign of life."""

    process: BaseProcess
    control: Frames
    pulse: Connection
    shown_ms: float = field(default_factory=now_ms)


class Daemon:
    """A context manager that listens on one address."""

    def __init__(self, host: str, port: int, key: KeyPair | None, models: Path | None) -> None:
        """Bind the address.

        Args:
            port: 0 for any free one.
            key: None on the loopback only.
            models: this host's folder of checkpoints.

        Raises:
            UserError: others can reach the address, and there is no key; it is in use or not ours.
        """
        if key is None and not is_loopback(host):
            raise UserError(
                f"--listen {host}:{port}: others can reach this address, so it needs --key FILE "
                f"(treepipe worker --make-key FILE makes one)"
            )
        self._models, self._since_ms = models, now_ms()
        self._versions, self._processor = session.Versions.here(), Processor.here()  # from files
        self._coordinator: bytes | None = None
        self._transport = ZeroMQ(key)
        try:
            self._channel = self._transport.listen(
                host, port, session.MOST_ORDERS, session.MOST_ORDER_BYTES, answers=True
            )
        except OSError as error:
            self.close()
            raise UserError(f"--listen {host}:{port}: {error.strerror}") from None
        self.address = self._channel.address.removeprefix("tcp://")
        self._heard_ms = 0.0
        self._roles: dict[str, _Role] = {}
        self._sessions = self._dropped = 0

    def __enter__(self) -> Daemon:
        """Load PyTorch, after the address has proved free."""
        self._descriptors = Descriptors()
        fork_server()  # it imports the same libraries meanwhile
        importlib.import_module(WORKER)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, if there is one, and free the address."""
        if self._coordinator is not None:
            self._over("its worker was ended")
        self._transport.close()

    def serve(self) -> None:
        while True:
            self.step(LOOK_S)

    def step(self, wait_s: float) -> None:
        """Serve the messages of one wait."""
        lines = dict[int, tuple[str, bool]]()
        for name, role in self._roles.items():
            lines |= {role.control.fileno(): (name, True), role.pulse.fileno(): (name, False)}
        full = [each.control.fileno() for each in self._roles.values() if each.control.left_bytes]
        ready = self._channel.poll(round(1e3 * wait_s), lines, full)
        self._read()
        # Before the work below, which may take longer than a coordinator may be silent.
        if self._coordinator is not None and now_ms() - self._heard_ms > 1e3 * session.SILENT_S:
            self._over(f"its coordinator was silent for {session.SILENT_S:g} s")
        for descriptor in ready:
            name, speaks = lines[descriptor]
            if name in self._roles:
                self._hear(name, speaks)
        self._speak_for_starving()

    # --- the coordinator -------------------------------------------------------------------------

    def _read(self) -> None:
        for _ in range(256):
            if (found := self._channel.receive()) is None:
                return
            self.take(bytes(found[0]), found[1:])

    def take(self, sender: bytes, frames: Sequence[bytes | memoryview]) -> None:
        try:
            if len(frames) != 1:
                raise BrokenRecordError("is not one frame")
            self._obey(sender, session.FROM_COORDINATOR.decoded(frames[0]))
        except BrokenRecordError:
            self._drop("no order")

    def _drop(self, what: str) -> None:
        """Count a dropped message, and log the 1st, 2nd, 4th, 8th, ... one."""
        self._dropped += 1
        if not self._dropped & (self._dropped - 1):
            LOG.warning("dropped %s: message %d that was none for us", what, self._dropped)

    def _obey(self, sender: bytes, order: session.FromCoordinator) -> None:
        if isinstance(order, session.HowAreYou):
            self._send(sender, self.status())
            return
        if isinstance(order, session.Hello):
            self._open(sender, order)
            return
        if sender != self._coordinator:
            self._drop("an order of nobody's session")
            return
        self._heard_ms = now_ms()
        match order:
            case session.Start(name):
                self._start(name)
            case session.ForwardOrder(name, data):
                self._pass_on(name, data)
            case session.EndProcess(name, now):
                self._end(name, now)
            case session.Alive(sent_ms):
                self._send(sender, session.TimeIs(sent_ms, now_ms()))
            case session.Leave():
                self._over("its coordinator left")

    def _open(self, sender: bytes, hello: session.Hello) -> None:
        ours = self._versions
        if self._coordinator is not None and sender != self._coordinator:
            self._send(sender, session.Declined("it is at work for another coordinator"))
        elif ours.fault(hello.versions) is None:
            if sender != self._coordinator:
                self._sessions += 1
                LOG.info("session %d begins", self._sessions)
            self._coordinator, self._heard_ms = sender, now_ms()
            self._send(sender, session.Welcome(ours))
        else:
            self._send(sender, session.Declined(str(hello.versions.fault(ours))))

    def status(self) -> session.Status:
        up_s = (now_ms() - self._since_ms) / 1e3
        roles = tuple(self._roles)
        who = self._versions, self._processor
        return session.Status(
            *who, up_s, self._sessions, roles, self._transport.refused, self._dropped
        )

    def _send(self, receiver: bytes, record: session.FromDaemon) -> None:
        self._channel.send(receiver, session.FROM_DAEMON.encoded(record))

    def _tell(self, record: session.FromDaemon) -> None:
        if self._coordinator is not None:
            self._send(self._coordinator, record)

    # --- its processes ---------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        if (
            name in self._roles
            or len(self._roles) >= session.MOST_ROLES
            or not session.NAME.fullmatch(name)
        ):
            self._tell(session.Declined(f"it starts no process {name[:40]!r} in this session"))
            return
        body = importlib.import_module(WORKER).worker_main
        try:
            with self._descriptors.all_of_them():
                started = start_worker(fork_server(), body, name, True, self._models)
        except RunError as error:
            self._tell(session.Declined(str(error)))
            return
        self._roles[name] = _Role(started.process, started.control, started.look)
        LOG.info("session %d: %s begins", self._sessions, name)

    def _pass_on(self, name: str, order: bytes) -> None:
        """Send an order to a process, or end the process if too many orders wait."""
        if (role := self._roles.get(name)) is None:
            return
        if role.control.left_bytes + len(order) > MOST_LEFT_BYTES:
            LOG.warning("session %d: %s takes no orders", self._sessions, name)
            self._end(name, now=True)
            return
        with suppress(ConnectionError):  # ``_hear`` ends the process
            role.control.put(order)

    def _hear(self, name: str, speaks: bool) -> None:
        """Forward a process's answers or signs of life, and send the rest of its orders."""
        role = self._roles[name]
        try:
            if speaks:
                role.control.read()
                while (said := role.control.take()) is not None:
                    self._tell(session.ForwardAnswer(name, said))
                with suppress(ConnectionError):
                    role.control.flush()
            else:
                role.shown_ms = now_ms()
                self._tell(session.Beats(name, _beats(role.pulse)))
        except (EOFError, OSError):
            self._end(name, now=False)

    def _speak_for_starving(self) -> None:
        """Send signs of life for processes that only lack a processor (``pulse.py``)."""
        for name, role in self._roles.items():
            pid = role.process.pid
            if now_ms() - role.shown_ms > MOST_BEAT_MS and pid is not None and starves(pid):
                role.shown_ms = now_ms()
                self._tell(session.Beats(name, session.AT_WORK))

    def _end(self, name: str, now: bool) -> None:
        role = self._roles.pop(name, None)
        if role is None:
            return
        role.control.close()  # a worker ends when its control line does
        role.pulse.close()
        role.process.join(0.0 if now else 1.0)
        exit_code = end_process(role.process)
        self._tell(session.Ended(name, exit_code))
        LOG.info("session %d: %s ended (exit code %s)", self._sessions, name, exit_code)

    def _over(self, why: str) -> None:
        for role in self._roles.values():
            role.control.close()  # all lines first, so that the processes end together
        for name in [*self._roles]:
            self._end(name, now=False)
        self._tell(session.Declined(why))
        LOG.info("session %d is over: %s", self._sessions, why)
        self._coordinator = None


def _beats(pulse: Connection) -> bytes:
    found = os.read(pulse.fileno(), 4096)
    if not found:
        raise EOFError
    return found
