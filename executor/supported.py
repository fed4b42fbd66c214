"""The supported settings of a checkpoint's ``config.json`` and ``generation_config.json``.

Invariant: an accepted checkpoint gives the same text as ``generate()`` of transformers; any other
setting raises an error that names it, or a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.files.reading import read_json
from treepipe.profiles.model_config import read_config as read_sizes

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional", "dynamic", "longrope")
"""Rotary embeddings whose frequencies do not depend on the other rows of a pass. Those of the last
two change with the longest position, so texts end before: ``max_positions``."""
LAYER_TYPES = ("full_attention", "sliding_attention")
REFUSED = ("quantization_config", "per_layer_config", "kv_sharing_modes", "attention_chunk_size")
"""Keys that change the layers; only None is accepted."""
NEUTRAL = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0,
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "stop_strings": None,
}
"""Keys by which ``generate()`` changes or ends even a greedy text, and their neutral values."""


def read_config(path: Path) -> tuple[Any, str]:
    """Read a ``config.json`` as a transformers configuration and its architecture.

    Raises:
        UserError: it cannot be read, or holds an unsupported setting.
    """
    from treepipe.executor.families import FAMILIES, AutoConfig  # it takes seconds

    content = read_json(path)
    listed = content.get("architectures")
    named = listed[0] if isinstance(listed, list) and listed else "none"
    family = FAMILIES.get(named) if isinstance(named, str) else None
    if family is None:
        raise UserError(
            f"{path}: key architectures = {named!r} is not supported; "
            f"supported are {', '.join(FAMILIES)}"
        )
    if content.get("model_type") != family.model_type:
        raise UserError(
            f"{path}: key model_type = {content.get('model_type')!r} does not belong to {named}, "
            f"which is {family.model_type!r}"
        )
    read_sizes(path)  # raises where one is missing or wrong
    config = config_of(path, partial(AutoConfig.from_pretrained, path, local_files_only=True))
    for key in REFUSED:
        if getattr(config, key, None) is not None and key in content:
            raise UserError(f"{path}: key {key} is not supported")
    if not getattr(config, "is_causal", True):
        raise UserError(f"{path}: key is_causal = false is not supported; texts are causal")
    _check_layer_types(config, path)
    return config, str(named)


def config_of(path: Path, load: Callable[[], Any]) -> Any:
    """Load a file's transformers configuration. Raises ``UserError`` if it cannot be loaded, or its
    rotary embedding is of no supported kind."""
    try:
        config = load()
    except Exception as error:  # transformers raises many kinds for a config it cannot read
        raise UserError(f"{path}: is not usable: {reason_of(error)}") from None
    _check_rope(config, path)
    config._attn_implementation = "sdpa"
    return config


def reason_of(error: Exception) -> str:
    """Format a library's exception as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _check_rope(config: Any, path: Path) -> None:
    rope = config.rope_parameters or {}
    kind = rope.get("rope_type", "default")
    if any(isinstance(value, dict) for value in rope.values()):
        raise UserError(
            f"{path}: key rope_parameters differs between layers, which is not supported"
        )
    if kind not in ROPE_TYPES:
        raise UserError(
            f"{path}: key rope_parameters.rope_type = {kind!r} is not supported; supported are "
            f"{', '.join(ROPE_TYPES)}"
        )
    share = rope.get("partial_rotary_factor", 1.0)
    if kind != "proportional" and share != 1.0:
        raise UserError(
            f"{path}: key rope_parameters.partial_rotary_factor = {share} is supported for "
            f"rope_type 'proportional' only, not for {kind!r}"
        )


def _check_layer_types(config: Any, path: Path) -> None:
    types = getattr(config, "layer_types", None) or ()
    for each in types:
        if each not in LAYER_TYPES:
            raise UserError(
                f"{path}: key layer_types holds {each!r}; supported are {', '.join(LAYER_TYPES)}"
            )
    if "sliding_attention" in types and not getattr(config, "sliding_window", None):
        raise UserError(
            f"{path}: key layer_types holds 'sliding_attention', but there is no sliding_window "
            f"(or use_sliding_window is false)"
        )


def head_size(config: Any) -> int:
    """Width of an attention head, which a configuration need not name."""
    named = getattr(config, "head_dim", None)
    return int(named or config.hidden_size // config.num_attention_heads)


def max_positions(config: Any) -> int:
    """Length of the longest text whose rows attend to all before them, with fixed frequencies.

    A sliding window limits the former, the original context of ``longrope`` the latter.
    """
    limits = [config.max_position_embeddings]
    window, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if window and (not types or "sliding_attention" in types or config.model_type == "mistral"):
        limits.append(window)
    rope = config.rope_parameters or {}
    if rope.get("rope_type") == "longrope":
        limits.append(rope["original_max_position_embeddings"])
    return int(min(limits))


# --- as generate() does --------------------------------------------------------------------------


def end_tokens(directory: Path) -> frozenset[int]:
    """Tokens that end a text in ``generate()``: those of ``generation_config.json`` if the file
    exists (even if it names no token), else those of ``config.json``.

    Raises:
        UserError: they are neither a token id, a list of token ids, nor null.
    """
    path, content = _generation(directory)
    found = content.get("eos_token_id")
    tokens = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        raise UserError(
            f"{path}: key eos_token_id = {found!r} must be a token id or a list of token ids"
        )
    return frozenset(tokens)


def generation_warnings(directory: Path) -> list[str]:
    """Warnings of changes by ``generate()`` to a greedy text that the executor does not make."""
    path, content = _generation(directory)
    asked = {
        key: content[key]
        for key, neutral in NEUTRAL.items()
        if content.get(key) is not None and content[key] != neutral
    }
    return [
        f"{path}: key {key} = {value!r} is not applied; the text is plain decoding's without it"
        for key, value in asked.items()
    ]


def _generation(directory: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file of ``generate()``'s defaults, and its content."""
    own = directory / "generation_config.json"
    path = own if own.exists() else directory / "config.json"
    return path, read_json(path)
