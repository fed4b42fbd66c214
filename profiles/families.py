"""Families of models, a record each, by the ``model_type`` of their ``config.json``.

A record (``families.toml``) says what the layers of a family have apart from Llama's, and which
values transformers takes where a file leaves keys out. Here belongs what is counted from sizes
alone; ``model_config`` reads the file. Source: the model classes of transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from treepipe.core.errors import UserError
from treepipe.files.section import Section
from treepipe.files.toml_file import read_toml, validated

MOST_LAYERS = 10_000
"""A bound that keeps lists of layers small."""
WAY_OUT = (
    "write its sizes as a model profile by hand, or give target.layers and devices with stage_ms"
)
FULL, SLIDING, CHUNKED, LINEAR = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
)
"""Kinds of layers, by the names of ``layer_types``."""
WINDOWS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
"""Keys of the tokens that a row of a kind attends to."""


class Keys:
    """The keys of a ``config.json``; it remembers those that were asked for."""

    def __init__(self, path: Path, content: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        """Args: ``defaults``: values of keys that the file leaves out; its nulls stay."""
        self.path, self._content, self._defaults = path, content, defaults
        self._asked = set[str]()

    def get(self, key: str) -> Any:
        """Return a key's value; None if neither file nor family has one."""
        self._asked.add(key)
        return self._content[key] if key in self._content else self._defaults.get(key)

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = 2**40) -> int:
        """Return a whole number. Raises ``UserError`` if there is none that makes sense."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise UserError(
                f"{self.path}: key {key} is missing; a model's sizes cannot be read without it; "
                f"{WAY_OUT}"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(
                f"{self.path}: key {key} = {value!r} must be a whole number of at least {least}"
            )
        if value > most:
            raise UserError(f"{self.path}: key {key} = {value} is above {most}")
        return value

    def flag(self, key: str) -> bool:
        """Return a truth value. Raises ``UserError`` if it is anything else."""
        value = self.get(key)
        if not isinstance(value, bool | None):
            raise UserError(f"{self.path}: key {key} = {value!r} must be true or false")
        return bool(value)

    def list(self, key: str) -> list[Any]:
        """Return a list; empty if there is none. Raises ``UserError`` if it is anything else."""
        value = self.get(key)
        if not isinstance(value, list | None):
            raise UserError(f"{self.path}: key {key} = {value!r} must be a list")
        return value or []

    def unread_but(self, harmless: Container[str]) -> dict[str, Any]:
        """Return the keys with a value that nobody asked for, except harmless ones."""
        return {
            key: value
            for key, value in self._content.items()
            if key not in self._asked and key not in harmless and value not in (None, False, [], {})
        }


class Mixer(NamedTuple):
    """A layer's attention, or what stands in its place: figures as of ``LayerKind``."""

    weights: int
    cached: int
    operations: int
    state: int = 0


class ModelFamily(Section):
    """What the layers of a family have apart from Llama's (``families.toml``).

    Attributes:
        defaults: values of keys that a file may leave out.
        norms: of the hidden size, in a layer.
        head_norms: norms of queries and keys: "" none, "head" one size of a head each, "all" as
            wide as all of their heads.
        head_norms_if: key that says whether there are such norms.
        biased: projections that ``attention_bias`` is about.
        gated: the queries' projection also makes a gate of the attention's output.
        sinks: a number for each head that is no token's.
        mixers: how to count each kind of layer that the family knows.
        period: where a file lists no ``layer_types``: the number of layers of which the last one
            attends to all tokens (0: none does), unless the file says it with ``period_key``; None:
            all do.
        others: the kind of all layers but these.
        slides: key that must be true for windows to count.
        dense: key of a dense layer's inner width.
        shared: shared experts that no key counts.
        shared_gate: a shared expert has a gate.
        expert_bias: experts and router have biases.
        beside: a dense MLP works beside the experts of each layer.
    """

    defaults: Mapping[str, bool | int] = Field(default_factory=dict)
    norms: int = 2
    head_norms: Literal["", "head", "all"] = ""
    head_norms_if: str | None = None
    biased: Literal["qkvo", "qkv"] = "qkvo"
    gated: bool = False
    sinks: bool = False
    mixers: Mapping[str, str] = Field(default_factory=lambda: {FULL: "plain", SLIDING: "plain"})
    period: int | None = None
    period_key: str = ""
    others: str = SLIDING
    slides: str | None = None
    dense: str = "intermediate_size"
    shared: int = 0
    shared_gate: bool = False
    expert_bias: bool = False
    beside: bool = False

    def kinds(self, keys: Keys, layers: int) -> list[str]:
        """Return the kind of every layer. Raises ``UserError`` if one is unknown."""
        listed, period = keys.list("layer_types"), self.period
        if self.period_key and keys.get(self.period_key) is not None and not listed:
            period = keys.size(self.period_key, most=MOST_LAYERS)
        if listed and len(listed) != layers:
            raise UserError(
                f"{keys.path}: key layer_types lists {len(listed)} layers, but num_hidden_layers "
                f"= {layers}"
            )
        if not listed and period is not None:
            listed = [
                FULL if period and (n + 1) % period == 0 else self.others for n in range(layers)
            ]
        kinds = listed or [FULL] * layers
        for kind in kinds:
            if not isinstance(kind, str) or kind not in self.mixers:
                raise UserError(
                    f"{keys.path}: key layer_types holds {kind!r}, which cannot be counted in this "
                    f"family; {WAY_OUT}"
                )
        for window in (WINDOWS[kind] for kind in self.mixers if kind in WINDOWS):
            if listed or self.period is not None:
                keys.get(window)
        if self.slides is not None and not keys.flag(self.slides):
            return [FULL if kind in WINDOWS else kind for kind in kinds]
        first = 0 if self.slides is None else keys.size("max_window_layers", 0, least=0)
        kinds = [FULL if n < first and kind in WINDOWS else kind for n, kind in enumerate(kinds)]
        return [
            FULL if kind in WINDOWS and keys.get(WINDOWS[kind]) is None else kind for kind in kinds
        ]


