"""The workers' control lines: what each is told and what it answers, while all are watched.

Law of this file: whoever waits for one worker, to answer or to take what it is told, hears of the
end, the failure or the silence of any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias, TypeVar

from treepipe.core.errors import UserError
from treepipe.executor.clock import now_ms
from treepipe.executor.codec import BrokenRecordError
from treepipe.executor.control import ANSWERS, ORDERS, Ask, Failed, Holdings, Notes, Order
from treepipe.executor.pulse import LostWorkerError, Watch, WorkerError
from treepipe.executor.remote import CONNECT_S, Line, RemoteProcess

Process: TypeAlias = BaseProcess | RemoteProcess
Asked = TypeVar("Asked", Notes, Holdings)
Said = TypeVar("Said")
END_S = 1.0
"""How long a worker gets to end by itself before it is killed."""
PIPE_TAKES_BYTES = 2**14
"""What a pipe takes at once though nobody reads it."""


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
        self._controls: dict[str, Connection | Line] = {}
        self._kept: dict[str, list[Any]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._controls)

    def __contains__(self, name: str) -> bool:
        return name in self._controls

    def add(self, name: str, process: Process, control: Connection | Line) -> None:
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
        started = {
            name: process
            for name, process in self.processes.items()
            if isinstance(process, RemoteProcess) or process.pid is not None
        }
        _join(started.values(), END_S)
        for process in started.values():
            if process.is_alive():
                process.kill()  # all first: one on a host that is gone is waited for in vain
        gone = {
            name
            for name, process in started.items()
            if isinstance(process, RemoteProcess) and not process.answers(patience_ms)
        }
        _join((process for name, process in started.items() if name not in gone), CONNECT_S)
        self.processes.clear()
        return [name for name, each in started.items() if name in gone or each.is_alive()]

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
        """Tell a worker something. Raises ``LostWorkerError`` if it is gone or takes nothing."""
        data, control = ORDERS.encoded(order), self._controls[name]
        if len(data) < PIPE_TAKES_BYTES or isinstance(control, Line):
            self._send_bytes(name, control, data)
            return
        # The pipe holds no more than a stopped worker could leave in it: watch while it fills.
        with ThreadPoolExecutor(1) as sender:
            sending = sender.submit(self._send_bytes, name, control, data)
            while not futures.wait([sending], self.watch.look_ms / 1e3).done:
                try:
                    self.watch.look()
                except LostWorkerError as silent:
                    self.processes[silent.name].kill()  # which ends the sending
                    raise
            sending.result()

    def _send_bytes(self, name: str, control: Connection | Line, data: bytes) -> None:
        try:
            control.send_bytes(data)
        except ConnectionError:
            raise self._died(name) from None

    def listen(self, until_ms: float | None = None) -> None:
        """Read every line that is ready by then, or soon; what belongs to a later turn is kept."""
        names = {control: name for name, control in self._controls.items()}
        left = self.watch.look_ms / 1e3
        if until_ms is not None:
            left = min(left, max(0.0, until_ms - now_ms()) / 1e3)
        self.watch.look()
        for control in wait(list[Any](names), left):
            assert isinstance(control, Connection | Line)
            name = names[control]
            said = self._receive(name, control)
            self._news.get(type(said), self._keep)(name, said)

    def _keep(self, name: str, said: Any) -> None:
        self._kept[name].append(said)

    def _receive(self, name: str, control: Connection | Line) -> Any:
        try:
            said = ANSWERS.decoded(control.recv_bytes())
        except (EOFError, ConnectionResetError):
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
