"""The shape of a model, and its parameters, bytes and sizes.

Llama-like decoder layers (Llama, Mistral, Qwen 2 and 3, and EAGLE heads, which are one such layer
behind a fusion of embedding and hidden state), mixtures of experts (Mixtral, Qwen 3 MoE, GPT-OSS),
and layers of other attention: with a window, latent (DeepSeek-V2) or linear (gated delta nets).
Nothing here depends on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from treepipe.files.section import Count, Section

DType: TypeAlias = Literal["float32", "float16", "bfloat16", "int8", "float8", "int4"]

BYTES: dict[DType, float] = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "int8": 1.0,
    "float8": 1.0,
    "int4": 0.5625,  # with one float32 scale per block of 64 weights (bitsandbytes' NF4)
}
"""Bytes of a weight."""
STATE_BYTES = 4
"""Bytes of a number of a linear layer's state, which engines keep in float32."""


def compute_dtype(dtype: DType) -> DType:
    """Type of hidden states, keys and values; quantized weights compute in float16."""
    return "float16" if BYTES[dtype] < 2 else dtype


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
    biases: Annotated[int, Field(ge=0)] = Field(0, description="numbers of one expert's biases")

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


class LayerKind(Section):
    """What some layers have in place of plain attention; their MLPs are like all others'."""

    layers: Count = Field(description="of this kind")
    weights: Count = Field(description="of one, all but its MLP's: attention, norms, biases")
    cached: Annotated[int, Field(ge=0)] = Field(description="numbers that a token adds to a cache")
    operations: Annotated[int, Field(ge=0)] = Field(
        description="floating-point operations of a row with each token before it"
    )
    window: Count | None = Field(None, description="tokens that it attends to; none: all")
    state: Annotated[int, Field(ge=0)] = Field(
        0, description="numbers that a request keeps in one, whatever its length"
    )
    kept: bool = Field(False, description="not quantized where the model is")

    def seen(self, tokens: int) -> int:
        """Tokens that a row attends to, of so many before it."""
        return tokens if self.window is None else min(tokens, self.window)


