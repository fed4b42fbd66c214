"""The layer classes of the supported architectures, imported where they are needed.

Importing this file loads them all: the fork server does, so that its workers start quickly.
"""

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
    """What a stage is built from, and the ``model_type`` that goes with its architecture."""

    model_type: str
    layer: Any
    rotary: Any
    norm: Any


FAMILIES = {
    "LlamaForCausalLM": Family(
        "llama",
        modeling_llama.LlamaDecoderLayer,
        modeling_llama.LlamaRotaryEmbedding,
        modeling_llama.LlamaRMSNorm,
    ),
    "MistralForCausalLM": Family(
        "mistral",
        modeling_mistral.MistralDecoderLayer,
        modeling_mistral.MistralRotaryEmbedding,
        modeling_mistral.MistralRMSNorm,
    ),
    "Qwen2ForCausalLM": Family(
        "qwen2",
        modeling_qwen2.Qwen2DecoderLayer,
        modeling_qwen2.Qwen2RotaryEmbedding,
        modeling_qwen2.Qwen2RMSNorm,
    ),
    "Qwen3ForCausalLM": Family(
        "qwen3",
        modeling_qwen3.Qwen3DecoderLayer,
        modeling_qwen3.Qwen3RotaryEmbedding,
        modeling_qwen3.Qwen3RMSNorm,
    ),
}
"""Supported architectures by the name in ``config.json``."""


def layer_shapes(architecture: str, config: Any) -> dict[str, tuple[int, ...]]:
    """Shape by name of a decoder layer's tensors; all layers of a model have the same."""
    with torch.device("meta"):
        layer = FAMILIES[architecture].layer(config, 0)
    return {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}


def fixed_rotary(architecture: str, config: Any) -> Any:
    """The rotary embedding, its frequencies as they are at a text's beginning for good.

    Kinds that change them ("dynamic", "longrope") do so by the longest position in a pass, which
    may be a drafted token's that is never committed. Texts end before they would change:
    ``supported.max_positions``.
    """
    rotary = FAMILIES[architecture].rotary(config=config)
    rotary.rope_type = "default"  # the kind that transformers leaves alone
    return rotary
