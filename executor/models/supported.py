"""The supported settings of a checkpoint's ``config.json`` and ``generation_config.json``.

Invariant: an accepted checkpoint gives the same text as ``generate()`` of transformers; any other
setting raises an error that names it, or a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treepipe.core.errors import UserError
from treepipe.files.reading import read_json
from treepipe.profiles.model_config import read_config as read_sizes

if TYPE_CHECKING:
    from treepipe.executor.models.families import Family

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional", "dynamic", "longrope")
"""Rotary embeddings whose frequencies do not depend on the other rows of a pass. Those of the last
two change with the longest position, so texts end before: ``max_positions``."""
LAYER_TYPES = ("full_attention", "sliding_attention")
REFUSED = ("per_layer_config", "kv_sharing_modes", "attention_chunk_size")
"""Keys that change the layers; only None is accepted."""
QUANTIZED = ("quantization_config", "compression_config")
"""Keys of quantized weights."""
INSTEAD = (
    "a run computes with weights of 16 or 32 bits: name the original or a dequantized copy "
    "(transformers loads MXFP4, FP8 and GGUF dequantized, and saves what it loaded), or predict "
    "with a device profile of imported times (treepipe profiles import)"
)
"""The way out for owners of quantized weights."""
OTHERS = {
    "Gemma3ForConditionalGeneration": "reads images, too; save its language model alone, as a "
    "Gemma3ForCausalLM with its model.language_model and lm_head",
}
"""Architectures that have something in the way, and what."""
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
    from treepipe.executor.models.families import FAMILIES, AutoConfig  # it takes seconds

    content = read_json(path)
    listed = content.get("architectures")
    named = listed[0] if isinstance(listed, list) and listed else "none"
    family = FAMILIES.get(named) if isinstance(named, str) else None
    if family is None:
        reason = OTHERS.get(named) if isinstance(named, str) else None
        raise UserError(
            f"{path}: key architectures = {named!r} is not supported; "
            + (f"it {reason}" if reason else f"supported are {', '.join(FAMILIES)}")
        )
    if content.get("model_type") != family.model_type:
        raise UserError(
            f"{path}: key model_type = {content.get('model_type')!r} does not belong to {named}, "
            f"which is {family.model_type!r}"
        )
    for key in QUANTIZED:
        if content.get(key):
            method = content[key].get("quant_method") if isinstance(content[key], dict) else None
            raise UserError(f"{path}: key {key} ({method or 'of no named method'}): {INSTEAD}")
    read_sizes(path)  # raises where one is missing or wrong
    config = config_of(
        path, partial(AutoConfig.from_pretrained, path, local_files_only=True), family
    )
    for key in REFUSED:
        if getattr(config, key, None) is not None and key in content:
            raise UserError(f"{path}: key {key} is not supported")
    for key, causal in (("is_causal", True), ("use_bidirectional_attention", False)):
        if bool(getattr(config, key, causal)) is not causal:
            value = str(not causal).lower()
            raise UserError(f"{path}: key {key} = {value} is not supported; texts are causal")
    _check_layer_types(config, path)
    return config, str(named)


def config_of(path: Path, load: Callable[[], Any], family: Family | None = None) -> Any:
    """Load a file's transformers configuration, of a family other than Llama if one is given.

    Raises:
        UserError: it cannot be loaded, or its rotary embedding is of no supported kind.
    """
    try:
        config = load()
    except Exception as error:  # transformers raises many kinds for a config it cannot read
        raise UserError(f"{path}: is not usable: {reason_of(error)}") from None
    for key, rope in _ropes(config, family).items():
        _check_rope(key, rope, path, share=family is not None and family.partial_rotary)
    config._attn_implementation = "sdpa" if family is None else family.attention
    config._experts_implementation = "eager"  # reads only the experts that a pass's rows touch
    return config


def reason_of(error: Exception) -> str:
    """Format a library's exception as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _ropes(config: Any, family: Family | None) -> dict[str, dict[str, Any]]:
    """Parameters of the rotary embeddings, by their key in ``config.json``."""
    rope = config.rope_parameters or {}
    if family is None or not family.rotary_by_kind:
        return {"rope_parameters": rope}
    return {f"rope_parameters.{kind}": rope[kind] for kind in LAYER_TYPES if kind in rope}


def _check_rope(key: str, rope: dict[str, Any], path: Path, *, share: bool) -> None:
    """Args: ``share``: whether the family rotates a share of a head's width."""
    kind = rope.get("rope_type", "default")
    if any(isinstance(value, dict) for value in rope.values()):
        raise UserError(f"{path}: key {key} differs between layers, which is not supported")
    if kind not in ROPE_TYPES:
        raise UserError(
            f"{path}: key {key}.rope_type = {kind!r} is not supported; supported are "
            f"{', '.join(ROPE_TYPES)}"
        )
    part = rope.get("partial_rotary_factor", 1.0)
    if not share and kind != "proportional" and part != 1.0:
        raise UserError(
            f"{path}: key {key}.partial_rotary_factor = {part} is supported for "
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
    if getattr(config, "mlp_only_layers", None) or getattr(config, "decoder_sparse_step", 1) != 1:
        raise UserError(
            f"{path}: keys mlp_only_layers and decoder_sparse_step make some layers dense, which "
            f"is not supported; stages need layers of one size"
        )


def head_size(config: Any) -> int:
    """Width of an attention head, which a configuration need not name."""
    named = getattr(config, "head_dim", None)
    return int(named or config.hidden_size // config.num_attention_heads)


def max_positions(config: Any, family: Family) -> int:
    """Length of the longest text that ``generate()`` continues as its beginning, with fixed rotary
    frequencies: the original context of ``longrope`` limits them.

    A sliding window that the family's layers do not read limits the text, since ``generate()``
    drops what is before it from its cache.
    """
    limits = [config.max_position_embeddings]
    window, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if family.slides == "none" and window and (not types or "sliding_attention" in types):
        limits.append(window)
    for rope in _ropes(config, family).values():
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
