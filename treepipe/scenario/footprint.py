"""Sizes of a model, as a profile or an opened checkpoint states them."""

from __future__ import annotations

from dataclasses import dataclass

from treepipe.profiles.shapes import BYTES, STATE_BYTES, DType, Shape, compute_dtype

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a model, as far as they are known (``vocabulary`` counts logits).

    Attributes:
        layer_bytes: weights of a layer.
        kv_bytes: keys and values of a token in a layer.
        windows: (window, bytes) of those of ``kv_bytes`` that only the last tokens hold.
        state_bytes: what a layer keeps of a request, whatever its length.
        row_bytes: one row's hidden state.
        ends_bytes: embedding and output projection, and the input part of an EAGLE head.
        embedding_bytes: the embedding alone; the output projection has the same size.
        tied: the output projection is the embedding, so that a role with both holds one matrix.
        vocabulary: logits of a row.
    """

    layer_bytes: float
    kv_bytes: float
    row_bytes: float = 0.0
    ends_bytes: float = 0.0
    embedding_bytes: float = 0.0
    tied: bool = False
    vocabulary: int = 0
    windows: tuple[tuple[int, float], ...] = ()
    state_bytes: float = 0.0

    def entry_bytes(self, entries: int) -> float:
        """Return the bytes of one of a request's ``entries`` in a layer's cache, on average."""
        number = max(1, entries)
        spared = sum(own * max(0.0, 1 - window / number) for window, own in self.windows)
        return self.kv_bytes - spared + self.state_bytes / number

    def stage_ends_bytes(self, first: bool, last: bool) -> float:
        """Return the bytes of the target's ends that a stage of the pipeline holds."""
        return self.embedding_bytes * (1 if self.tied and first and last else first + last)

    @classmethod
    def of_shape(cls, shape: Shape, dtype: DType) -> Footprint:
        """Return the footprint of a model whose sizes are known."""
        # Quantized models keep what is around their layers in the type they compute in.
        full = BYTES[compute_dtype(dtype)]
        return cls(
            shape.layer_bytes(dtype),
            shape.kv_bytes(dtype),
            shape.row_bytes(dtype),
            shape.end_parameters * full,
            shape.head_parameters * full,
            shape.tied,
            shape.vocabulary,
            tuple(
                (kind.window, full * kind.cached * kind.layers / shape.layers)
                for kind in shape.kinds
                if kind.window is not None
            ),
            shape.state * STATE_BYTES,
        )
