"""The files of weights in a checkpoint's folder, each of which holds some of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from treepipe.core.errors import UserError
from treepipe.files.reading import read_json

INDEX = "model.safetensors.index.json"
"""The list of the tensors of a checkpoint in several files."""
PICKLED = "pytorch_model.bin"
"""The older format of published heads."""
IGNORED = "rotary_emb.inv_freq"
"""Buffers of old checkpoints, which transformers computes itself."""


def shards_of(directory: Path, other: str = INDEX) -> dict[str, Path]:
    """Map tensor names to files. Raises ``UserError`` if a file is missing or lacks a tensor.

    ``other`` is the alternative to ``model.safetensors`` that an error names.
    """
    index = directory / INDEX
    single = directory / "model.safetensors"
    if index.exists():
        return _indexed(index)
    if not single.exists():
        raise UserError(f"{directory}: holds neither {single.name} nor {other}")
    with open_shard(single) as file:
        return {name: single for name in file.keys() if not name.endswith(IGNORED)}  # noqa: SIM118


def _indexed(index: Path) -> dict[str, Path]:
    weights = read_json(index).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(v, str) for v in weights.values()):
        raise UserError(f"{index}: key weight_map must map tensors' names to files")
    names = {
        name: index.parent / file for name, file in weights.items() if not name.endswith(IGNORED)
    }
    for shard in sorted(set(names.values())):
        if not shard.exists():
            raise UserError(f"{index}: names {shard.name}, which is missing")
        with open_shard(shard) as file:
            held = set(file.keys())
        for name, place in names.items():
            if place == shard and name not in held:
                raise UserError(f"{index}: names tensor {name} in {shard.name}, which lacks it")
    return names


@contextmanager
def open_shard(path: Path) -> Iterator[Any]:
    """Open a file of tensors. Raises ``UserError`` if it cannot be read, or is cut off."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is no regular file")  # opening it might wait for ever
    with readable(path), safe_open(path, framework="pt") as file:
        yield file


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise ``UserError`` for a fault of a file while its tensors are read."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
