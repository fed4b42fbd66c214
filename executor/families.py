"""The layer classes of the supported architectures, imported where they are needed.

Importing this file loads them all: the fork server does, so that its workers start quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig as AutoConfig
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3


@dataclass(frozen=True, slots=True)
class Family:
    """What a stage is built from."""

    layer: Any
    rotary: Any
    norm: Any


FAMILIES = {
    "LlamaForCausalLM": Family(
        modeling_llama.LlamaDecoderLayer,
        modeling_llama.LlamaRotaryEmbedding,
        modeling_llama.LlamaRMSNorm,
    ),
    "MistralForCausalLM": Family(
        modeling_mistral.MistralDecoderLayer,
        modeling_mistral.MistralRotaryEmbedding,
        modeling_mistral.MistralRMSNorm,
    ),
    "Qwen2ForCausalLM": Family(
        modeling_qwen2.Qwen2DecoderLayer,
        modeling_qwen2.Qwen2RotaryEmbedding,
        modeling_qwen2.Qwen2RMSNorm,
    ),
    "Qwen3ForCausalLM": Family(
        modeling_qwen3.Qwen3DecoderLayer,
        modeling_qwen3.Qwen3RotaryEmbedding,
        modeling_qwen3.Qwen3RMSNorm,
    ),
}
"""Supported architectures by the name in ``config.json``."""
