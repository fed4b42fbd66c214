"""Random tiny checkpoints in the layout of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
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
    config = CONFIGS[architecture](
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
        tie_word_embeddings=seed % 2 == 0,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(directory, max_shard_size=shard_size)
    return directory
