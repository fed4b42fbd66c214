"""Which worker still answers: a thread in each shows it, the controller looks.

Law of this file: being busy is no silence, however long it lasts. A worker's thread beats while its
main thread uses processor time, and whoever waits looks up every ``LOOK_MS``; so a worker is silent
if it is stopped, or stuck where it uses no processor. Silence counts only while the controller
looks: if all were stopped together (Ctrl-Z, a sleeping computer), nobody was silent.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

from treepipe.core.errors import RunError
from treepipe.executor.clock import LOOK_MS, now_ms

BEATS = 4
"""So often a worker shows itself within the time after which it counts as silent, at least."""
MOST_MS = 500.0
"""Between two beats."""
START_S = 60.0
"""How much later than others a worker may show itself for the first time."""
LEAVE_S = 2.0
"""How long a worker whose controller is gone gets to end by itself."""
AT_WORK, IDLE = b"w", b"i"


class WorkerError(RunError):
    """Something is wrong with one worker; ``name`` says with which."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"{name} {sentence}")
        self.name = name


class LostWorkerError(WorkerError):
    """A worker is gone, or as good as gone."""


def beat_ms(timeout_s: float) -> float:
    """Time between two beats."""
    return max(float(LOOK_MS), min(MOST_MS, 1e3 * timeout_s / BEATS))


class Pulse:
    """The worker's side: started by its main thread, of which it tells.

    Attributes:
        idle: says whether the main thread waits for a message with nothing in hand.
    """

    def __init__(
        self, pipe: Connection, timeout_s: float, leave: Callable[[int], object] = os._exit
    ) -> None:
        """Args:
        pipe: its writing end.
        timeout_s: of the run.
        leave: ends the process, since nobody holds the other end any more.
        """
        self.idle: Callable[[], bool] = lambda: False
        self._pipe, self._beat_ms, self._leave = pipe, beat_ms(timeout_s), leave
        # Not every system tells a thread's processor time; there a beat shows a stop only.
        clock = getattr(time, "pthread_getcpuclockid", None)
        self._clock: int | None = clock(threading.get_ident()) if clock is not None else None
        os.set_blocking(pipe.fileno(), False)  # nobody may be looking for long
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def _beat(self) -> None:
        poll = select.poll()
        poll.register(self._pipe.fileno(), 0)
        used = -1
        while not poll.poll(self._beat_ms):  # an event: nobody holds the other end any more
            before, used = used, self._used()
            if used != before or self._clock is None:
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


class Watch:
    """The controller's side, over all workers of a deployment."""

    def __init__(self, timeout_s: float) -> None:
        """Args: ``timeout_s``: how long a worker may be silent."""
        self.timeout_s = timeout_s
        self.look_s = beat_ms(timeout_s) / 1e3
        self._pipes: dict[str, Connection] = {}
        self._silent_s: dict[str, float] = {}
        self._idle_s: dict[str, float] = {}
        self._looked_ms = now_ms()

    def add(self, name: str, pipe: Connection) -> None:
        """Args: ``pipe``: the reading end of a worker's pulse."""
        os.set_blocking(pipe.fileno(), False)
        self._pipes[name], self._silent_s[name], self._idle_s[name] = pipe, -START_S, 0.0

    def forget(self, name: str) -> None:
        """A worker is not watched any more."""
        pipe = self._pipes.pop(name, None)
        if pipe is not None:
            pipe.close()

    def close(self) -> None:
        for name in [*self._pipes]:
            self.forget(name)

    def look(self) -> None:
        """Look at all pulses, every ``look_s``. Raises ``LostWorkerError`` for a silent worker."""
        passed_s = (now_ms() - self._looked_ms) / 1e3
        if passed_s < self.look_s / 2:
            return
        self._looked_ms += 1e3 * passed_s
        for name, pipe in self._pipes.items():
            beats = _read(pipe)
            # Longer than that nobody looked, so nothing is known of the time before.
            counted_s = min(passed_s, 2 * self.look_s)
            self._silent_s[name] = 0.0 if beats else self._silent_s[name] + counted_s
            if AT_WORK in beats:
                self._idle_s[name] = 0.0
            elif beats:
                self._idle_s[name] += counted_s
        self._raise_silent(self._silent_s)

    def all_idle_s(self) -> float:
        """The time for which every worker has waited for a message with nothing in hand."""
        return min((self._idle_s[name] for name in self._pipes), default=0.0)

    def begin(self) -> None:
        """A run begins: idleness counts from now."""
        self._idle_s = dict.fromkeys(self._idle_s, 0.0)

    def _raise_silent(self, silent_s: Mapping[str, float]) -> None:
        name = max(self._pipes, key=silent_s.__getitem__, default="")
        if name and silent_s[name] > self.timeout_s:
            raise LostWorkerError(
                name,
                f"has not answered for {silent_s[name]:.0f} s (run.timeout_s = "
                f"{self.timeout_s:g}): it is stopped or stuck",
            )


def _read(pipe: Connection) -> bytes:
    """All beats since the last look; none if the worker has ended, which its control pipe says."""
    try:
        return os.read(pipe.fileno(), 4096)
    except BlockingIOError:
        return b""
