"""The workers' control lines: the controller's orders and their answers.

Invariant: a caller that waits for one worker learns of the end, failure or silence of any other,
and never waits in the middle of a message, neither reading nor writing.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from math import ceil, inf
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias, TypeVar

from treepipe.core.errors import UserError
from treepipe.executor.hosts.fork_server import WorkerLines, end_process
from treepipe.executor.hosts.remote import CONNECT_S, RemoteProcess
from treepipe.executor.run.pulse import LostWorkerError, Watch, WorkerError
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.codec import BrokenRecordError
from treepipe.executor.wire.control import ANSWERS, ORDERS, Ask, Failed, Holdings, Notes, Order
from treepipe.executor.wire.frames import Frames

Process: TypeAlias = BaseProcess | RemoteProcess
Asked = TypeVar("Asked", Notes, Holdings)
Answer = TypeVar("Answer")
END_S = 1.0
"""Time for a worker to end by itself before it is killed."""


class ControlLines:
    """One line per worker by name; iteration yields the workers that still receive orders.

    Attributes:
        processes: processes of all workers that were started, forgotten ones included.
        watch: the watch of their pulses.
    """

    def __init__(self, timeout_ms: float, news: Mapping[type, Callable[[str, Any], None]]) -> None:
        """Create lines; ``news`` holds callbacks, by kind, for records that answer no question."""
        self.processes: dict[str, Process] = {}
        self.watch = Watch(timeout_ms)
        self._news = news
        self._controls: dict[str, Frames] = {}
        self._kept: dict[str, list[Any]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._controls)

    def __contains__(self, name: str) -> bool:
        return name in self._controls

    def add(self, name: str, started: WorkerLines) -> None:
        """Add a worker, and watch its pulse."""
        process = started.process
        self.processes[name], self._controls[name], self._kept[name] = process, started.control, []
        self.watch.add(name, started.look, getattr(process, "pid", None))

    def forget(self, name: str) -> None:
        """Close a worker's line, upon which the worker ends."""
        control = self._controls.pop(name, None)
        if control is not None:
            control.close()  # a worker ends when its control line does
        self.watch.forget(name)

    def close(self) -> None:
        """Forget all workers."""
        for name in [*self]:
            self.forget(name)

    def end(self, patience_ms: float = inf) -> list[str]:
        """End all processes; return when they are gone, with the names of those whose hosts do not
        confirm it.

        ``patience_ms`` is the longest silence of a host that is still waited for.
        """
        self.close()
        _join(self.processes.values(), END_S)
        for process in self.processes.values():
            if process.is_alive():
                process.kill()  # all first: waiting for a host that is gone takes long
        there = {n: each for n, each in self.processes.items() if isinstance(each, RemoteProcess)}
        answering = [each for each in there.values() if each.answers(patience_ms)]
        _join(answering, CONNECT_S)
        for process in self.processes.values():
            if isinstance(process, BaseProcess):
                end_process(process)
        self.processes.clear()
        return [n for n, each in there.items() if each not in answering or each.is_alive()]

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
        kept = self._kept.get(name, [])
        place = next((i for i, said in enumerate(kept) if isinstance(said, kind)), None)
        return None if place is None else kept.pop(place)

    def order(self, name: str, order: Order) -> None:
        """Send an order to a worker; ``listen`` sends the part that does not fit into its line now.

        The loss of a worker is raised by ``listen``, since the worker may have reported the reason.
        """
        with suppress(ConnectionError):
            self._controls[name].put(ORDERS.encoded(order))

    def listen(self, until_ms: float | None = None) -> None:
        """Read every line that is ready by then, or soon, and keep the answers for ``take``."""
        left_ms = self.watch.look_ms
        if until_ms is not None:
            left_ms = min(left_ms, max(0.0, until_ms - now_ms()))
        self.watch.look()
        self._exchange(left_ms)
        for name, control in [*self._controls.items()]:
            while name in self and (said := self._said(name, control)) is not None:
                self._news.get(type(said), self._keep)(name, said)

    def _exchange(self, within_ms: float) -> None:
        """Read what arrives first within this time, and send the rest of earlier orders."""
        poll, lines = select.poll(), {each.fileno(): each for each in self._controls.values()}
        for control in lines.values():
            poll.register(control, select.POLLIN | (select.POLLOUT if control.left_bytes else 0))
            if control.holds:  # it was read before the failure of another worker
                within_ms = 0.0
        for descriptor, events in poll.poll(ceil(within_ms)):
            lines[descriptor].read()
            if events & select.POLLOUT:
                with suppress(ConnectionError):
                    lines[descriptor].flush()

    def _keep(self, name: str, said: Any) -> None:
        self._kept[name].append(said)

    def _said(self, name: str, control: Frames) -> Any:
        try:
            data = control.take()
            said = None if data is None else ANSWERS.decoded(data)
        except EOFError:
            raise self._died(name) from None
        except BrokenRecordError:
            raise WorkerError(name, "sent something that is no answer") from None
        if not isinstance(said, Failed):
            return said
        if said.by_user:
            raise UserError(said.sentence)
        raise WorkerError(name, f"failed: {said.sentence}")

    def _died(self, name: str) -> LostWorkerError:
        process = self.processes[name]
        process.join(END_S)
        if isinstance(process, RemoteProcess) and process.exitcode is None:
            return LostWorkerError(name, f"is lost: {process.why}")
        return LostWorkerError(name, f"died (exit code {process.exitcode})")


def _join(processes: Iterable[Process], within_s: float) -> None:
    deadline = now_ms() + 1e3 * within_s
    for process in processes:
        process.join(max(0.0, (deadline - now_ms()) / 1e3))
