"""This host's processor, described without PyTorch."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


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
