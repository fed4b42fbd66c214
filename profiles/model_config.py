"""Reading a Hugging Face ``config.json`` as a model profile: sizes, never weights."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.files.reading import read_json
from treepipe.profiles.schema import ModelProfile
from treepipe.profiles.shapes import BYTES

REQUIRED = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocabulary": "vocab_size",
}
"""Our names -> those of ``config.json``."""


def read_config(path: Path) -> ModelProfile:
    """Read a model's sizes. Raises ``UserError`` if one is missing or makes no sense."""
    config = read_json(path)
    config = {**config, **(config.get("text_config") or {})}
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
    return ModelProfile.model_validate(
        {
            **sizes,
            "kv_heads": kv_heads,
            "head_dim": _size(config, "head_dim", path, sizes["hidden_size"] // heads),
            "tied": bool(config.get("tie_word_embeddings", False)),
            "attention_bias": bool(config.get("attention_bias", family.startswith("qwen2"))),
            "query_norm": family.startswith("qwen3"),
            "dtype": dtype,
            "origin": {"source": str(path), "date": written},
        }
    )


def _size(config: dict[str, Any], key: str, path: Path, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise UserError(f"{path}: key {key} is missing; a model's sizes cannot be read without it")
    if not isinstance(value, int) or value < 1:
        raise UserError(f"{path}: key {key} = {value!r} must be a whole number of at least 1")
    return value
