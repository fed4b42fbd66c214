"""Linear layers packed for passes over a few rows, where the processor has a library for that.

Law of this file: a packed layer gives the same product, summed in another order; what it is packed
for and how is no other file's matter.

A product of a few rows is bound by reading the matrix. The library that ``torch`` asks for float32
rearranges it at every call; oneDNN keeps it in the order in which it is read. Measured on a core of
an AMD EPYC with matrices of 4.5 MiB, a stage's pass takes 0.9 times as long over 1 row, 0.5 times
over 3 to 8 and 0.65 times over 32.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch import nn

X86 = ("x86_64", "AMD64")
"""Elsewhere this has not been tried."""
LEAST_BYTES = 1 << 20
"""Of a matrix that is packed: smaller ones stay in a core's own cache, and the packed call costs
some microseconds more."""


class PackedLinear(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A linear layer in oneDNN's own order; its values cannot be read any more."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.register_buffer("packed", packed, persistent=False)
        self.bias = linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self.packed, self.bias, "none", [], ""
        )
        return found


def linear(weight: torch.Tensor) -> Any:
    """The linear layer [..., in] -> [..., out] of a matrix [out, in], packed if it can be."""
    rows, columns = weight.shape
    layer = nn.Linear(columns, rows, bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return PackedLinear(layer) if can_pack(weight) else layer


def pack(module: Any) -> None:
    """Pack all linear layers below this module that can be, each in its place."""
    large = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and can_pack(child.weight)
    ]
    for parent, name, child in large:
        setattr(parent, name, PackedLinear(child))
    if large:  # what is left is small, and would keep the file mapped with all that was read of it
        for left in module.parameters():
            left.data = left.data.clone()


def can_pack(weight: torch.Tensor) -> bool:
    """Whether this processor has a packed product of the matrix's type, and it pays."""
    if weight.nbytes < LEAST_BYTES:
        return False
    if weight.device.type != "cpu" or platform.machine() not in X86 or not _has_library():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(weight.dtype == torch.float32)


def _has_library() -> bool:
    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in names
    )
