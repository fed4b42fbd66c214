"""A command that writes a wider checkpoint with the same output, for passes of many milliseconds.

    python -m treepipe.executor.models.widening DIRECTORY TIMES OUT

A layer with a feed-forward part of K times the width computes the same: the added rows of the gate
and up projections are random, so that their work is real, and the columns of the down projection
that read them are zero.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from treepipe.core.errors import UserError
from treepipe.executor.models.shards import open_shard, shards_of
from treepipe.files.reading import read_json

SEED = 0
"""Seed of the random rows of each file."""
CONFIG, WIDTH = "config.json", "intermediate_size"
WEIGHTS = (".safetensors", ".bin")


def write_wider(directory: Path, times: int, out: Path) -> Path:
    """Write a checkpoint, or an EAGLE head, with feed-forward layers ``times`` as wide.

    Args:
        directory: holds ``config.json`` and safetensors; its other files but weights are copied.
        out: the new folder, which is returned.

    Raises:
        UserError: the checkpoint cannot be read, its layers have no plain feed-forward part,
            ``times`` is below 1, or ``out`` exists or cannot be written.
    """
    if times < 1:
        raise UserError(f"times = {times}: layers can be 1, 2, ... times as wide")
    config = read_json(directory / CONFIG)
    if not isinstance(config, dict) or not isinstance(config.get(WIDTH), int):
        raise UserError(f"{directory / CONFIG}: key {WIDTH} must be a number")
    shards = shards_of(directory)
    if not any(name.endswith("mlp.gate_proj.weight") for name in shards):
        raise UserError(f"{directory}: its layers have no mlp.gate_proj, and cannot be widened")
    if out.exists():
        raise UserError(f"{out}: exists already")
    try:
        out.mkdir(parents=True)
        for each in directory.iterdir():
            if each.is_file() and each.suffix not in WEIGHTS:
                shutil.copy(each, out)
        wider = {**config, WIDTH: times * config[WIDTH]}
        (out / CONFIG).write_text(json.dumps(wider, indent=2) + "\n", encoding="utf-8")
        for shard in {*shards.values()}:
            _write_shard(shard, times, out / shard.name)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{out}: cannot be written: {error}") from None
    return out


def _write_shard(shard: Path, times: int, out: Path) -> None:
    random = torch.Generator().manual_seed(SEED)
    with open_shard(shard) as file:
        tensors = {
            name: _widened(name, file.get_tensor(name), times, random)
            for name in file.keys()  # noqa: SIM118  (it is no dictionary)
        }
    save_file(tensors, out, {"format": "pt"})


def _widened(name: str, tensor: torch.Tensor, times: int, random: torch.Generator) -> torch.Tensor:
    """Widen a tensor.

    New rows are normal with the old ones' standard deviation, so that no state leaves the range of
    16 bits, and none is denormal, which would slow processors down.
    """
    axis = {"gate_proj": 0, "up_proj": 0, "down_proj": 1}.get(name.split(".")[-2:][0])
    if axis is None or axis >= tensor.dim():  # another part, or the bias of the down projection
        return tensor
    shape = list(tensor.shape)
    shape[axis] *= times - 1
    if axis == 0 and tensor.dim() == 2:
        more = torch.randn(shape, generator=random) * tensor.float().std()
    else:
        more = torch.zeros(shape)
    return torch.cat((tensor, more.to(tensor.dtype)), axis)


def main(given: list[str] | None = None) -> None:
    """Run the command; bad input ends in one sentence and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="a checkpoint or an EAGLE head")
    parser.add_argument("times", type=int, help="so many times as wide feed-forward layers")
    parser.add_argument("out", type=Path, help="the folder that is written")
    asked = parser.parse_args(given)
    try:
        write_wider(asked.directory, asked.times, asked.out)
    except UserError as error:
        print(f"treepipe: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
