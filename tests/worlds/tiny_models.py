"""Random tiny checkpoints in Hugging Face layout, for tests."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForCausalLM, Qwen3Config

from treepipe.executor.models.block_head import BlockHead, BlockLayout
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.eagle_head import EagleHead
from treepipe.executor.models.stage_model import StageModel
from treepipe.testing.random_model import VOCABULARY

WEIGHTS = "model.safetensors"


def change(folder: Path, file: str = "config.json", **keys: Any) -> None:
    """Set keys of a JSON file; those that are ... are removed."""
    path = folder / file
    content = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps({key: each for key, each in content.items() if each is not ...}))


def save_tokenizer(directory: Path, vocabulary: int = VOCABULARY) -> Path:
    """Save a tokenizer of so many words (``w0``, ``w1``, …; others are ``w0``), for such models."""
    words = {f"w{i}": i for i in range(vocabulary)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def save_head(folder: Path, target: Checkpoint) -> Path:
    """A random EAGLE head in the published layout, made if need be; returns the folder."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(7)
    made = EagleHead(target.config, bias=True, input_norm=False)
    tensors = {name: 3 * tensor for name, tensor in made.state_dict().items()}
    content = json.loads((target.directory / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "num_hidden_layers": 1}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def save_block_head(
    folder: Path,
    target: Checkpoint,
    *,
    layers: tuple[int, ...],
    causal: bool = False,
    places: int = 5,
) -> Path:
    """A random block draft of two layers and a level less than places in the published layout."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(8)
    sizes = {
        name: getattr(target.config, name)
        for name in ("hidden_size", "vocab_size", "intermediate_size", "max_position_embeddings")
    }
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = Qwen3Config(**sizes, num_hidden_layers=2, rms_norm_eps=1e-6)
    made = BlockHead(config, BlockLayout(places, 5, layers, causal), target.hidden_size)
    content = config.to_dict() | {
        "block_size": places,
        "dflash_config": {
            "mask_token_id": 5,
            "target_layer_ids": [*layers],
            "causal_head": causal,
        },
    }
    (folder / "config.json").write_text(json.dumps(content))
    save_file({name: 3 * each for name, each in made.state_dict().items()}, folder / WEIGHTS)
    return folder


def parameter_bytes(stage: StageModel) -> int:
    """Bytes of the weights that a stage holds."""
    tensors = (t for m in stage._layers for t in (*m.parameters(), *m.buffers()))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def greedy(directory: Path, prompt: list[int], new_tokens: int) -> list[int]:
    """What ``generate()`` of the unpartitioned model gives."""
    configs = tuple(file.read_text() for file in sorted(directory.glob("*config.json")))
    return list(_generated(directory, configs, tuple(prompt), new_tokens))


@functools.cache
def _whole(directory: Path, configs: tuple[str, ...]) -> Any:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model.eval()


@functools.cache
def _generated(
    directory: Path, configs: tuple[str, ...], prompt: tuple[int, ...], new_tokens: int
) -> list[int]:
    """Args: ``configs``: what the directory's JSON files say, as a test may change them."""
    model = _whole(directory, configs)
    ids = torch.tensor([prompt])
    text = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    found: list[int] = text[0, len(prompt) :].tolist()
    return found
