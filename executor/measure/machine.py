"""This machine: its names, its memory, its peak figures."""

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
"""The name "matmul" with a number of floating-point operations, or "stream" with a number of
bytes."""

MATMUL_SIZES = {"cpu": (512, 1024), "cuda": (4096, 8192)}
STREAM_MIB = {"cpu": 128, "cuda": 1024}
"""Size of a matrix that no cache holds."""


def hardware(device: str, threads: int) -> str:
    """Name of the device."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    return Processor.here().described(threads)


def is_this_machine(named: str) -> bool:
    """Whether ``hardware`` names this machine's processor, with any number of its cores."""
    return named.startswith(f"{Processor.here().name}, ")


def versions(device: str, dtype: str, threads: int) -> str:
    """Versions of the computing software, and its settings."""
    cuda = f"CUDA {torch.version.cuda}, " if device == "cuda" else ""
    return f"{cuda}{software('torch', 'transformers')}; {dtype}, {threads} CPU threads"


def software(*libraries: str) -> str:
    """Versions of treepipe, of these libraries, and of the system."""
    named = [f"{library} {importlib.metadata.version(library)}" for library in libraries]
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    return ", ".join([f"treepipe {treepipe.__version__}", *named, system])


def memory_mib(device: str) -> float:
    """Total memory of the device."""
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[1]) / 2**20
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20


def runtime_mib(device: str) -> float:
    """Memory of a process without any model; must be called before one is opened.

    On a GPU it is the memory in use beyond torch's own, including other processes'.
    """
    if device == "cuda":
        torch.zeros(1, device=device)  # creates the CUDA context
        free, total = torch.cuda.mem_get_info()
        return float(total - free - torch.cuda.memory_reserved()) / 2**20
    return peak_memory_mib(device)


def peak_memory_mib(device: str) -> float:
    """Peak memory of this process: allocated on the GPU, resident on the host."""
    if device == "cuda":
        return float(torch.cuda.max_memory_allocated()) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024  # kilobytes, except on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def peak_probes(device: str, dtype: torch.dtype) -> Iterator[Probe[Peak]]:
    """Yield a square matrix product, and one row against a matrix that no cache holds."""
    for size in MATMUL_SIZES[device]:
        square = torch.randn(size, size).to(device, dtype)
        yield Probe(("matmul", 2 * size**3), partial(torch.matmul, square, square))
    columns = 4096
    rows = STREAM_MIB[device] * 2**20 // (columns * dtype.itemsize)
    matrix = torch.empty(rows, columns, dtype=dtype, device=device).normal_()
    row = torch.randn(columns).to(device, dtype)
    yield Probe(("stream", rows * columns * dtype.itemsize), partial(torch.mv, matrix, row))
