"""The shape of a model, and its parameters, bytes and sizes.

Llama-like decoder layers (Llama, Mistral, Qwen 2 and 3, and EAGLE heads, which are one such layer
behind a fusion of embedding and hidden state). Nothing here depends on a device.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, model_validator

from treepipe.files.section import Count, Section

DType: TypeAlias = Literal["float32", "float16", "bfloat16", "int8", "int4"]

BYTES: dict[DType, float] = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "int8": 1.0,
    "int4": 0.5625,  # with one float32 scale per block of 64 weights (bitsandbytes' NF4)
}
"""Bytes of a weight."""


def compute_dtype(dtype: DType) -> DType:
    """Type of hidden states, keys and values; quantized weights compute in float16."""
    return "float16" if dtype in ("int8", "int4") else dtype


class Shape(Section):
    """Sizes of a Llama-like model."""

    hidden_size: Count = Field(description="numbers in a row's hidden state")
    intermediate_size: Count = Field(description="of the gated MLP (three matrices)")
    layers: Count = Field(description="number of decoder layers")
    heads: Count = Field(description="of the queries")
    kv_heads: Count = Field(description="of keys and values")
    head_dim: Count = Field(description="numbers of a head")
    vocabulary: Count = Field(description="number of tokens")
    tied: bool = Field(False, description="the output projection is the embedding")
    attention_bias: bool = Field(False, description="queries, keys, values have biases (Qwen 2)")
    query_norm: bool = Field(False, description="norms on queries and keys (Qwen 3)")
    eagle: bool = Field(False, description="an EAGLE head: fuses embedding and hidden state first")

    @model_validator(mode="after")
    def _heads_divide(self) -> Shape:
        if self.heads % self.kv_heads:
            raise ValueError(f"key kv_heads = {self.kv_heads} does not divide heads = {self.heads}")
        return self

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of a layer's seven matrices."""
        queries = self.heads * self.head_dim
        keys = self.kv_heads * self.head_dim
        attention = self.hidden_size * (2 * queries + 2 * keys)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def layer_parameters(self) -> int:
        """All weights of a layer, with norms and biases."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = (queries + 2 * keys) * self.attention_bias + 2 * self.head_dim * self.query_norm
        return self.layer_matrix_parameters + 2 * self.hidden_size + biases

    @property
    def head_parameters(self) -> int:
        """Weights of the output projection."""
        return self.hidden_size * self.vocabulary

    @property
    def fusion_parameters(self) -> int:
        """Weights in front of the layers: an EAGLE head's [hidden, 2 hidden] matrix."""
        return 2 * self.hidden_size**2 if self.eagle else 0

    @property
    def parameters(self) -> int:
        """Weights of the whole model; an EAGLE head borrows embedding and output projection."""
        own = 0 if self.eagle else self.head_parameters * (1 if self.tied else 2)
        last_norm = 0 if self.eagle else self.hidden_size
        return self.layers * self.layer_parameters + self.fusion_parameters + own + last_norm

    def layer_bytes(self, dtype: DType) -> float:
        """Bytes of a layer's weights; norms and biases count as quantized, too."""
        return self.layer_parameters * BYTES[dtype]

    def kv_bytes(self, dtype: DType) -> float:
        """Bytes of one token's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_dim * BYTES[compute_dtype(dtype)]

    def row_bytes(self, dtype: DType) -> int:
        """Bytes of one row of hidden states."""
        return round(self.hidden_size * BYTES[compute_dtype(dtype)])

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Sizes that a layer's time depends on."""
        sizes = (self.hidden_size, self.intermediate_size, self.heads, self.kv_heads)
        return (*sizes, self.head_dim)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that a whole model's time depends on."""
        return (*self.layer_sizes, self.layers, self.vocabulary, self.eagle)

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """Sizes that the output projection's time depends on."""
        return self.hidden_size, self.vocabulary
