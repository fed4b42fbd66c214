"""``treepipe worker``: takes one coordinator's session at a time, and starts the roles it is given.

A role's process is the same as on the coordinator's own host (``worker.py``), forked from this
daemon's own fork server; the daemon hands on what the two say to each other, and the process's
signs of life. It speaks for one that cannot show itself, since it waits for a processor.

Law of this file: whatever comes in, the daemon goes on; when a session ends, however it ends, none
of its processes is left.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import zmq

from treepipe.core.errors import RunError, UserError
from treepipe.core.losses import MOST_BEAT_MS
from treepipe.executor.clock import now_ms
from treepipe.executor.codec import BrokenRecordError
from treepipe.executor.descriptors import Descriptors
from treepipe.executor.fork_server import end_process, fork_server, start_worker
from treepipe.executor.frames import Frames
from treepipe.executor.keys import KeyPair, Porter, is_loopback, tcp
from treepipe.executor.processor import Processor
from treepipe.executor.pulse import AT_WORK, starves
from treepipe.executor.session import (
    FROM_COORDINATOR,
    FROM_DAEMON,
    MOST_ORDER_BYTES,
    MOST_ORDERS,
    MOST_ROLES,
    NAME,
    SILENT_S,
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

LOOK_S = 0.25
"""How often it looks whether its coordinator is still there."""
HANDSHAKE_MS = 5_000
"""How long a connection gets to say who it is; then it is closed, and its descriptor free."""
MOST_LEFT_BYTES = MOST_ORDER_BYTES
"""Of orders that wait for a process which does not take them; with more it is ended."""
LOG = logging.getLogger("treepipe.worker")
"""What it was asked to do and by how many strangers; never what a message says."""


@dataclass(slots=True)
class _Role:
    """A process of the session, our ends of its lines, and when it last showed itself."""

    process: BaseProcess
    control: Frames
    pulse: Connection
    shown_ms: float = field(default_factory=now_ms)


class Daemon:
    """Listens on one address; a context manager."""

    def __init__(self, host: str, port: int, key: KeyPair | None, models: Path | None) -> None:
        """Args:
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
        self._versions, self._processor = Versions.here(), Processor.here()  # reading files
        self._context = zmq.Context()
        self._porter = None if key is None else Porter(self._context, key)
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.MAXMSGSIZE, MOST_ORDER_BYTES),
            (zmq.RCVHWM, MOST_ORDERS),
            (zmq.ROUTER_HANDOVER, 1),  # a coordinator that connects again is the same one
            (zmq.IPV6, ":" in host),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        ):
            self._socket.setsockopt(option, value)
        if key is not None:
            key.open(self._socket)
        try:
            self._socket.bind(tcp(host, port or "*"))
        except zmq.ZMQError as error:
            self.close()
            raise UserError(f"--listen {host}:{port}: {error}") from None
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://")
        self._coordinator: bytes | None = None
        self._heard_ms = 0.0
        self._roles: dict[str, _Role] = {}
        self._sessions = self._dropped = 0

    def __enter__(self) -> Daemon:
        """Load what its processes run, with PyTorch behind it: only now that it has its address."""
        self._descriptors = Descriptors()
        fork_server()  # which loads the same meanwhile
        import treepipe.executor.worker  # noqa: F401

        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, if there is one, and free the address."""
        if not self._socket.closed and getattr(self, "_coordinator", None) is not None:
            self._over("its worker was ended")
        self._socket.close()
        if self._porter is not None:
            self._porter.close()
        self._context.destroy(linger=0)

    def serve(self) -> None:
        """Serve for ever."""
        while True:
            self.step(LOOK_S)

    def step(self, wait_s: float) -> None:
        """Do what is to be done within this time."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        lines = dict[int, tuple[str, bool]]()
        for name, role in self._roles.items():
            for line, speaks in ((role.control, True), (role.pulse, False)):
                lines[line.fileno()] = name, speaks
                left = zmq.POLLOUT if speaks and role.control.left_bytes else 0
                poller.register(line.fileno(), zmq.POLLIN | left)
        ready = dict(poller.poll(round(1e3 * wait_s)))
        if self._socket in ready:
            self._read()
        # Now, since what is done below may take longer than a coordinator may be silent.
        if self._coordinator is not None and now_ms() - self._heard_ms > 1e3 * SILENT_S:
            self._over(f"its coordinator was silent for {SILENT_S:g} s")
        for descriptor in ready:
            name, speaks = lines.get(descriptor, ("", False))
            if name in self._roles:
                self._hear(name, speaks)
        self._speak_for_starving()

    # --- the coordinator -------------------------------------------------------------------------

    def _read(self) -> None:
        for _ in range(256):
            try:
                sender, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self.take(sender.bytes, [frame.buffer for frame in frames])

    def take(self, sender: bytes, frames: list[Any]) -> None:
        """A message, whoever sent it."""
        try:
            if len(frames) != 1:
                raise BrokenRecordError("is not one frame")
            self._obey(sender, FROM_COORDINATOR.decoded(frames[0]))
        except BrokenRecordError:
            self._drop("no order")

    def _drop(self, what: str) -> None:
        """Count a message; of many, fewer and fewer are logged."""
        self._dropped += 1
        if not self._dropped & (self._dropped - 1):
            LOG.warning("dropped %s: message %d that was none for us", what, self._dropped)

    def _obey(self, sender: bytes, order: FromCoordinator) -> None:
        if isinstance(order, HowAreYou):
            self._send(sender, self.status())
            return
        if isinstance(order, Hello):
            self._open(sender, order)
            return
        if sender != self._coordinator:
            self._drop("an order of nobody's session")
            return
        self._heard_ms = now_ms()
        match order:
            case Start(name):
                self._start(name)
            case Told(name, data):
                self._pass_on(name, data)
            case EndProcess(name, now):
                self._end(name, now)
            case Alive(sent_ms):
                self._send(sender, TimeIs(sent_ms, now_ms()))
            case Leave():
                self._over("its coordinator left")

    def _open(self, sender: bytes, hello: Hello) -> None:
        ours = self._versions
        if self._coordinator is not None and sender != self._coordinator:
            self._send(sender, Declined("it is at work for another coordinator"))
        elif ours.fault(hello.versions) is None:
            if sender != self._coordinator:
                self._sessions += 1
                LOG.info("session %d begins", self._sessions)
            self._coordinator, self._heard_ms = sender, now_ms()
            self._send(sender, Welcome(ours))
        else:
            self._send(sender, Declined(str(hello.versions.fault(ours))))

    def status(self) -> Status:
        refused = 0 if self._porter is None else self._porter.refused
        up_s = (now_ms() - self._since_ms) / 1e3
        roles = tuple(self._roles)
        who = self._versions, self._processor
        return Status(*who, up_s, self._sessions, roles, refused, self._dropped)

    def _send(self, receiver: bytes, record: FromDaemon) -> None:
        self._socket.send_multipart([receiver, FROM_DAEMON.encoded(record)])

    def _tell(self, record: FromDaemon) -> None:
        if self._coordinator is not None:
            self._send(self._coordinator, record)

    # --- its processes ---------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        if name in self._roles or len(self._roles) >= MOST_ROLES or not NAME.fullmatch(name):
            self._tell(Declined(f"it starts no process {name[:40]!r} in this session"))
            return
        from treepipe.executor.worker import worker_main  # with PyTorch behind it: not at the top

        try:
            with self._descriptors.all_of_them():
                started = start_worker(fork_server(), worker_main, name, True, self._models)
        except RunError as error:
            self._tell(Declined(str(error)))
            return
        self._roles[name] = _Role(started.process, started.control, started.look)
        LOG.info("session %d: %s begins", self._sessions, name)

    def _pass_on(self, name: str, order: bytes) -> None:
        """Give a process an order; one that takes none of many is of no more use."""
        if (role := self._roles.get(name)) is None:
            return
        if role.control.left_bytes + len(order) > MOST_LEFT_BYTES:
            LOG.warning("session %d: %s takes no orders", self._sessions, name)
            self._end(name, now=True)
            return
        with suppress(ConnectionError):  # its end is heard soon
            role.control.put(order)

    def _hear(self, name: str, speaks: bool) -> None:
        """Hand on what a process says, or its signs of life; it gets what is left of its orders."""
        role = self._roles[name]
        try:
            if speaks:
                role.control.read()
                while (said := role.control.take()) is not None:
                    self._tell(Said(name, said))
                with suppress(ConnectionError):
                    role.control.flush()
            else:
                role.shown_ms = now_ms()
                self._tell(Beats(name, _beats(role.pulse)))
        except (EOFError, OSError):
            self._end(name, now=False)

    def _speak_for_starving(self) -> None:
        """Whoever would run if this host had a processor free is not silent (``pulse.py``)."""
        for name, role in self._roles.items():
            pid = role.process.pid
            if now_ms() - role.shown_ms > MOST_BEAT_MS and pid is not None and starves(pid):
                role.shown_ms = now_ms()
                self._tell(Beats(name, AT_WORK))

    def _end(self, name: str, now: bool) -> None:
        role = self._roles.pop(name, None)
        if role is None:
            return
        role.control.close()  # a worker ends when its control line does
        role.pulse.close()
        role.process.join(0.0 if now else 1.0)
        exit_code = end_process(role.process)
        self._tell(Ended(name, exit_code))
        LOG.info("session %d: %s ended (exit code %s)", self._sessions, name, exit_code)

    def _over(self, why: str) -> None:
        for role in self._roles.values():
            role.control.close()  # of all first, so that they end together
        for name in [*self._roles]:
            self._end(name, now=False)
        self._tell(Declined(why))
        LOG.info("session %d is over: %s", self._sessions, why)
        self._coordinator = None


def _beats(pulse: Connection) -> bytes:
    found = os.read(pulse.fileno(), 4096)
    if not found:
        raise EOFError
    return found
