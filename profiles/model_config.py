"""Reading a Hugging Face ``config.json`` as a model profile: sizes, never weights."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.files.reading import read_json
from treepipe.files.toml_file import validated
from treepipe.profiles.schema import ModelProfile
from treepipe.profiles.shapes import BYTES

REQUIRED = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocabulary": "vocab_size",
}
"""Our names -> those of ``config.json``."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of routed experts in families of mixtures."""


def read_config(path: Path) -> ModelProfile:
    """Read a model's sizes. Raises ``UserError`` if one is missing or makes no sense."""
    config = read_json(path)
    inner = config.get("text_config") or config.get("transformer_layer_config") or {}
    config = {**config, **inner}
    if config.get("kv_lora_rank"):
        raise UserError(f"{path}: key kv_lora_rank: sizes of latent attention are not supported")
    experts = _experts(config, path)
    width = None if experts is None else experts["size"]  # some mixtures have no dense layer
    sizes = {ours: _size(config, theirs, path) for ours, theirs in REQUIRED.items()}
    heads = sizes["heads"]
    kv_heads = _size(config, "num_key_value_heads", path, heads)
    if heads % kv_heads:
        raise UserError(
            f"{path}: key num_key_value_heads = {kv_heads} does not divide "
            f"num_attention_heads = {heads}"
        )
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    if dtype not in BYTES:
        raise UserError(f"{path}: key dtype = {dtype!r} is not one of {', '.join(BYTES)}")
    written = datetime.date.fromtimestamp(path.stat().st_mtime)
    family = str(config.get("model_type", ""))
    return validated(
        ModelProfile,
        {
            **sizes,
            "intermediate_size": _size(config, "intermediate_size", path, width),
            "experts": experts,
            "vocabulary": config.get("draft_vocab_size") or sizes["vocabulary"],
            "kv_heads": kv_heads,
            "head_dim": _size(config, "head_dim", path, sizes["hidden_size"] // heads),
            "tied": bool(config.get("tie_word_embeddings", False)),
            "attention_bias": bool(config.get("attention_bias", family.startswith("qwen2"))),
            "query_norm": family.startswith("qwen3"),
            "dtype": dtype,
            "origin": {"source": str(path), "date": written},
        },
        path,
    )


def _experts(config: dict[str, Any], path: Path) -> dict[str, int] | None:
    """Return the sizes of a mixture's experts; None for a dense model."""
    count = max(_size(config, key, path, 0, least=0) for key in EXPERTS)
    if count < 2:
        return None
    layers = range(_size(config, "num_hidden_layers", path))
    size = _size(config, "moe_intermediate_size", path, config.get("intermediate_size"))
    shared = size * _size(config, "n_shared_experts", path, 0, least=0)
    named = config.get("mlp_only_layers") or []
    if not isinstance(named, list):
        raise UserError(f"{path}: key mlp_only_layers = {named!r} must be a list")
    first = _size(config, "first_k_dense_replace", path, 0, least=0)
    step = _size(config, "decoder_sparse_step", path, 1)
    return {
        "count": count,
        "per_token": _size(config, "num_experts_per_tok", path),
        "size": size,
        "shared_size": _size(config, "shared_expert_intermediate_size", path, shared, least=0),
        "dense_layers": sum(n in named or n < first or (n + 1) % step != 0 for n in layers),
    }


def _size(
    config: dict[str, Any], key: str, path: Path, default: int | None = None, least: int = 1
) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise UserError(f"{path}: key {key} is missing; a model's sizes cannot be read without it")
    if not isinstance(value, int) or value < least:
        raise UserError(f"{path}: key {key} = {value!r} must be a whole number of at least {least}")
    return value
