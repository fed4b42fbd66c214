"""The shape of a model, and its parameters, bytes and sizes.

Llama-like decoder layers (Llama, Mistral, Qwen 2 and 3, and EAGLE heads, which are one such layer
behind a fusion of embedding and hidden state), and mixtures of experts (Mixtral, Qwen 3 MoE,
GPT-OSS). Nothing here depends on a device.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

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


class Experts(Section):
    """The MLPs of a mixture of experts; a router picks some of them for each row."""

    count: Count = Field(description="routed experts of a layer")
    per_token: Count = Field(description="of them, that a row is routed to")
    size: Count = Field(description="inner width of one")
    shared_size: Annotated[int, Field(ge=0)] = Field(
        0, description="inner width of what every row passes besides"
    )
    dense_layers: Annotated[int, Field(ge=0)] = Field(
        0, description="layers with one MLP of intermediate_size instead"
    )

    @model_validator(mode="after")
    def _routes_to_some(self) -> Experts:
        if self.per_token > self.count:
            raise ValueError(f"key per_token = {self.per_token} is above count = {self.count}")
        return self

    def touched(self, rows: int) -> float:
        """Expected number of distinct experts that a pass reads: E (1 - (1 - k/E)^n) for n rows.

        Each row's k of E experts are taken as independent and uniform. Texts' rows prefer the same
        experts, so that this is an upper bound.

        >>> Experts(count=256, per_token=8, size=512).touched(1)
        8.0
        """
        return self.count * (1 - (1 - self.per_token / self.count) ** rows)


class Shape(Section):
    """Sizes of a Llama-like model.

    Layers count as equal: those of a mixture with some dense layers as their mean.
    """

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
    experts: Experts | None = Field(None, description="of a mixture; none: a dense model")
    inputs: int = Field(
        0, ge=0, description="an EAGLE-3 head: so many states of the target's width enter it"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Shape:
        if self.heads % self.kv_heads:
            raise ValueError(f"key kv_heads = {self.kv_heads} does not divide heads = {self.heads}")
        if self.experts is not None and self.experts.dense_layers >= self.layers:
            raise ValueError(f"key experts.dense_layers leaves no mixture of {self.layers} layers")
        return self

    def mlp_width(self, rows: int | None) -> float:
        """Mean inner width of the layers' MLPs that a pass of ``rows`` reads; None: of all."""
        experts = self.experts
        if experts is None:
            return self.intermediate_size
        read = experts.count if rows is None else experts.touched(rows)
        dense, width = experts.dense_layers / self.layers, read * experts.size + experts.shared_size
        return dense * self.intermediate_size + (1 - dense) * width

    def matrix_parameters(self, rows: int | None) -> float:
        """Weights of a layer's matrices that a pass of ``rows`` reads; None: of all."""
        queries = self.heads * self.head_dim
        keys = self.kv_heads * self.head_dim
        attention = self.hidden_size * (2 * queries + 2 * keys)
        router = 0 if self.experts is None else self.hidden_size * self.experts.count
        return attention + router + 3 * self.hidden_size * self.mlp_width(rows)

    def read_parameters(self, rows: int | None) -> float:
        """Weights of a layer that a pass of ``rows`` reads, with norms and biases; None: of all."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = (queries + 2 * keys) * self.attention_bias + 2 * self.head_dim * self.query_norm
        return self.matrix_parameters(rows) + 2 * self.hidden_size + biases

    @property
    def layer_parameters(self) -> int:
        """All weights of a layer."""
        return round(self.read_parameters(None))

    @property
    def head_parameters(self) -> int:
        """Weights of the output projection."""
        return self.hidden_size * self.vocabulary

    @property
    def fusion_parameters(self) -> int:
        """Weights in front of the layers: an EAGLE head's [hidden, 2 hidden] matrix; an EAGLE-3
        head's [hidden, inputs hidden] and the wider half of its first queries, keys and values."""
        if self.inputs:
            attention = (self.heads + 2 * self.kv_heads) * self.head_dim
            return self.hidden_size * (self.inputs * self.hidden_size + attention)
        return 2 * self.hidden_size**2 if self.eagle else 0

    @property
    def parameters(self) -> int:
        """Weights of the whole model; an EAGLE head borrows embedding and output projection, an
        EAGLE-3 head the embedding."""
        ends = 1 if self.tied or self.inputs else 2
        own = 0 if self.eagle else self.head_parameters * ends
        last_norm = 0 if self.eagle else self.hidden_size
        return self.layers * self.layer_parameters + self.fusion_parameters + own + last_norm

    def layer_bytes(self, dtype: DType, rows: int | None = None) -> float:
        """Bytes of a layer's weights that a pass of ``rows`` reads; None: of all. Norms and biases
        count as quantized, too."""
        return self.read_parameters(rows) * BYTES[dtype]

    def kv_bytes(self, dtype: DType) -> float:
        """Bytes of one token's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_dim * BYTES[compute_dtype(dtype)]

    def row_bytes(self, dtype: DType) -> int:
        """Bytes of one row of hidden states."""
        return round(self.hidden_size * BYTES[compute_dtype(dtype)])

    @property
    def layer_sizes(self) -> tuple[float, ...]:
        """Sizes that a layer's time depends on."""
        routing = (1, 1) if self.experts is None else (self.experts.count, self.experts.per_token)
        widths = (self.mlp_width(1), self.mlp_width(None))
        return (self.hidden_size, *widths, self.heads, self.kv_heads, self.head_dim, *routing)

    @property
    def sizes(self) -> tuple[float, ...]:
        """Sizes that a whole model's time depends on."""
        return (*self.layer_sizes, self.layers, self.vocabulary, self.eagle, self.inputs)

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """Sizes that the output projection's time depends on."""
        return self.hidden_size, self.vocabulary
