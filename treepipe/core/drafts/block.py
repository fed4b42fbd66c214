"""A block draft (DFlash, arXiv 2602.06036; JetSpec, 2606.18394): one pass from the target's states
before the newest token proposes tokens for all levels below it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treepipe.core.captures import NORMED
from treepipe.core.drafter import BLOCK_HEAD, BlockKeys, Drafter

LAYERS = 5
"""Layers of the published drafts, each of which adds a state that is read."""


def block_captures(keys: BlockKeys, config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Return the boundaries that ``target_layer_ids`` name: id j is the output of layer j, behind
    the final norm if that is the last one, as of transformers. Without it: spread as published."""
    given = {**config, **(config.get("dflash_config") or {})}
    ids = given.get("target_layer_ids")
    if ids is None:
        count = given.get("num_hidden_layers", LAYERS)
        span = max(layers - 4, 0) / max(count - 1, 1)
        ids = sorted({min(round(1 + n * span), layers - 1) for n in range(count)})
    for each in ids:
        if not 0 <= each < layers:
            raise ValueError(f"head: target_layer_ids has {each}, the target has {layers} layers")
    if [*ids] != sorted(set(ids)):
        raise ValueError(f"head: target_layer_ids = {ids} must ascend")
    return tuple(NORMED if each == layers - 1 else each + 1 for each in ids)


DRAFTS = (
    Drafter(
        name="block",
        order=6,
        summary="a block draft",
        opens="treepipe.executor.models.block:BlockDraft.opened",
        parameters=BlockKeys,
        weights=BLOCK_HEAD,
        captures=block_captures,
    ),
)
