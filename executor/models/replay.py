"""What replays a pass on static buffers: a captured CUDA graph, and its twin for a CPU.

Only the capture is here, so that all else of a pass in buckets is tried without a GPU
(``static_pass.py``). ``CudaGraph`` is untried: no GPU was at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

Forward = Callable[[], torch.Tensor]
"""A pass that reads the same static buffers at every call."""
WARM_UP = 3
"""Passes before a capture, in which libraries choose kernels and take their work space."""


class PassReplay(Protocol):
    """A pass over what its static buffers hold.

    Attributes:
        size_bytes: memory that it holds beside buffers and weights.
    """

    size_bytes: int

    def __call__(self) -> torch.Tensor:
        """Compute; the next call overwrites the result."""


class Twin:
    """A pass that is computed anew, with its result in the same place, as a graph's is."""

    def __init__(self, forward: Forward) -> None:
        self._forward, self._result = forward, forward().clone()
        self.size_bytes = self._result.nbytes

    def __call__(self) -> torch.Tensor:
        return self._result.copy_(self._forward())


class CudaGraph:
    """A captured pass. Graphs of a process share the memory of their intermediate results, since
    they run one after another; a result's memory stays."""

    _pool: Any = None

    def __init__(self, forward: Forward) -> None:
        here, apart = torch.cuda.current_stream(), torch.cuda.Stream()
        apart.wait_stream(here)
        with torch.cuda.stream(apart):
            for _ in range(WARM_UP):
                forward()
        here.wait_stream(apart)
        CudaGraph._pool = CudaGraph._pool or torch.cuda.graph_pool_handle()
        before, self._graph = torch.cuda.memory_reserved(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, CudaGraph._pool, capture_error_mode="thread_local"):
            self._result = forward()
        self.size_bytes = torch.cuda.memory_reserved() - before

    def __call__(self) -> torch.Tensor:
        self._graph.replay()
        return self._result


def replay_on(device: str) -> type[Twin] | type[CudaGraph]:
    """Return what replays passes on a device."""
    return Twin if device == "cpu" else CudaGraph
