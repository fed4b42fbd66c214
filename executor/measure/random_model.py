"""Random tiny checkpoints in the layout of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "mixtral": {**_EXPERTS, "sliding_window": 16},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "gpt_oss": {**_EXPERTS, "sliding_window": 8},
    "gemma2": {"sliding_window": 8, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
    "gemma3_text": {"sliding_window": 8, "sliding_window_pattern": 2},
    "phi3": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "olmo2": {},
    "glm4": {},
}
"""Keys of a tiny model's configuration by ``model_type``, beside those that all have."""
VOCABULARY = 61


def save_random_checkpoint(
    directory: Path,
    *,
    architecture: str = "llama",
    layers: int = 2,
    width: int = 32,
    seed: int = 0,
    vocabulary: int = VOCABULARY,
    positions: int = 256,
    shard_size: str = "5GB",
) -> Path:
    """Save a model of random weights, large enough that greedy texts vary; returns the folder."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        architecture,
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        max_position_embeddings=positions,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=seed % 2 == 0,
        **CONFIGS[architecture],
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for weight in model.parameters():  # biases and norms, which begin as zeros or ones
        if len(weight.unique()) == 1:
            weight.data += 0.2 * torch.randn_like(weight)
    model.save_pretrained(directory, max_shard_size=shard_size)
    return directory