class Shape(Section):
    """Sizes of a Llama-like model.

    Layers count as equal: those of a mixture with some dense layers, and those of several kinds of
    attention, as their mean.
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
        0,
        ge=0,
        description="states of the target's width that enter an EAGLE-3 head (with eagle: a block "
        "draft, which borrows both of the target's ends)",
    )
    kinds: tuple[LayerKind, ...] = Field(
        (), description="of all layers, where not all have plain attention"
    )
    bits: Annotated[float, Field(gt=0, le=16)] | None = Field(
        None, description="of a quantized weight with its scales, where not those of the type"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Shape:
        if self.heads % self.kv_heads:
            raise ValueError(f"key kv_heads = {self.kv_heads} does not divide heads = {self.heads}")
        if self.experts is not None and self.experts.dense_layers >= self.layers:
            raise ValueError(f"key experts.dense_layers leaves no mixture of {self.layers} layers")
        if self.kinds and sum(kind.layers for kind in self.kinds) != self.layers:
            raise ValueError(f"keys kinds.layers do not add up to layers = {self.layers}")
        return self

    def shared(self, devices: int) -> Shape:
        """Return what the busiest of ``devices`` computes of layers and output projection that all
        of them share (tensor parallelism, Megatron-LM, arXiv 1909.08053).

        Whole remain the rows, norms and routers, a head of keys and values, and latent caches,
        which all heads read.
        """

        def part(size: int) -> int:
            return -(-size // devices)

        experts, heads = self.experts, part(self.kv_heads)
        if experts is not None:
            widths = ("size", "shared_size", "biases")
            parts = {name: part(getattr(experts, name)) for name in widths}
            experts = experts.model_copy(update=parts)
        plain = 2 * self.kv_heads * self.head_dim
        kinds = []
        for kind in self.kinds:
            parts = {name: part(getattr(kind, name)) for name in ("weights", "operations", "state")}
            if kind.cached >= plain:
                parts["cached"] = kind.cached * heads // self.kv_heads
            kinds.append(kind.model_copy(update=parts))
        sizes = {"heads": part(self.heads), "kv_heads": heads, "experts": experts}
        sizes |= {name: part(getattr(self, name)) for name in ("intermediate_size", "vocabulary")}
        return self.model_copy(update={**sizes, "kinds": tuple(kinds)})

    def mean(self, of: Callable[[LayerKind], float]) -> float:
        """Mean of a figure over the layers, whose kinds are known."""
        return sum(kind.layers * of(kind) for kind in self.kinds) / self.layers

    def mlp_width(self, rows: int | None) -> float:
        """Mean inner width of the layers' MLPs that a pass of ``rows`` reads; None: of all."""
        experts = self.experts
        if experts is None:
            return self.intermediate_size
        read = experts.count if rows is None else experts.touched(rows)
        dense, width = experts.dense_layers / self.layers, read * experts.size + experts.shared_size
        return dense * self.intermediate_size + (1 - dense) * width

    def matrix_parameters(self, rows: int | None) -> float:
        """Weights of a layer's matrices that a pass of ``rows`` reads; None: of all. With ``kinds``
        they include norms and biases."""
        if self.kinds:
            attention = self.mean(lambda kind: kind.weights)
        else:
            attention = self.hidden_size * 2 * (self.heads + self.kv_heads) * self.head_dim
        return attention + self.router_parameters + self.mlp_parameters(rows)

    def mlp_parameters(self, rows: int | None) -> float:
        """Mean weights of the layers' MLPs that a pass of ``rows`` reads; None: of all."""
        weights = 3 * self.hidden_size * self.mlp_width(rows)
        if self.experts is None or not self.experts.biases:
            return weights
        read = self.experts.count if rows is None else self.experts.touched(rows)
        return weights + read * self.experts.biases * (1 - self.experts.dense_layers / self.layers)

    @property
    def router_parameters(self) -> float:
        """Mean weights of the layers' routers."""
        if self.experts is None:
            return 0
        mixed = 1 - self.experts.dense_layers / self.layers
        return self.hidden_size * self.experts.count * mixed

    def read_parameters(self, rows: int | None) -> float:
        """Weights of a layer that a pass of ``rows`` reads, with norms and biases; None: of all."""
        if self.kinds:
            return self.matrix_parameters(rows)
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
        """Weights in front of the layers: an EAGLE head's [hidden, 2 hidden] matrix; a block
        draft's [hidden, inputs hidden]; an EAGLE-3 head's, and the wider half of its first queries,
        keys and values."""
        if not self.inputs:
            return 2 * self.hidden_size**2 if self.eagle else 0
        attention = 0 if self.eagle else (self.heads + 2 * self.kv_heads) * self.head_dim
        return self.hidden_size * (self.inputs * self.hidden_size + attention)

    @property
    def end_parameters(self) -> int:
        """Weights around the layers; an EAGLE head borrows embedding and output projection, an
        EAGLE-3 head the embedding."""
        ends = 1 if self.tied or self.inputs else 2
        own = 0 if self.eagle else self.head_parameters * ends
        last_norm = 0 if self.eagle else self.hidden_size
        return self.fusion_parameters + own + last_norm

    @property
    def parameters(self) -> int:
        """Weights of the whole model."""
        return round(self.layers * self.read_parameters(None)) + self.end_parameters

    @property
    def active_parameters(self) -> int:
        """Weights that a pass over one row reads, without the embedding."""
        embeds = not (self.eagle or self.tied or self.inputs)
        ends = self.end_parameters - self.head_parameters * embeds
        return round(self.layers * self.read_parameters(1)) + ends

    def layer_bytes(self, dtype: DType, rows: int | None = None) -> float:
        """Bytes of a layer's weights that a pass of ``rows`` reads; None: of all. Norms and biases
        count as quantized, too; what is kept, and routers where ``bits`` says how a checkpoint is
        quantized, have the type that is computed in."""
        full = BYTES[compute_dtype(dtype)]
        own = BYTES[dtype] if self.bits is None or BYTES[dtype] == full else self.bits / 8
        kept = self.mean(lambda kind: kind.weights * kind.kept) if self.kinds else 0
        kept += self.router_parameters if self.bits is not None else 0
        return self.read_parameters(rows) * own + kept * (full - own)

    def model_bytes(self, dtype: DType) -> float:
        """Bytes of all weights; those around the layers have the type that is computed in."""
        return (
            self.layers * self.layer_bytes(dtype)
            + self.end_parameters * BYTES[compute_dtype(dtype)]
        )

    @property
    def cached(self) -> float:
        """Numbers that a token adds to the caches of a layer."""
        if self.kinds:
            return self.mean(lambda kind: kind.cached)
        return 2 * self.kv_heads * self.head_dim

    @property
    def state(self) -> float:
        """Numbers of a request's state in a layer."""
        return self.mean(lambda kind: kind.state) if self.kinds else 0

    def kv_bytes(self, dtype: DType) -> float:
        """Bytes of one token's keys and values in one layer."""
        return self.cached * BYTES[compute_dtype(dtype)]

    def row_bytes(self, dtype: DType) -> int:
        """Bytes of one row of hidden states."""
        return round(self.hidden_size * BYTES[compute_dtype(dtype)])

    @property
    def layer_sizes(self) -> tuple[float, ...]:
        """Sizes that a layer's time depends on."""
        routing = (1, 1) if self.experts is None else (self.experts.count, self.experts.per_token)
        widths = (self.mlp_width(1), self.mlp_width(None))
        plain = self.model_copy(update={"kinds": ()}) if self.kinds else self
        other = self.read_parameters(None) / plain.read_parameters(None)
        caches = (1 + self.cached) / (1 + plain.cached), 1 + self.state
        sizes = self.hidden_size, *widths, self.heads, self.kv_heads, self.head_dim, *routing
        return (*sizes, other, *caches)  # the last three are 1 where attention is plain

    @property
    def sizes(self) -> tuple[float, ...]:
        """Sizes that a whole model's time depends on."""
        return (*self.layer_sizes, self.layers, self.vocabulary, self.eagle, self.inputs)

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """Sizes that the output projection's time depends on."""
        return self.hidden_size, self.vocabulary
