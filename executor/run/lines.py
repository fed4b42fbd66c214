"""The coordinator's lines to its workers: one port, which all of them dial.

Invariant: a caller that waits for one worker learns of the end, failure or silence of any other,
and never waits for a worker in the middle of a record.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any, TypeVar

from treepipe.core.errors import UserError
from treepipe.executor.hosts.processes import KILLED_S, Processes
from treepipe.executor.hosts.remote import Host, RemoteHost
from treepipe.executor.run.pulse import LostWorkerError, Watch, WorkerError
from treepipe.executor.wire.addresses import LOOPBACK
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.line import SECRET_BYTES, BrokenLineError, Line, secret_of
from treepipe.executor.wire.processor import Versions
from treepipe.executor.wire.records import (
    SPANS,
    Ask,
    Failed,
    Heartbeat,
    Here,
    Holdings,
    Lacks,
    Leave,
    Notes,
    Post,
)
from treepipe.executor.wire.transport import Channel, ZeroMQ

Asked = TypeVar("Asked", Notes, Holdings)
Answer = TypeVar("Answer")
END_S = 1.0
"""Time for a worker to end by itself before it is killed."""
FAILED = 3
"""Exit code of a worker that has reported why."""
LOST_MS = 60_000.0
"""Time after which a record that does not arrive is lost, even a long one on a slow link."""
LAST_MS = 5
"""Wait for the last records of a worker that ended."""


@dataclass(slots=True)
class _Worker:
    """The coordinator's end of a line.

    Attributes:
        peer: name of the worker's connection, None before its first record.
        later: orders that wait for that.
        heard, kept: records that came, in their order, and those of them that ``take`` returns.
        end: exit code (None: unknown) and reason of the process's end, None while it runs.
        behind: numbers of records by which the two ends differ, and since when.
    """

    line: Line
    host: Host
    peer: bytes | None = None
    later: list[object] = field(default_factory=list)
    heard: deque[Any] = field(default_factory=deque)
    kept: list[Any] = field(default_factory=list)
    end: tuple[int | None, str] | None = None
    behind: tuple[object, float] = (None, 0.0)


class Lines:
    """One line per worker by name; iteration yields the workers that still receive orders.

    Attributes:
        hosts: hosts of all workers that were started and have not ended, forgotten ones included.
        watch: the watch of their heartbeats.
        torches: versions of PyTorch on the workers' hosts.
        dropped: messages of strangers, which know no worker's secret.
    """

    def __init__(
        self,
        timeout_ms: float,
        news: Mapping[type, Callable[[str, Any], None]],
        beside: Callable[[], object] = lambda: None,
    ) -> None:
        """Create lines.

        Args:
            news: callbacks, by kind, for records that answer no question.
            beside: callback at each reading.
        """
        self.hosts, self.torches = dict[str, Host](), dict[str, str]()
        self.watch, self.dropped = Watch(timeout_ms), 0
        self._news, self._beside = news, beside
        self._workers: dict[str, _Worker] = {}
        self._names: dict[bytes, str] = {}
        self._channel: Channel | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __contains__(self, name: str) -> bool:
        return name in self._workers

    def serves(self, name: str) -> bool:
        """Whether a worker has loaded its models, and still receives orders."""
        return name in self._workers and self._workers[name].line.state == "serving"

    # --- workers ---------------------------------------------------------------------------------

    def open(self, host: str = LOOPBACK, port: int = 0, key: KeyPair | None = None) -> None:
        """Listen for workers that hold this key. Raises ``UserError`` if the port is in use."""
        self._key, self._transport = key, ZeroMQ(key)
        try:
            self._channel = self._transport.listen(host, port, 0, SPANS, answers=True)
        except OSError as error:
            self._transport.close()
            raise UserError(
                f"key base_port: port {port}, wanted by the coordinator, cannot be used on {host}: "
                f"{error.strerror}"
            ) from None

    @property
    def address(self) -> str:
        """The coordinator's port."""
        assert self._channel is not None, "opened first"
        return self._channel.address

    def start(self, name: str, host: Host, way: str) -> None:
        """Start a worker on a host, from which ``way`` is the coordinator's address. Raises
        ``RunError`` if it cannot be started."""
        secret = secrets.token_bytes(SECRET_BYTES)
        host.start(Post(name, way, self.watch.timeout_ms, secret, self._key))
        self.hosts[name], self._names[secret] = host, name
        self._workers[name] = _Worker(Line("coordinator", secret), host)
        self.watch.add(name, host.pid(name))

    def forget(self, name: str) -> None:
        """Let a worker leave, and hear nothing more of it."""
        if name in self._workers:
            self._send(self._workers[name], Leave())
            del self._workers[name]
        self.watch.forget(name)

    def end(self, patience_ms: float = inf) -> list[str]:
        """End all workers and free the port; return when they are gone, with the names of those
        whose hosts do not confirm it.

        ``patience_ms`` is the longest silence of a host that is still waited for.
        """
        for name in [*self]:
            self.forget(name)
        self._await_ends(self.hosts, END_S)
        for name, host in self.hosts.items():
            host.kill(name)  # all first: waiting for a host that is gone takes long
        self._await_ends(
            [n for n, each in self.hosts.items() if each.answers(patience_ms)], KILLED_S
        )
        for host in self._distinct_hosts:
            if isinstance(host, Processes):
                host.end()
        left = [name for name, host in self.hosts.items() if isinstance(host, RemoteHost)]
        self.hosts.clear()
        self._names.clear()
        if self._channel is not None:
            self._transport.close()
            self._channel = None
        return left

    def _await_ends(self, names: Collection[str], within_s: float) -> None:
        until_ms = now_ms() + 1e3 * within_s
        while any(name in self.hosts for name in names) and (left_ms := until_ms - now_ms()) > 0:
            self._read(ceil(left_ms))

    # --- records ---------------------------------------------------------------------------------

    def ask(self, name: str, kind: type[Asked]) -> Asked:
        self.order(name, Ask(kind.__name__))  # type: ignore[arg-type]  # one of the two
        return self.answer(name, kind)

    def answer(self, name: str, kind: type[Answer]) -> Answer:
        """Wait for one worker's answer while watching all of them."""
        while (found := self.take(name, kind)) is None:
            self.listen()
        return found

    def take(self, name: str, kind: type[Answer]) -> Answer | None:
        """Return the first record of that kind that a worker has sent, or None."""
        kept = self._workers[name].kept if name in self else []
        place = next((i for i, said in enumerate(kept) if isinstance(said, kind)), None)
        return None if place is None else kept.pop(place)

    def order(self, name: str, order: object) -> None:
        """Send an order to a worker, or keep it until the worker has dialled.

        The loss of a worker is raised by ``listen``, since the worker may have reported the reason.
        """
        self._send(self._workers[name], order)

    def listen(self, until_ms: float | None = None) -> None:
        """Read the records that come by then, or soon, and keep the answers for ``take``."""
        left_ms = self.watch.look_ms
        if until_ms is not None:
            left_ms = min(left_ms, max(0.0, until_ms - now_ms()))
        self._look()
        if any(each.heard or each.end for each in self._workers.values()):
            left_ms = 0.0  # they came before the failure of another worker
        self._read(ceil(left_ms))
        for name, worker in [*self._workers.items()]:
            while name in self and worker.heard:
                self._hear(name, worker.heard.popleft())
            if name in self and worker.end is not None:
                raise self._died(name, *worker.end)
            if name in self and (number := worker.line.missing(now_ms())) is not None:
                raise _cut_off(name, f"its record {number} did not arrive, though later ones did")

    def _look(self) -> None:
        try:
            self.watch.look()
        except LostWorkerError as lost:
            if self._workers[lost.name].peer is None:
                lost = _cut_off(lost.name, f"it was started, but did not dial {self.address}")
            raise lost from None

    @property
    def _distinct_hosts(self) -> list[Host]:
        return [*{id(each): each for each in self.hosts.values()}.values()]

    def _send(self, worker: _Worker, record: object) -> None:
        if worker.peer is None:
            worker.later.append(record)
        elif self._channel is not None and worker.line.state != "over":
            self._channel.send(worker.peer, worker.line.put(record))

    def _read(self, within_ms: int) -> None:
        """Take in what comes first within this time: records, or the end of a process."""
        assert self._channel is not None, "opened first"
        hosts = self._distinct_hosts
        self._channel.poll(within_ms, [each for host in hosts for each in host.watched])
        self._receive()
        for host in hosts:
            for name in host.starved:
                self.watch.beat(name, idle=False)
            host.starved.clear()
            for name, exit_code in host.ended():
                self._ended(name, exit_code, host)
        self._beside()

    def _receive(self) -> None:
        assert self._channel is not None, "opened first"
        while (frames := self._channel.receive()) is not None:
            peer, *rest = frames
            name = self._names.get(secret_of(rest[0])) if len(rest) == 1 else None
            self.dropped += name is None
            worker = None if name is None else self._workers.get(name)
            if name is None or worker is None:
                continue
            try:
                for record in worker.line.take(rest[0], now_ms()):
                    self._admit(name, worker, bytes(peer), record)
            except BrokenLineError as error:
                worker.heard.append(WorkerError(name, str(error)))

    def _admit(self, name: str, worker: _Worker, peer: bytes, record: Any) -> None:
        match record:
            case Heartbeat():
                self.watch.beat(name, record.idle)
                self._compare(name, worker, record)
            case Here():
                worker.peer, self.torches[name] = peer, record.versions.torch
                if (fault := record.versions.fault(Versions.here())) is not None:
                    worker.heard.append(WorkerError(name, f"cannot serve: {fault}"))
                later, worker.later = worker.later, []
                for order in later:
                    self._send(worker, order)
            case _:
                worker.heard.append(record)

    def _compare(self, name: str, worker: _Worker, beat: Heartbeat) -> None:
        """Report a line whose last records are lost: no later ones show it."""
        line = worker.line
        lost = beat.sent > line.taken or (beat.idle and beat.taken < line.sent)
        counts = (line.sent, line.taken, beat.sent, beat.taken) if lost else None
        if counts is None or counts != worker.behind[0]:
            worker.behind = counts, now_ms()
        elif now_ms() - worker.behind[1] > LOST_MS:
            worker.heard.append(_cut_off(name, "records are lost"))

    def _ended(self, name: str, exit_code: int | None, host: Host) -> None:
        """Note the end of a worker's process, after its last records."""
        if self.hosts.get(name) is host:
            del self.hosts[name]
        if (worker := self._workers.get(name)) is None:
            return
        until_ms = now_ms() + (1e3 * END_S if exit_code == FAILED else LAST_MS)
        while worker.line.state != "over" and now_ms() < until_ms:
            assert self._channel is not None  # it receives
            self._channel.poll(LAST_MS)
            self._receive()
        worker.end = exit_code, host.why

    def _hear(self, name: str, said: Any) -> None:
        """Pass on a record, or raise what it says; or a worker's fault that was found meanwhile."""
        if isinstance(said, WorkerError):
            raise said
        if isinstance(said, Lacks) and not said.sender:
            raise _cut_off(
                name, f"record {said.number} for it did not arrive, though later ones did"
            )
        if not isinstance(said, Failed):
            self._news.get(type(said), self._keep)(name, said)
        elif said.by_user:
            raise UserError(said.sentence)
        else:
            raise WorkerError(name, f"failed: {said.sentence}")

    def _keep(self, name: str, said: Any) -> None:
        self._workers[name].kept.append(said)

    @staticmethod
    def _died(name: str, exit_code: int | None, why: str) -> LostWorkerError:
        died = f"is lost: {why}" if exit_code is None else f"died (exit code {exit_code})"
        return LostWorkerError(name, died)


def _cut_off(name: str, why: str) -> LostWorkerError:
    return LostWorkerError(name, f"is cut off: {why}", "cut")
