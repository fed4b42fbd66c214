"""Heartbeats: a thread of each worker sends them, and the coordinator watches for silence.

Invariant: a busy worker is not silent, however long its work lasts. The thread beats while the main
thread uses processor time, or would if it had a processor; a waiting main thread wakes every
``LOOK_MS``. So a silent worker is stopped, or stuck without using a processor. Silence counts only
while the coordinator looks: if all were stopped together (Ctrl-Z, a sleeping computer), no worker
was silent.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from treepipe.core.errors import RunError
from treepipe.core.failover import FaultKind, beat_ms
from treepipe.executor.hosts.fork_server import starves, state_of
from treepipe.executor.wire.clock import now_ms

START_MS = 60_000.0
"""Additional limit of a worker's silence before it serves, while it reads models from disk."""


class WorkerError(RunError):
    """An error of one worker, which ``name`` names."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"{name} {sentence}")
        self.name = name


class LostWorkerError(WorkerError):
    """A worker ended (``kind`` "kill"), is silent ("stop"), or is cut off ("cut")."""

    def __init__(self, name: str, sentence: str, kind: FaultKind = "kill") -> None:
        super().__init__(name, sentence)
        self.kind: FaultKind = kind


class Pulse:
    """The worker's side; the main thread starts it.

    Attributes:
        idle: callback: whether the main thread waits for a message with no work left.
    """

    def __init__(
        self, say: Callable[[bool], object], timeout_ms: float, idle: Callable[[], bool]
    ) -> None:
        """Start the thread.

        Args:
            say: sends a sign of life (idle or not); the thread alone calls it.
        """
        self.idle = idle
        self._say, self._beat_s = say, beat_ms(timeout_ms) / 1e3
        # Without it (not on Linux) the beats show only that the process is not stopped.
        clock = getattr(time, "pthread_getcpuclockid", None)
        self._clock: int | None = clock(threading.get_ident()) if clock is not None else None
        self._state = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        self._over, self._parent = threading.Event(), os.getppid()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread, before its connection is closed."""
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        used = -1
        while True:
            before, used = (
                used,
                time.clock_gettime_ns(self._clock) if self._clock is not None else 0,
            )
            if used != before or self._clock is None or state_of(self._state) == b"R":
                self._say(self.idle())
            if self._over.wait(self._beat_s):
                return
            if os.getppid() != self._parent:  # where no signal ends a worker with its parent
                os._exit(1)


@dataclass(slots=True)
class _Watched:
    """A worker's process on this host, its signs of life since the last look (one: that it works),
    and its silent and idle ms."""

    process: int | None
    patience_ms: float = START_MS
    beats: bool = False
    worked: bool = False
    silent_ms: float = 0.0
    idle_ms: float = 0.0


class Watch:
    """The coordinator's side, over all workers of a deployment."""

    def __init__(self, timeout_ms: float) -> None:
        """Watch workers; a silent one is named within ``timeout_ms`` of its last sign of life."""
        self.timeout_ms = timeout_ms
        self._workers: dict[str, _Watched] = {}
        self._looked_ms = now_ms()

    @property
    def look_ms(self) -> float:
        """Time between two looks."""
        return beat_ms(self.timeout_ms)

    def add(self, name: str, process: int | None = None) -> None:
        """Watch a worker; ``process`` is its number if it is on this host."""
        self._workers[name] = _Watched(process)

    def serves(self, name: str) -> None:
        """Note that a worker has loaded its models."""
        self._workers[name].patience_ms = self._workers[name].silent_ms = 0.0

    def forget(self, name: str) -> None:
        """Stop watching a worker."""
        self._workers.pop(name, None)

    def beat(self, name: str, idle: bool) -> None:
        """Note a worker's sign of life."""
        if (worker := self._workers.get(name)) is not None:
            worker.beats, worker.worked = True, worker.worked or not idle

    def look(self) -> None:
        """Judge by the beats since the last look, every ``look_ms``. Raises ``LostWorkerError`` for
        a silent worker."""
        passed_ms = now_ms() - self._looked_ms
        if passed_ms < self.look_ms / 2:
            return
        self._looked_ms += passed_ms
        # The coordinator did not look for any longer time, so it counts no further.
        counted_ms = min(passed_ms, 2 * self.look_ms)
        for worker in self._workers.values():
            worker.silent_ms = 0.0 if worker.beats else worker.silent_ms + counted_ms
            if worker.worked:
                worker.idle_ms = 0.0
            elif worker.beats:
                worker.idle_ms += counted_ms
            worker.beats = worker.worked = False
        self._raise_silent()

    def all_idle_ms(self) -> float:
        """Time for which every worker has waited for a message with no work left."""
        return min((worker.idle_ms for worker in self._workers.values()), default=0.0)

    def begin(self) -> None:
        """Restart the count of idleness for a run."""
        for worker in self._workers.values():
            worker.idle_ms = 0.0

    def _raise_silent(self) -> None:
        """Raise the loss of the worker that has been silent for longest, if that is too long.

        Up to one look may pass between the last beat and the look that misses it, and another until
        the next look, so a worker is named two looks before its time is up.
        """
        over_ms = {name: each.silent_ms - each.patience_ms for name, each in self._workers.items()}
        name = max(over_ms, key=over_ms.__getitem__, default="")
        if name and over_ms[name] > self.timeout_ms - 2 * self.look_ms:
            worker = self._workers[name]
            # On an overloaded host a worker may lack the processor time for a beat.
            if worker.process is not None and starves(worker.process):
                worker.silent_ms = 0.0
                return
            raise LostWorkerError(
                name,
                f"has not answered for {worker.silent_ms:.0f} ms (faults.timeout_ms = "
                f"{self.timeout_ms:g}): it is stopped or stuck",
                "stop",
            )
