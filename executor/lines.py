"""The workers' control lines: what each is told and what it answers, while all are watched.

Law of this file: whoever waits for one worker hears of the end, the failure or the silence of any
other; no worker is waited for in the middle of a message, to read it or to write it.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from math import ceil, inf
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias, TypeVar

from treepipe.core.errors import UserError
from treepipe.executor.clock import now_ms
from treepipe.executor.codec import BrokenRecordError
from treepipe.executor.control import ANSWERS, ORDERS, Ask, Failed, Holdings, Notes, Order
from treepipe.executor.fork_server import end_process
from treepipe.executor.frames import Frames
from treepipe.executor.pulse import LostWorkerError, Watch, WorkerError
from treepipe.executor.remote import CONNECT_S, Line, RemoteProcess

Process: TypeAlias = BaseProcess | RemoteProcess
Asked = TypeVar("Asked", Notes, Holdings)
Said = TypeVar("Said")
END_S = 1.0
"""How long a worker gets to end by itself before it is killed."""


class ControlLines:
    """One line per worker, by its name; those that are iterated over are still told what to do.

    Attributes:
        processes: all that were started, those of no more use, too.
        watch: looks at their pulses.
    """

    def __init__(self, timeout_ms: float, news: Mapping[type, Callable[[str, Any], None]]) -> None:
        """Args: ``news``: what is done at once with a record that answers nothing, by its kind."""
        self.processes: dict[str, Process] = {}
        self.watch = Watch(timeout_ms)
        self._news = news
        self._controls: dict[str, Frames | Line] = {}
        self._kept: dict[str, list[Any]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._controls)

    def __contains__(self, name: str) -> bool:
        return name in self._controls

    def add(self, name: str, process: Process, control: Frames | Line) -> None:
        """A worker is to be started; it is watched when its pulse is."""
        self.processes[name], self._controls[name], self._kept[name] = process, control, []

    def forget(self, name: str) -> None:
        """A worker is of no more use: it is told nothing, and ends."""
        control = self._controls.pop(name, None)
        if control is not None:
            control.close()  # a worker ends when its control line does
        self.watch.forget(name)

    def close(self) -> None:
        """No worker is of use any more."""
        for name in [*self]:
            self.forget(name)

    def end(self, patience_ms: float = inf) -> list[str]:
        """End all processes; returns when they are gone, and names those whose hosts do not tell
        of it, or are of no use.

        Args: ``patience_ms``: a host that is silent for longer is waited for no more.
        """
        self.close()
        _join(self.processes.values(), END_S)
        for process in self.processes.values():
            if process.is_alive():
                process.kill()  # all first: one on a host that is gone is waited for in vain
        there = {n: each for n, each in self.processes.items() if isinstance(each, RemoteProcess)}
        answering = [each for each in there.values() if each.answers(patience_ms)]
        _join(answering, CONNECT_S)
        for process in self.processes.values():
            if isinstance(process, BaseProcess):
                end_process(process)
        self.processes.clear()
        return [n for n, each in there.items() if each not in answering or each.is_alive()]

    def ask(self, name: str, kind: type[Asked]) -> Asked:
        """Ask a worker for a record of this kind."""
        self.order(name, Ask(kind.__name__))  # type: ignore[arg-type]  # one of the two
        return self.answer(name, kind)

    def answer(self, name: str, kind: type[Said]) -> Said:
        """Wait for one worker's answer while watching all of them."""
        while (found := self.take(name, kind)) is None:
            self.listen()
        return found

    def take(self, name: str, kind: type[Said]) -> Said | None:
        """The first record of that kind that a worker has sent, None if there is none."""
        kept = self._kept.get(name, [])
        place = next((i for i, said in enumerate(kept) if isinstance(said, kind)), None)
        return None if place is None else kept.pop(place)

    def order(self, name: str, order: Order) -> None:
        """Tell a worker something; what its line does not take now, ``listen`` sends. That a worker
        is gone ``listen`` says, too, since the worker may have said why."""
        with suppress(ConnectionError):
            self._controls[name].put(ORDERS.encoded(order))

    def listen(self, until_ms: float | None = None) -> None:
        """Read every line that is ready by then, or soon; what belongs to a later turn is kept."""
        left_ms = self.watch.look_ms
        if until_ms is not None:
            left_ms = min(left_ms, max(0.0, until_ms - now_ms()))
        self.watch.look()
        self._exchange(left_ms)
        for name, control in [*self._controls.items()]:
            while name in self and (said := self._said(name, control)) is not None:
                self._news.get(type(said), self._keep)(name, said)

    def _exchange(self, within_ms: float) -> None:
        """Read what arrives first within this time, and send what was left."""
        poll, lines = select.poll(), {each.fileno(): each for each in self._controls.values()}
        for control in lines.values():
            poll.register(control, select.POLLIN | (select.POLLOUT if control.left_bytes else 0))
            if control.holds:  # what was read before a failure of another worker
                within_ms = 0.0
        for descriptor, events in poll.poll(ceil(within_ms)):
            lines[descriptor].read()
            if events & select.POLLOUT:
                with suppress(ConnectionError):
                    lines[descriptor].flush()

    def _keep(self, name: str, said: Any) -> None:
        self._kept[name].append(said)

    def _said(self, name: str, control: Frames | Line) -> Any:
        """The next record that was read; None if there is none."""
        try:
            data = control.take()
            said = None if data is None else ANSWERS.decoded(data)
        except EOFError:
            raise self._died(name) from None
        except BrokenRecordError:
            raise WorkerError(name, "said what no worker says") from None
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
    """Wait for the ends of all."""
    deadline = now_ms() + 1e3 * within_s
    for process in processes:
        process.join(max(0.0, (deadline - now_ms()) / 1e3))
