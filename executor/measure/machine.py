"""What this machine is: its names, its memory, its peak figures."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import sys
from collections.abc import Iterator
from functools import partial
from typing import TypeAlias

import torch

import treepipe
from treepipe.executor.measure.timing import Probe
from treepipe.executor.processor import Processor

Peak: TypeAlias = tuple[str, int]
"""What is timed, and its floating-point operations ("matmul") or bytes ("stream")."""

MATMUL_SIZES = {"cpu": (512, 1024), "cuda": (4096, 8192)}
STREAM_MIB = {"cpu": 128, "cuda": 1024}
"""Far more than a cache holds."""


def hardware(device: str, threads: int) -> str:
    """Name of what is measured."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    return Processor.here().described(threads)


def is_this_machine(named: str) -> bool:
    """Whether ``hardware`` names this machine's processor so, however many of its cores compute."""
    return named.startswith(f"{Processor.here().name}, ")


def versions(device: str, dtype: str, threads: int) -> str:
    """The versions of the software that computes, and how it was set."""
    cuda = f"CUDA {torch.version.cuda}, " if device == "cuda" else ""
    return f"{cuda}{software('torch', 'transformers')}; {dtype}, {threads} CPU threads"


def software(*libraries: str) -> str:
    """Versions of ours, of these, and of what they run on."""
    named = [f"{library} {importlib.metadata.version(library)}" for library in libraries]
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    return ", ".join([f"treepipe {treepipe.__version__}", *named, system])


def memory_mib(device: str) -> float:
    """All of the device's memory."""
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[1]) / 2**20
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20


def runtime_mib(device: str) -> float:
    """What a process takes without any model: to be asked before one is opened.

    On the host the most that it has held so far. On a GPU what is in use there beyond what torch
    holds: the context with its kernels, and whatever other processes have.
    """
    if device == "cuda":
        torch.zeros(1, device=device)  # makes the context
        free, total = torch.cuda.mem_get_info()
        return float(total - free - torch.cuda.memory_reserved()) / 2**20
    return peak_memory_mib(device)


def peak_memory_mib(device: str) -> float:
    """The most that this process has held: allocated on the GPU, resident on the host."""
    if device == "cuda":
        return float(torch.cuda.max_memory_allocated()) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024  # kilobytes but on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def peak_probes(device: str, dtype: torch.dtype) -> Iterator[Probe[Peak]]:
    """A square matrix product, and one row against a matrix that no cache holds."""
    for size in MATMUL_SIZES[device]:
        square = torch.randn(size, size).to(device, dtype)
        yield Probe(("matmul", 2 * size**3), partial(torch.matmul, square, square))
    columns = 4096
    rows = STREAM_MIB[device] * 2**20 // (columns * dtype.itemsize)
    matrix = torch.empty(rows, columns, dtype=dtype, device=device).normal_()
    row = torch.randn(columns).to(device, dtype)
    yield Probe(("stream", rows * columns * dtype.itemsize), partial(torch.mv, matrix, row))