# --- what a layer has in front of its MLP ---------------------------------------------------------


def heads_of(keys: Keys) -> tuple[int, int, int]:
    """Return the heads of queries, those of keys and values, and their size."""
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise UserError(
            f"{keys.path}: key num_key_value_heads = {kv_heads} does not divide "
            f"num_attention_heads = {heads}"
        )
    return heads, kv_heads, keys.size("head_dim", max(1, keys.size("hidden_size") // heads))


def plain(family: ModelFamily, keys: Keys) -> Mixer:
    """Count attention with a cache of keys and values."""
    return _plain(family, keys, *heads_of(keys))


def _plain(
    family: ModelFamily, keys: Keys, heads: int, kv_heads: int, size: int, values: bool = True
) -> Mixer:
    hidden = keys.size("hidden_size")
    gated = family.gated and keys.get("attn_output_gate") is not False
    queries, kv = heads * size * (1 + gated), kv_heads * size
    weights = hidden * (queries + heads * size + kv * (1 + values))
    if keys.flag("attention_bias") and keys.get("qkv_bias") is not False:
        weights += queries + 2 * kv + hidden * ("o" in family.biased)
    if family.head_norms_if is None or keys.flag(family.head_norms_if):
        weights += {"": 0, "head": 2 * size, "all": heads * size + kv}[family.head_norms]
    return Mixer(weights + heads * family.sinks, 2 * kv, 4 * heads * size)


def latent(family: ModelFamily, keys: Keys) -> Mixer:
    """Count multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), whose operations are those
    with the latent itself (its projections absorbed), and the indexer of DeepSeek-V3.2."""
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    rank, rotary = keys.size("kv_lora_rank"), keys.size("qk_rope_head_dim")
    head, value = keys.size("qk_nope_head_dim"), keys.size("v_head_dim")
    queries, wide = keys.get("q_lora_rank"), heads * (head + rotary)
    if queries is None:
        weights = hidden * wide
    else:
        queries = keys.size("q_lora_rank")
        weights = hidden * queries + queries + queries * wide
    weights += hidden * (rank + rotary) + rank + rank * heads * (head + value)
    weights += heads * value * hidden
    if keys.flag("attention_bias"):
        weights += (queries or wide) + rank + rotary + hidden
    cached, operations = rank + rotary, 2 * heads * (2 * rank + rotary)
    if count := keys.size("index_n_heads", 0, least=0):
        size, owners = keys.size("index_head_dim"), keys.list("indexer_types")
        share = owners.count("full") / len(owners) if owners else 1  # others use one's choice
        indexer = (queries or hidden) * count * size + hidden * (size + count) + 2 * size
        weights += round(share * indexer)
        cached += round(share * size)
        operations += round(share * 2 * count * size)
    return Mixer(weights, cached, operations)


def delta_net(family: ModelFamily, keys: Keys) -> Mixer:
    """Count a gated delta net (Yang et al., arXiv 2412.06464), with a convolution before it."""
    hidden, values = keys.size("hidden_size"), keys.size("linear_num_value_heads")
    key, value = keys.size("linear_key_head_dim"), keys.size("linear_value_head_dim")
    keyed, valued = keys.size("linear_num_key_heads") * key, values * value
    mixed, kernel = 2 * keyed + valued, keys.size("linear_conv_kernel_dim")
    weights = hidden * (mixed + valued + 2 * values) + valued * hidden
    weights += mixed * kernel + 2 * values + value
    return Mixer(weights, 0, 0, values * key * value + mixed * (kernel - 1))


def gemma4_full(family: ModelFamily, keys: Keys) -> Mixer:
    """Count Gemma 4's layers without a window, whose heads are wider and may share a matrix of keys
    and values."""
    heads, kv_heads, size = heads_of(keys)
    each = keys.get("per_layer_config")
    first = next(iter(each.values()), None) if isinstance(each, dict) else None
    own = Keys(keys.path, first if isinstance(first, dict) else {}, {})
    size = own.size("head_dim", keys.size("global_head_dim", size))
    one, few = keys.flag("attention_k_eq_v"), keys.size("num_global_key_value_heads", kv_heads)
    kv_heads = own.size("num_key_value_heads", few if one else kv_heads)
    return _plain(family, keys, heads, kv_heads, size, not one)


# --- the records ----------------------------------------------------------------------------------

MIXERS: Mapping[str, Callable[[ModelFamily, Keys], Mixer]] = {
    "plain": plain,
    "latent": latent,
    "delta_net": delta_net,
    "gemma4_full": gemma4_full,
}


@cache
def families() -> dict[str, ModelFamily]:
    """Return the records by name, read at first use: few commands need them."""
    path, known = Path(__file__).with_suffix(".toml"), dict[str, dict[str, Any]]()
    for name, facts in read_toml(path).items():
        base = known.get(facts.pop("like", ""), {})
        defaults = {**base.get("defaults", {}), **facts.get("defaults", {})}
        known[name] = {**base, **facts, "defaults": defaults}
    return {name: validated(ModelFamily, each, path) for name, each in known.items()}


ALIASES = {
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "mistral3": "mistral",
}
"""Families that differ from another in what reads no text."""
