"""The workers' processes of this host: starting, ending, and noticing their end.

The coordinator has them for its own host, a daemon for the coordinator of its session.

Invariant: each process that was started is reported once as ended, and none is left behind.
"""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from treepipe.executor.hosts.fork_server import fork_server, kill_fork_server, start, state_of
from treepipe.executor.wire.records import Post
from treepipe.executor.wire.transport import Channel

WORKER = "treepipe.executor.run.worker"
"""Module of the body of all processes. It is imported late, since it imports PyTorch."""
KILLED_S = 10.0
"""Limit of the end of a killed process."""


class Processes:
    """Processes by worker's name, which iteration yields; one of the two kinds of hosts (the other
    is ``RemoteHost``).

    Attributes:
        address: of the host's daemon; this host needs none.
        why: reason of an end without an exit code.
        starved: none; who watches them sees for itself.
    """

    address: str | None = None
    why = ""

    def __init__(self, *, elsewhere: bool = False, models: Path | None = None) -> None:
        """Args:
        elsewhere: the coordinator is on another host, whose folders mean nothing here.
        models: this host's folder of checkpoints in that case.
        """
        self._more, self.starved = (elsewhere, models), set[str]()
        self._running: dict[str, BaseProcess] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._running)

    def start(self, post: Post) -> None:
        """Start a process. Raises ``RunError`` if this host has no room for it."""
        process = fork_server().Process(
            target=_work, args=(post, *self._more), name=post.name, daemon=True
        )
        start(process)
        self._running[post.name] = process

    def pid(self, name: str) -> int | None:
        """The number of a process that runs here."""
        return self._running[name].pid if name in self._running else None

    def kill(self, name: str) -> None:
        if name in self._running:
            self._running[name].kill()

    @property
    def watched(self) -> list[Channel | int]:
        """What becomes readable when one ends."""
        return [*self._sentinels]

    @property
    def _sentinels(self) -> list[int]:
        return [each.sentinel for each in self._running.values()]

    def ended(self) -> list[tuple[str, int | None]]:
        """Names and exit codes of the processes that ended since the last call."""
        over = wait(self._sentinels, 0)
        names = [name for name, each in self._running.items() if each.sentinel in over]
        return [(name, _reaped(self._running.pop(name))) for name in names]

    def answers(self, within_ms: float) -> bool:
        """Whether this host is there."""
        return True

    def end(self) -> list[tuple[str, int | None]]:
        """Kill all processes; return as ``ended``, when they are gone."""
        for process in self._running.values():
            process.kill()
        codes = dict[str, int | None]()
        for name, process in self._running.items():
            codes[name] = _reaped(process)
        self._running.clear()
        return [*codes.items()]


def _work(post: Post, *more: object) -> None:
    importlib.import_module(WORKER).worker_main(post, *more)


def _reaped(process: BaseProcess) -> int:
    """Wait for a process that ended or was killed, free its descriptors, and return its exit code.

    A fork server that does not report the end of a process is stopped, and is killed, too.
    """
    process.join(KILLED_S)
    if process.is_alive() and state_of(Path(f"/proc/{process.pid}/stat")) in (b"Z", b""):
        kill_fork_server()
        process.join(KILLED_S)
    if (exit_code := process.exitcode) is None:
        return -signal.SIGKILL
    process.close()
    return exit_code
