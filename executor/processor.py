"""This host's processor and software, described without PyTorch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import treepipe


@dataclass(frozen=True, slots=True)
class Processor:
    """A host's processor: the system's name of it, its cores, and its architecture (x86_64)."""

    name: str
    cores: int
    architecture: str

    @classmethod
    def here(cls) -> Processor:
        return cls(_name(), os.cpu_count() or 1, platform.machine())

    def described(self, threads: int) -> str:
        return f"{self.name}, {threads} of {self.cores} cores, {self.architecture}"


def is_this_machine(named: str) -> bool:
    """Whether a profile's hardware is this machine's processor, with any number of its cores."""
    return named.startswith(f"{Processor.here().name}, ")


def software(*libraries: str) -> str:
    """Versions of treepipe, of these libraries, and of the system."""
    named = [f"{library} {importlib.metadata.version(library)}" for library in libraries]
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    return ", ".join([f"treepipe {treepipe.__version__}", *named, system])


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


def _first_processor(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    block = path.read_text(encoding="utf-8").split("\n\n")[0]
    pairs = [line.split(":", 1) for line in block.splitlines() if ":" in line]
    return {key.strip(): value.strip() for key, value in pairs}
