"""``treepipe worker``: serves one coordinator's session at a time and starts its workers.

A worker's process is the same as on the coordinator's host (``run/worker.py``), forked from the
daemon's own fork server, and dials the coordinator itself. The daemon starts and ends processes,
reports their end, and tells the time.

Invariant: no message stops the daemon, and no process outlives its session.
"""

from __future__ import annotations

import importlib
import logging
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hmac import compare_digest
from pathlib import Path
from typing import Any

from treepipe.core.errors import RunError, UserError
from treepipe.executor.hosts.fork_server import fork_server, starves
from treepipe.executor.hosts.processes import WORKER, Processes
from treepipe.executor.wire import records
from treepipe.executor.wire.addresses import is_loopback
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.codec import BrokenRecordError
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.line import BrokenLineError, Rules
from treepipe.executor.wire.processor import Processor, Versions
from treepipe.executor.wire.transport import ZeroMQ

LOOK_S = 0.25
"""Time between two checks for the coordinator's silence."""
SILENT_S = 5.0
"""Silence of a coordinator after which the daemon ends its session."""
MOST_WORKERS = 64
"""Limit of the processes of one session."""
MOST_UNREAD = 16
"""Limit of one connection's unread records in memory."""
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
        self._workers, self._since_ms = Processes(elsewhere=True, models=models), now_ms()
        self._versions, self._processor = Versions.here(), Processor.here()  # from files
        self._rules = Rules("daemon", "apart")  # of the session's line
        self._coordinator, self._session = b"", b""
        self._transport = ZeroMQ(key)
        try:
            self._channel = self._transport.listen(
                host, port, MOST_UNREAD, records.TEXT, answers=True
            )
        except OSError as error:
            self.close()
            raise UserError(f"--listen {host}:{port}: {error.strerror}") from None
        self.address = self._channel.address.removeprefix("tcp://")
        self._heard_ms = self._looked_ms = 0.0
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
        if self._in_session:
            self._over("its worker was ended")
        self._transport.close()

    def serve(self) -> None:
        while True:
            self.step(LOOK_S)

    def step(self, wait_s: float) -> None:
        """Serve the records and the ends of processes of one wait."""
        self._channel.poll(round(1e3 * wait_s), self._workers.watched)
        for _ in range(256):
            if (found := self._channel.receive()) is None:
                break
            self.take(bytes(found[0]), found[1:])
        # Before the work below, which may take longer than a coordinator may be silent.
        if self._in_session and now_ms() - self._heard_ms > 1e3 * SILENT_S:
            self._over(f"its coordinator was silent for {SILENT_S:g} s")
        for name, exit_code in self._workers.ended():
            LOG.info("session %d: %s ended (exit code %s)", self._sessions, name, exit_code)
            self._tell(records.Ended(name, exit_code or 0))
        if now_ms() - self._looked_ms > 1e3 * LOOK_S:
            self._speak_for_starving()

    # --- the coordinator -------------------------------------------------------------------------

    @property
    def _in_session(self) -> bool:
        return self._rules.state == "session"

    def take(self, sender: bytes, frames: Sequence[bytes | memoryview]) -> None:
        """Serve what a connection has sent, or count and drop it."""
        try:
            if len(frames) != 1:
                raise BrokenRecordError("is not one frame")
            record, rule = self._rules.decoded(frames[0])
            if isinstance(record, records.HowAreYou):
                self._send(sender, self.status())
            elif isinstance(record, records.Hello):
                self._greet(sender, record)
            elif not self._is_ours(sender, record):
                self._drop("a record of nobody's session")
            elif self._rules.admits(record, rule):
                self._heard_ms = now_ms()
                self._obey(sender, record)
        except (BrokenRecordError, BrokenLineError):
            self._drop("no record")

    def _is_ours(self, sender: bytes, record: Any) -> bool:
        """Whether the session's coordinator sent this. Its thread, on another connection, says
        that it is alive."""
        if not self._in_session:
            return False
        if isinstance(record, records.Alive):
            return compare_digest(record.session, self._session)
        return sender == self._coordinator

    def _drop(self, what: str) -> None:
        """Count a dropped message, and log the 1st, 2nd, 4th, 8th, ... one."""
        self._dropped += 1
        if not self._dropped & (self._dropped - 1):
            LOG.warning("dropped %s: message %d that was none for us", what, self._dropped)

    def _greet(self, sender: bytes, hello: records.Hello) -> None:
        ours = self._versions
        if self._in_session and sender != self._coordinator:
            self._send(sender, records.Declined("it is at work for another coordinator"))
        elif (fault := hello.versions.fault(ours)) is not None:
            self._send(sender, records.Declined(fault))
        else:
            if not self._in_session:
                self._sessions += 1
                LOG.info("session %d begins", self._sessions)
            self._rules.state, self._heard_ms = "session", now_ms()
            self._coordinator, self._session = sender, hello.session
            self._send(sender, records.Welcome())

    def _obey(self, sender: bytes, record: Any) -> None:
        match record:
            case records.Start(post):
                self._start(post)
            case records.EndProcess(name):
                self._workers.kill(name)
            case records.Alive(_, sent_ms):
                self._send(sender, records.TimeIs(sent_ms, now_ms()))
            case records.Leave():
                self._over("its coordinator left")

    def status(self) -> records.Status:
        up_s, names = (now_ms() - self._since_ms) / 1e3, tuple(self._workers)
        who = self._versions, self._processor
        counts = self._transport.refused, self._dropped
        return records.Status(*who, up_s, self._sessions, names, *counts)

    def _send(self, receiver: bytes, record: object) -> None:
        self._channel.send(receiver, records.CODEC.encoded(record))

    def _tell(self, record: object) -> None:
        self._send(self._coordinator, record)

    # --- its processes ---------------------------------------------------------------------------

    def _start(self, post: records.Post) -> None:
        known, named = post.name in self._workers, records.NAME.fullmatch(post.name)
        if known or not named or len([*self._workers]) >= MOST_WORKERS:
            self._over(f"it starts no process {post.name[:40]!r} in this session")
            return
        try:
            with self._descriptors.all_of_them():
                self._workers.start(post)
        except RunError as error:
            self._over(str(error))
            return
        LOG.info("session %d: %s begins", self._sessions, post.name)

    def _speak_for_starving(self) -> None:
        """Name the processes that are ready to run, and may only lack a processor."""
        self._looked_ms = now_ms()
        pids = {name: self._workers.pid(name) for name in self._workers}
        names = tuple(name for name, pid in pids.items() if pid is not None and starves(pid))
        if names:
            self._tell(records.Starved(names))

    def _over(self, why: str) -> None:
        for name, exit_code in self._workers.end():
            self._tell(records.Ended(name, exit_code or 0))
        self._tell(records.Declined(why))
        LOG.info("session %d is over: %s", self._sessions, why)
        self._rules.state = "apart"
