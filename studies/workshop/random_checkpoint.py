"""A command that writes a checkpoint of a model profile's sizes with random weights, and a draft.

    python -m treepipe.studies.workshop.random_checkpoint llama-3.2-1b OUT

``OUT/target`` is the model, ``OUT/draft`` its first two layers with its ends, and both have the
reference pair's tokenizer. Layers behind the draft's write ``LATER`` times as much into the states,
so that the draft guesses some of the target's tokens. The last norm spreads logits by ``SPREAD``,
so that a few tokens of a large vocabulary have most of the probability, as in trained models.
"""

from __future__ import annotations

import argparse
import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from treepipe.executor.measure.work import RandomCheckpoint, open_model
from treepipe.executor.models.families import layer_shapes
from treepipe.profiles.library import REFERENCE

DRAFTED = 2
"""Layers of the draft."""
LATER = 0.06
DEVIATION = 0.02
"""Standard deviation of the weights."""
SPREAD = 5.0
"""Standard deviation of the logits."""
WRITES = ("o_proj.weight", "down_proj.weight")
"""Matrices that write into the states."""


def write_pair(profile: str, out: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write ``out/target`` and ``out/draft``, which must not exist."""
    model = open_model(profile, "target", "PROFILE", dtype)
    assert isinstance(model.checkpoint, RandomCheckpoint)  # a profile has no weights
    for role, layers in (("target", model.shape.layers), ("draft", DRAFTED)):
        folder = out / role
        folder.mkdir(parents=True)
        tensors = dict(_tensors(model.checkpoint, layers, dtype))
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        config = model.checkpoint.config.to_dict()
        config |= {"architectures": [model.checkpoint.architecture], "num_hidden_layers": layers}
        config |= {"layer_types": None, "bos_token_id": None, "eos_token_id": None}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        shutil.copy(REFERENCE / "target" / "tokenizer.json", folder)


def _tensors(
    checkpoint: RandomCheckpoint, layers: int, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of the first ``layers`` layers and of the ends."""
    width, vocabulary = checkpoint.hidden_size, checkpoint.vocabulary
    shapes: dict[str, Any] = {"model.embed_tokens.weight": (vocabulary, width)}
    if not checkpoint.tied:
        shapes["lm_head.weight"] = (vocabulary, width)
    for number in range(layers):
        for name, shape in layer_shapes(checkpoint.architecture, checkpoint.config).items():
            shapes[f"model.layers.{number}.{name}"] = shape
    for name, shape in shapes.items():
        if len(shape) == 1:
            yield name, torch.ones(shape, dtype=dtype)
            continue
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        later = name.endswith(WRITES) and int(name.split(".")[2]) >= DRAFTED
        scale = DEVIATION * (LATER if later else 1.0)
        yield name, (torch.randn(shape, generator=random) * scale).to(dtype)
    spread = SPREAD / (DEVIATION * width**0.5)
    yield "model.norm.weight", torch.full((width,), spread, dtype=dtype)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("profile", help="a model profile, e.g. llama-3.2-1b")
    parser.add_argument("out", type=Path, help="the folder that is written")
    asked = parser.parse_args()
    write_pair(asked.profile, asked.out)


if __name__ == "__main__":
    main()
