"""The layer classes of the supported architectures; this import takes seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig as AutoConfig
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture's ``model_type`` and classes."""

    model_type: str
    layer: Any
    rotary: Any
    norm: Any


_MODULES = modeling_llama, modeling_mistral, modeling_qwen2, modeling_qwen3
FAMILIES = {
    f"{name}ForCausalLM": Family(
        name.lower(),
        getattr(module, f"{name}DecoderLayer"),
        getattr(module, f"{name}RotaryEmbedding"),
        getattr(module, f"{name}RMSNorm"),
    )
    for name, module in zip(("Llama", "Mistral", "Qwen2", "Qwen3"), _MODULES, strict=True)
}
"""Supported architectures by the name in ``config.json``."""


def layer_shapes(architecture: str, config: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of a decoder layer's tensors by name; a model's layers are alike."""
    with torch.device("meta"):
        layer = FAMILIES[architecture].layer(config, 0)
    return {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}


def fixed_rotary(architecture: str, config: Any) -> Any:
    """Make the rotary embedding with the frequencies of a text's beginning.

    The kinds "dynamic" and "longrope" change them by the longest position in a pass, which may be a
    drafted token's that is never committed. Texts end before that: ``supported.max_positions``.
    """
    rotary = FAMILIES[architecture].rotary(config=config)
    rotary.rope_type = "default"  # the kind that transformers leaves alone
    return rotary
