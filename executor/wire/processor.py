"""This host's processor and software, described without PyTorch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import ceil, log2
from pathlib import Path

from treepipe.version import __version__

BASE_SLICE_MS = 0.7
MONOTONIC_COARSE = 6
"""Linux' clock that advances at each tick; Python's ``time`` has no name for it."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A host's processor.

    Attributes:
        name: the system's name of it.
        architecture: as x86_64.
        turn_ms: time for which a process has a core while others wait for one; None: unknown.
    """

    name: str
    cores: int
    architecture: str
    turn_ms: float | None = None

    @classmethod
    def here(cls) -> Processor:
        cores = os.cpu_count() or 1
        return cls(_name(), cores, platform.machine(), _turn_ms(cores))

    def described(self, threads: int) -> str:
        return f"{self.name}, {threads} of {self.cores} cores, {self.architecture}"


PROTOCOL = 12
"""Version of the records (``records.py``) and messages, increased with any change of them."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Installed versions; the hosts of a run must agree on the first two."""

    treepipe: str
    protocol: int
    torch: str
    python: str

    @classmethod
    @cache  # it is read from files
    def here(cls) -> Versions:
        torch = importlib.metadata.version("torch")
        return cls(__version__, PROTOCOL, torch, platform.python_version())

    @property
    def described(self) -> str:
        return (
            f"treepipe {self.treepipe} (protocol {self.protocol}), torch {self.torch}, Python "
            f"{self.python}"
        )

    def fault(self, other: Versions) -> str | None:
        """Return the reason why the two cannot work together, or None."""
        if (self.treepipe, self.protocol) == (other.treepipe, other.protocol):
            return None
        return (
            f"it has treepipe {other.treepipe} (protocol {other.protocol}), this coordinator "
            f"{self.treepipe} (protocol {self.protocol})"
        )


class OtherWork:
    """Watch of the work of all other processes of this host, from now on."""

    def __init__(self, own: Iterable[int]) -> None:
        """``own`` are numbers of processes that count as ours, like this one."""
        self._own = [*own, os.getpid()]
        self._start_s, self._before_s = time.monotonic(), self._used_s()

    def processors(self) -> float | None:
        """Processors' worth of their work since the start; None if Linux' counts are missing."""
        now_s, used_s = time.monotonic(), self._used_s()
        if used_s is None or self._before_s is None:
            return None
        return max(0.0, (used_s - self._before_s) / (now_s - self._start_s))

    def _used_s(self) -> float | None:
        """Seconds that others have had processors, to a tick; a process that ended is another."""
        try:
            busy = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
        except OSError:
            return None
        user, nice, system, _, _, *interrupts = map(int, busy)
        ticks = user + nice + system + sum(interrupts)
        for process in self._own:
            try:
                state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            ticks -= int(state[11]) + int(state[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def is_this_machine(named: str) -> bool:
    """Whether a profile's hardware is this machine's processor, with any number of its cores."""
    return named.startswith(f"{Processor.here().name}, ")


def software(*libraries: str) -> str:
    """Versions of treepipe, of these libraries, and of the system."""
    named = [f"{library} {importlib.metadata.version(library)}" for library in libraries]
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    return ", ".join([f"treepipe {__version__}", *named, system])


def _name() -> str:
    """Name of the processor; Arm boards have theirs in the device tree instead."""
    fields = _first_processor(Path("/proc/cpuinfo"))
    board = Path("/proc/device-tree/model")
    if "model name" in fields:
        numbers = [f"{key} {fields[key]}" for key in ("cpu family", "model") if key in fields]
        return f"{fields['model name']} ({', '.join(numbers)})"
    if board.exists():
        return board.read_text(encoding="utf-8").rstrip("\0")
    return platform.processor() or "unknown processor"


def real_time_class() -> int | None:
    """Return the real-time class that this process has at Linux' scheduler; None: a usual one."""
    if sys.platform != "linux":
        return None
    policy = os.sched_getscheduler(0)
    return policy if policy in (os.SCHED_FIFO, os.SCHED_RR) else None


def _turn_ms(cores: int) -> float | None:
    """Turn of this process's class at Linux' scheduler; None on other systems.

    Real-time classes have a fixed one. Usual processes have the base slice, 0.7 ms and as much
    again for each doubling of up to 8 cores, and lose their core at a tick (kernel/sched/fair.c).
    """
    if sys.platform != "linux":
        return None
    if fixed := os.sched_rr_get_interval(0):
        return 1e3 * fixed
    tick = 1e3 * time.clock_getres(MONOTONIC_COARSE)
    slice_ms = BASE_SLICE_MS * (1 + int(log2(min(cores, 8))))
    return tick * ceil(slice_ms / tick)


def _first_processor(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    block = path.read_text(encoding="utf-8").split("\n\n")[0]
    pairs = [line.split(":", 1) for line in block.splitlines() if ":" in line]
    return {key.strip(): value.strip() for key, value in pairs}
