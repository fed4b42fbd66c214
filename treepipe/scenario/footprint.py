"""How large a model is, as far as a scenario, a profile or an opened checkpoint says it."""

from __future__ import annotations

from dataclasses import dataclass

from treepipe.profiles.shapes import BYTES, DType, Shape, compute_dtype
from treepipe.scenario.schema import Model

MIB, KIB = 2**20, 2**10


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a model, as far as they are known.

    Attributes:
        layer_bytes: weights of a layer.
        kv_bytes: keys and values of a token in a layer.
        row_bytes: one row's hidden state.
        ends_bytes: embedding and output projection, and what is in front of an EAGLE head's layer.
        vocabulary: logits of a row.
    """

    layer_bytes: float
    kv_bytes: float
    row_bytes: float = 0.0
    ends_bytes: float = 0.0
    vocabulary: int = 0

    @classmethod
    def of(cls, model: Model) -> Footprint | None:
        """The footprint that a scenario gives; None if it does not."""
        if model.layer_mib is None or model.kv_kib is None:
            return None
        return cls(model.layer_mib * MIB, model.kv_kib * KIB)

    @classmethod
    def of_shape(cls, shape: Shape, dtype: DType) -> Footprint:
        """The footprint of a model whose sizes are known."""
        # Quantized models keep what is around their layers in the type they compute in.
        rest = shape.parameters - shape.layers * shape.layer_parameters
        return cls(
            shape.layer_bytes(dtype),
            shape.kv_bytes(dtype),
            shape.row_bytes(dtype),
            rest * BYTES[compute_dtype(dtype)],
            shape.vocabulary,
        )
