"""What this machine can compute with: types and processors of roles' settings, as torch has them.

On a GPU states come and go through pinned memory of the host, on the one stream that the passes
are on.
"""

from __future__ import annotations

import os

import torch

from treepipe.scenario.computing import Compute, Computed

DTYPES: dict[Computed, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def gpu_fault(index: int = 0) -> str | None:
    """Why this machine's GPU of this number cannot be used; None if it can. Starts nothing on it.

    >>> (gpu_fault(10**6) or "").startswith(f"torch {torch.__version__} finds ")
    True
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index < count:
        return None
    found = f"{count} GPUs, the first of which is index 0," if count else "no GPU"
    return f"torch {torch.__version__} finds {found} on this machine"


def fault_of(compute: Compute) -> str | None:
    """Why a role's settings cannot be had on this machine; None if they can."""
    cores = os.cpu_count() or 1
    if compute.threads > cores:
        return f"threads = {compute.threads}, more than this machine's {cores} cores"
    fault = None if compute.kind == "cpu" else gpu_fault(compute.index)
    return None if fault is None else f"kind = 'cuda', index = {compute.index}: {fault}"


def use(compute: Compute) -> None:
    """Let this process compute with these settings."""
    torch.set_num_threads(compute.threads)
    if compute.kind == "cuda":
        torch.cuda.set_device(compute.index)
        torch.set_float32_matmul_precision("highest")  # it is to give the CPU's text
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


class Ferry:
    """Carries rows of hidden states between the host, where messages are, and a role's device.

    On a GPU through one pinned buffer, which grows with the largest message; on a CPU not at all.
    """

    def __init__(self, compute: Compute) -> None:
        self._device, self._pinned = compute.device, compute.kind == "cuda"
        self._buffer = torch.empty(0)

    def aboard(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] on the host -> the same on the device, once its stream comes to it."""
        if not self._pinned or hidden.device.type != "cpu":
            return hidden
        self.wait()  # what the buffer held is copied then
        return self._slot(hidden).copy_(hidden).to(self._device, non_blocking=True)

    def ashore(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> the same on the host, finished, and nobody else's."""
        if hidden.device.type == "cpu":
            return hidden
        found = self._slot(hidden).copy_(hidden, non_blocking=True)
        self.wait()
        return found.clone()  # sockets send from where it lies

    def wait(self) -> None:
        """Return once the device has done all that was asked of it."""
        if self._pinned:
            torch.cuda.current_stream().synchronize()

    def _slot(self, like: torch.Tensor) -> torch.Tensor:
        """So much of the pinned buffer."""
        if self._buffer.dtype != like.dtype or self._buffer.numel() < like.numel():
            self._buffer = torch.empty(like.numel(), dtype=like.dtype, pin_memory=True)
        return self._buffer[: like.numel()].view(like.shape)
