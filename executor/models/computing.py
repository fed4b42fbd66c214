"""This machine's number types, threads, GPUs and memory, by torch."""

from __future__ import annotations

import os
import resource
import sys

import torch

from treepipe.scenario.deployment import Compute, Computed

DTYPES: dict[Computed, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def gpu_fault(index: int = 0) -> str | None:
    """Return the reason why this machine's GPU of this number cannot be used, or None.

    >>> (gpu_fault(10**6) or "").startswith(f"torch {torch.__version__} finds ")
    True
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index < count:
        return None
    found = f"{count} GPUs, the first of which is index 0," if count else "no GPU"
    return f"torch {torch.__version__} finds {found} on this machine"


def fault_of(compute: Compute) -> str | None:
    """Return a sentence on the threads or the GPU that this machine lacks for a role, or None."""
    cores = os.cpu_count() or 1
    if compute.threads > cores:
        return f"threads = {compute.threads}, more than this machine's {cores} cores"
    fault = None if compute.kind == "cpu" else gpu_fault(compute.index)
    return None if fault is None else f"kind = 'cuda', index = {compute.index}: {fault}"


def use(compute: Compute) -> None:
    """Make this process compute with these threads, or this GPU."""
    torch.set_num_threads(compute.threads)
    if compute.kind == "cuda":
        torch.cuda.set_device(compute.index)
        exact_products()


def exact_products() -> None:
    """Let GPUs sum products as exactly as a CPU, for the same texts: without TensorFloat-32."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def shares_memory(device: torch.device | int) -> bool:
    """Whether a GPU is integrated: its memory is the host's (a Jetson's)."""
    return bool(torch.cuda.get_device_properties(device).is_integrated)


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
    return peak_memory(device) / 2**20


def peak_memory(device: str) -> int:
    """Peak memory of this process in bytes: allocated on the GPU, resident on the host."""
    if device != "cpu":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024  # kilobytes, except on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class DeviceTransfer:
    """A copier of hidden states between the host and a role's GPU, through one pinned buffer that
    grows with the largest message; at once where the two share memory; on a CPU it does nothing."""

    def __init__(self, compute: Compute) -> None:
        self._device, self._cuda = compute.device, compute.kind == "cuda"
        self._pinned = self._cuda and not shares_memory(compute.index)
        self._buffer = torch.empty(0)

    def to_device(self, hidden: torch.Tensor) -> torch.Tensor:
        """Copy [n, hidden] from the host to the device, in the order of its stream."""
        if not self._pinned or hidden.device.type != "cpu":
            return hidden.to(self._device) if self._cuda else hidden
        self.wait()  # until the buffer's last content is copied
        return self._slot(hidden).copy_(hidden).to(self._device, non_blocking=True)

    def to_host(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return a finished copy of [n, hidden] on the host."""
        if hidden.device.type == "cpu" or not self._pinned:
            return hidden.cpu()
        found = self._slot(hidden).copy_(hidden, non_blocking=True)
        self.wait()
        return found.clone()  # messages are sent from this memory

    def wait(self) -> None:
        """Wait for all work of the device."""
        if self._cuda:
            torch.cuda.current_stream().synchronize()

    def _slot(self, like: torch.Tensor) -> torch.Tensor:
        if self._buffer.dtype != like.dtype or self._buffer.numel() < like.numel():
            self._buffer = torch.empty(like.numel(), dtype=like.dtype, pin_memory=True)
        return self._buffer[: like.numel()].view(like.shape)
