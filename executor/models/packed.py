"""Linear layers packed for passes over a few rows, on processors with a library for that.

A packed layer gives the same product, summed in another order. A product of a few rows is bound by
reading the matrix, which the library that ``torch`` calls for float32 rearranges every time. oneDNN
keeps it in the order of reading. On a core of an AMD EPYC with matrices of 4.5 MiB, a stage's pass
takes 0.9 times as long over 1 row, 0.5 times over 3 to 8 and 0.65 times over 32.
"""

from __future__ import annotations

import platform
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

X86 = ("x86_64", "AMD64")
"""Architectures on which this was measured."""
LEAST_BYTES = 1 << 20
"""Size below which a matrix stays in a core's own cache, so that the packed call's added
microseconds do not pay."""


_OF_SHAPE: WeakValueDictionary[Any, PackedLinear] = WeakValueDictionary()
"""A packed layer of each shape and type in this process; equal ones share their kernels."""


class PackedLinear(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A linear layer in oneDNN's own order; its values cannot be read."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.register_buffer("packed", packed, persistent=False)
        self.bias = linear.bias
        shape = tuple(linear.weight.shape), linear.weight.dtype, linear.bias is not None
        _OF_SHAPE[shape] = self

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply [..., in] -> [..., out]."""
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self.packed, self.bias, "none", [], ""
        )
        return found


def linear(weight: torch.Tensor) -> Any:
    """Make the linear layer [..., in] -> [..., out] of a matrix [out, in], packed if possible."""
    rows, columns = weight.shape
    layer = nn.Linear(columns, rows, bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return PackedLinear(layer) if can_pack(weight) else layer


def pack(module: Any) -> None:
    """Replace all linear layers below this module that can be packed."""
    large = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and can_pack(child.weight)
    ]
    for parent, name, child in large:
        setattr(parent, name, PackedLinear(child))
    if large:  # the rest is small, and would keep the whole file mapped
        for left in module.parameters():
            left.data = left.data.clone()


def can_pack(weight: torch.Tensor) -> bool:
    """Whether this processor has a faster packed product for the matrix."""
    if weight.nbytes < LEAST_BYTES:
        return False
    if weight.device.type != "cpu" or platform.machine() not in X86 or not _has_library():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(weight.dtype == torch.float32)


@torch.inference_mode()
def warm_up(rows: int) -> None:
    """Compute each packed shape over 1 to ``rows`` rows once, since oneDNN makes a kernel for every
    new number of rows: milliseconds of the first pass over them."""
    for (shape, dtype, _), layer in list(_OF_SHAPE.items()):
        for count in range(1, rows + 1):
            layer(torch.zeros(count, shape[1], dtype=dtype))


def _has_library() -> bool:
    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in names
    )
