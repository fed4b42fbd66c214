"""The block draft as a module, and its published checkpoint layout (DFlash, arXiv 2602.06036).

``fc`` and ``hidden_norm`` make a feature of the target's states at a position; every layer attends
to the features of all positions before the anchor, and within the block. A block is the anchor (the
newest token) and mask tokens behind it, read with the target's embedding; its output at a mask goes
through the target's projection. In a causal block (JetSpec, arXiv 2606.18394) a place attends to
none behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from treepipe.core.errors import UserError
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.eagle_head import check_sizes, load_module, read_head_tensors
from treepipe.executor.models.families import FAMILIES, fixed_rotary
from treepipe.executor.models.supported import config_of
from treepipe.files.reading import read_json

FAMILY = "Qwen3ForCausalLM"
"""Architecture of the layers, for any target."""
UNREAD = {
    "input_embedding_scale": 1.0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": None,
    "conv_kernel_size": None,
    "selector_rank": None,
    "draft_vocab_size": None,
}
"""Keys of other block drafts, with the value that changes nothing."""
Rotary: TypeAlias = tuple[torch.Tensor, ...]
"""Cosines and sines [batch, rows, head] of the rows' positions."""
Entries: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Keys and values [batch, heads, rows, size] of one layer."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """What ``config.json`` says beside the layers' sizes.

    Attributes:
        size: places of a block, the anchor's among them.
        mask: token id that stands for a place to be drafted.
        layers: layers of the target whose outputs ``fc`` reads.
        causal: a place attends to no later one of its block.
    """

    size: int
    mask: int
    layers: tuple[int, ...]
    causal: bool


class BlockHead(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """All of the draft but the target's embedding and output projection."""

    def __init__(self, config: Any, layout: BlockLayout, target_size: int) -> None:
        super().__init__()
        self.config, self.layout, width = config, layout, config.hidden_size
        norm = FAMILIES[FAMILY].norm
        self.fc = nn.Linear(len(layout.layers) * target_size, width, bias=False)
        self.hidden_norm = norm(width, config.rms_norm_eps)
        layer = FAMILIES[FAMILY].layer
        self.layers = nn.ModuleList([layer(config, n) for n in range(config.num_hidden_layers)])
        self.norm = norm(width, config.rms_norm_eps)
        self.rotary = fixed_rotary(FAMILY, config)

    def context(self, states: torch.Tensor, rotary: Rotary) -> list[Entries]:
        """Return the keys and values, by layer, of the target's states [batch, n, layers * H]."""
        features = self.hidden_norm(self.fc(states))
        return [_entries(layer.self_attn, features, rotary) for layer in self.layers]

    def forward(
        self,
        block: torch.Tensor,
        context: Sequence[Entries],
        rotary: Rotary,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the states [batch, n, H] from which the target's projection reads tokens.

        Args:
            block: [batch, n, H] embeddings of the anchor and the masks.
            mask: [..., n, context + n], true where a row attends; None: to everything.
        """
        states = block
        for layer, (keys, values) in zip(self.layers, context, strict=True):
            attention, given = layer.self_attn, layer.input_layernorm(states)
            own = _entries(attention, given, rotary)
            queries = _rotated(attention.q_norm(_heads(attention, attention.q_proj(given))), rotary)
            found = functional.scaled_dot_product_attention(
                queries,
                torch.cat((keys, own[0]), 2),
                torch.cat((values, own[1]), 2),
                attn_mask=mask,
                scale=attention.scaling,
                enable_gqa=True,
            )
            states = states + attention.o_proj(found.transpose(1, 2).flatten(2))
            states = states + layer.mlp(layer.post_attention_layernorm(states))
        result: torch.Tensor = self.norm(states)
        return result


def _heads(attention: Any, rows: torch.Tensor) -> torch.Tensor:
    """Split [batch, n, heads * size] into heads: [batch, n, heads, size]."""
    return rows.unflatten(-1, (-1, attention.head_dim))


def _entries(attention: Any, rows: torch.Tensor, rotary: Rotary) -> Entries:
    keys = attention.k_norm(_heads(attention, attention.k_proj(rows)))
    values = _heads(attention, attention.v_proj(rows))
    return _rotated(keys, rotary), values.transpose(1, 2)


def _rotated(rows: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Rotate [batch, n, heads, size] by the rows' positions: [batch, heads, n, size]."""
    cos, sin = (table[:, None] for table in rotary)
    rows = rows.transpose(1, 2)
    first, second = rows.chunk(2, -1)
    return rows * cos + torch.cat((-second, first), -1) * sin


def block_layout(path: Path) -> tuple[Any, BlockLayout]:
    """Read a block draft's ``config.json``. Raises ``UserError`` if it is none that we can run."""
    from transformers import Qwen3Config

    content = read_json(path)
    own = {**content, **(content.get("dflash_config") or {})}
    for name in ("block_size", "mask_token_id", "target_layer_ids"):
        if own.get(name) is None:
            raise UserError(f"{path}: is no block draft's, key {name} is missing")
    for name, usual in UNREAD.items():
        if own.get(name, usual) not in (usual, None):
            raise UserError(f"{path}: key {name} = {own[name]!r} is of a kind that is not done")
    kinds = set(content.get("layer_types") or ()) - {"full_attention"}
    if kinds:
        raise UserError(f"{path}: key layer_types has {', '.join(sorted(kinds))}, not done")
    config = config_of(path, lambda: Qwen3Config(**content))
    ids = tuple(int(number) for number in own["target_layer_ids"])
    causal = bool(own.get("causal_head", own.get("is_causal")))  # JetSpec's key, DFlash's
    return config, BlockLayout(int(own["block_size"]), int(own["mask_token_id"]), ids, causal)


def load_block_head(
    directory: Path,
    target: Checkpoint,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> BlockHead:
    """Load a block draft. Raises ``UserError`` if it is incomplete or of another target."""
    path = directory / "config.json"
    config, layout = block_layout(path)
    check_sizes(path, config, target)
    if not 0 <= layout.mask < target.vocabulary or layout.size < 2:
        raise UserError(f"{path}: keys mask_token_id and block_size describe no block")
    with torch.device("meta"):
        head = BlockHead(config, layout, target.hidden_size)
    head.rotary = fixed_rotary(FAMILY, config)
    load_module(head, read_head_tensors(directory), directory, dtype, device)
    return head
