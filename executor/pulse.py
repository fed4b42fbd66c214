"""Which worker still answers: a thread in each shows it, the controller looks.

Law of this file: being busy is no silence, however long it lasts. A worker's thread beats while its
main thread uses processor time, or would if it got any, and whoever waits looks up every
``LOOK_MS``; so a worker is silent if it is stopped, or stuck where it uses no processor. Silence
counts only while the controller looks: if all were stopped together (Ctrl-Z, a sleeping computer),
nobody was silent.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from treepipe.core.errors import RunError
from treepipe.core.losses import FaultKind, beat_ms
from treepipe.executor.clock import now_ms

START_MS = 60_000.0
"""How much longer a worker may be silent before it serves: models are read from disks meanwhile."""
LEAVE_S = 2.0
"""How long a worker whose controller is gone gets to end by itself."""
AT_WORK, IDLE = b"w", b"i"


class WorkerError(RunError):
    """Something is wrong with one worker; ``name`` says with which."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"{name} {sentence}")
        self.name = name


class LostWorkerError(WorkerError):
    """A worker is gone (``kind`` "kill"), or as good as gone ("stop")."""

    def __init__(self, name: str, sentence: str, kind: FaultKind = "kill") -> None:
        super().__init__(name, sentence)
        self.kind: FaultKind = kind


class Pulse:
    """The worker's side: started by its main thread, of which it tells.

    Attributes:
        idle: says whether the main thread waits for a message with nothing in hand.
    """

    def __init__(
        self, pipe: Connection, timeout_ms: float, leave: Callable[[int], object] = os._exit
    ) -> None:
        """Args:
        pipe: its writing end.
        timeout_ms: of the run.
        leave: ends the process, since nobody holds the other end any more.
        """
        self.idle: Callable[[], bool] = lambda: False
        self._pipe, self._beat_ms, self._leave = pipe, beat_ms(timeout_ms), leave
        # Not every system tells a thread's processor time; there a beat shows a stop only.
        clock = getattr(time, "pthread_getcpuclockid", None)
        self._clock: int | None = clock(threading.get_ident()) if clock is not None else None
        self._state = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        os.set_blocking(pipe.fileno(), False)  # nobody may be looking for long
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def _beat(self) -> None:
        poll = select.poll()
        poll.register(self._pipe.fileno(), 0)
        used = -1
        while not poll.poll(self._beat_ms):  # an event: nobody holds the other end any more
            before, used = used, self._used()
            if used != before or self._clock is None or self._starves():
                try:
                    os.write(self._pipe.fileno(), IDLE if self.idle() else AT_WORK)
                except BlockingIOError:
                    pass
                except OSError:
                    break
        time.sleep(LEAVE_S)
        self._leave(1)

    def _used(self) -> int:
        """Processor time of the main thread so far, in nanoseconds."""
        return time.clock_gettime_ns(self._clock) if self._clock is not None else 0

    def _starves(self) -> bool:
        """Whether the main thread would compute, if this host had a processor for it."""
        return _runnable(self._state)


def starves(process: int) -> bool:
    """Whether any thread of a process of this host would run, if there were a processor for it."""
    try:
        threads = [*Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return False  # as below, or no file can be opened here
    return any(_runnable(each / "stat") for each in threads)


def _runnable(state: Path) -> bool:
    try:
        return state.read_bytes().rpartition(b")")[2].split()[0] == b"R"
    except OSError:
        return False  # it has ended, or the system has no such files


class Watch:
    """The controller's side, over all workers of a deployment."""

    def __init__(self, timeout_ms: float) -> None:
        """Args: ``timeout_ms``: a worker is named within this time of its last sign of life."""
        self.timeout_ms = timeout_ms
        self._pipes: dict[str, Connection] = {}
        self._processes: dict[str, int] = {}
        self._patience_ms: dict[str, float] = {}
        self._silent_ms: dict[str, float] = {}
        self._idle_ms: dict[str, float] = {}
        self._looked_ms = now_ms()

    @property
    def look_ms(self) -> float:
        """Time between two looks."""
        return beat_ms(self.timeout_ms)

    def add(self, name: str, pipe: Connection, process: int | None = None) -> None:
        """Args: ``pipe``: the reading end of a worker's pulse; ``process``: its number, if it is on
        this host."""
        if process is not None:
            self._processes[name] = process
        os.set_blocking(pipe.fileno(), False)
        self._pipes[name], self._patience_ms[name] = pipe, START_MS
        self._silent_ms[name] = self._idle_ms[name] = 0.0

    def serves(self, name: str) -> None:
        """A worker has all that it needs."""
        self._patience_ms[name] = self._silent_ms[name] = 0.0

    def forget(self, name: str) -> None:
        """A worker is not watched any more."""
        self._processes.pop(name, None)
        pipe = self._pipes.pop(name, None)
        if pipe is not None:
            pipe.close()

    def close(self) -> None:
        for name in [*self._pipes]:
            self.forget(name)

    def look(self) -> None:
        """Look at all pulses, every ``look_ms``. Raises ``LostWorkerError`` for a silent worker."""
        passed_ms = now_ms() - self._looked_ms
        if passed_ms < self.look_ms / 2:
            return
        self._looked_ms += passed_ms
        for name, pipe in self._pipes.items():
            beats = _read(pipe)
            # Longer than that nobody looked, so nothing is known of the time before.
            counted_ms = min(passed_ms, 2 * self.look_ms)
            self._silent_ms[name] = 0.0 if beats else self._silent_ms[name] + counted_ms
            if AT_WORK in beats:
                self._idle_ms[name] = 0.0
            elif beats:
                self._idle_ms[name] += counted_ms
        self._raise_silent()

    def all_idle_ms(self) -> float:
        """The time for which every worker has waited for a message with nothing in hand."""
        return min((self._idle_ms[name] for name in self._pipes), default=0.0)

    def begin(self) -> None:
        """A run begins: idleness counts from now."""
        self._idle_ms = dict.fromkeys(self._idle_ms, 0.0)

    def _raise_silent(self) -> None:
        """The last beat may have come just before a look that was one ago, and so may the next
        look: a worker is named two looks before its time is up."""
        silent_ms, patience_ms = self._silent_ms, self._patience_ms
        over_ms = {name: silent_ms[name] - patience_ms[name] for name in self._pipes}
        name = max(over_ms, key=over_ms.__getitem__, default="")
        if name and over_ms[name] > self.timeout_ms - 2 * self.look_ms:
            # On an overloaded host a worker may not even get to show itself.
            if name in self._processes and starves(self._processes[name]):
                silent_ms[name] = 0.0
                return
            raise LostWorkerError(
                name,
                f"has not answered for {silent_ms[name]:.0f} ms (faults.timeout_ms = "
                f"{self.timeout_ms:g}): it is stopped or stuck",
                "stop",
            )


def _read(pipe: Connection) -> bytes:
    """All beats since the last look; none if the worker has ended, which its control pipe says."""
    try:
        return os.read(pipe.fileno(), 4096)
    except BlockingIOError:
        return b""
