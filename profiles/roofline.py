"""The least a piece of work takes on a device: its operations and its bytes against peak figures.

Source: Williams, Waterman, Patterson, "Roofline" (Communications of the ACM 52(4), 2009). Used to
estimate what was not measured, and to scale what was measured to another shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from treepipe.profiles.schema import Roofline
from treepipe.profiles.shapes import BYTES, DType, Shape, compute_dtype


@dataclass(frozen=True, slots=True)
class PassWork:
    """Floating-point operations, and bytes moved between memory and processor."""

    flops: float
    moved_bytes: float


def layer_work(shape: Shape, dtype: DType, tokens: int) -> PassWork:
    """A decoder layer without attention itself: its weights once, its rows in and out."""
    rows = 2 * tokens * (shape.hidden_size + shape.intermediate_size) * BYTES[compute_dtype(dtype)]
    flops = 2.0 * shape.layer_matrix_parameters * tokens
    return PassWork(flops, shape.layer_bytes(dtype) + rows)


def attention_work(shape: Shape, dtype: DType, tokens: int, context: int) -> PassWork:
    """Scores and weighted sums of a layer: every row against the context and all rows."""
    keys = context + tokens
    flops = 4.0 * tokens * keys * shape.heads * shape.head_dim
    return PassWork(flops, keys * shape.kv_bytes(dtype))


def head_work(shape: Shape, dtype: DType, tokens: int) -> PassWork:
    """The output projection; quantized models keep it in the type they compute in."""
    size = BYTES[compute_dtype(dtype)]
    moved = shape.head_parameters + tokens * (shape.hidden_size + shape.vocabulary)
    return PassWork(2.0 * shape.head_parameters * tokens, moved * size)


def fusion_work(shape: Shape, dtype: DType, tokens: int) -> PassWork:
    """What comes in front of an EAGLE head's layer."""
    moved = shape.fusion_parameters * BYTES[dtype]
    return PassWork(2.0 * shape.fusion_parameters * tokens, moved)


def roofline_ms(work: PassWork, roofline: Roofline, dtype: DType) -> float:
    """Milliseconds: the slower of computing and moving, at the device's efficiencies.

    A type whose peak is not given computes at the peak of another type of its size, else at the
    lowest peak that is given.
    """
    peaks = roofline.tflops
    used = compute_dtype(dtype)
    alike = [peak for known, peak in peaks.items() if BYTES[known] == BYTES[used]]
    peak = peaks.get(used) or (alike[0] if alike else min(peaks.values()))
    computing = work.flops / (peak * 1e9 * roofline.compute_efficiency)
    moving = work.moved_bytes / (roofline.memory_gb_s * 1e6 * roofline.memory_efficiency)
    return max(computing, moving)
