"""Making a model heavier without changing what it says.

Law of this file: a layer widened K times computes what it computed, with a feed-forward part K
times as wide. The further rows of the gate and up projections are random, so that their work is
real; the columns of the down projection that would read them are zero.
"""

from __future__ import annotations

import torch

SEED = 0
"""Of the random rows: every process makes the same ones."""


def widen(tensors: dict[str, torch.Tensor], factor: int) -> dict[str, torch.Tensor]:
    """The tensors of a gated feed-forward part ``factor`` times as wide; others are as they were.

    New rows are normal with the deviation of the old ones, so that no state leaves the range that
    a type of 16 bits has, and none is so small that processors slow down (denormal).

    Args: ``tensors``: of a layer or of a whole model, by name (``…mlp.gate_proj.weight``).
    """
    if factor == 1:
        return tensors
    random = torch.Generator().manual_seed(SEED)
    return {name: _widened(name, tensor, factor, random) for name, tensor in tensors.items()}


def _widened(name: str, tensor: torch.Tensor, factor: int, random: torch.Generator) -> torch.Tensor:
    axis = {"gate_proj": 0, "up_proj": 0, "down_proj": 1}.get(name.split(".")[-2:][0])
    if axis is None or axis >= tensor.dim():  # another part, or the bias of the down projection
        return tensor
    shape = list(tensor.shape)
    shape[axis] *= factor - 1
    if axis == 0 and tensor.dim() == 2:
        more = torch.randn(shape, generator=random) * tensor.float().std()
    else:
        more = torch.zeros(shape)
    return torch.cat((tensor, more.to(tensor.dtype)), axis)
