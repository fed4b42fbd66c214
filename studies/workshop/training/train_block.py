"""Trains a block draft for the bundled target. Run as a module; takes about a quarter of an hour.

    python -m treepipe.studies.workshop.training.train_block --steps 900

As for the published drafts (DFlash, arXiv 2602.06036; JetSpec, 2606.18394), the texts are the
target's own continuations, many blocks per text are trained at once, and each place learns the
target's distribution there (cross entropy; places further away weigh less).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3Config

from treepipe.core.captures import NORMED
from treepipe.executor.models.block import BlockDraft
from treepipe.executor.models.block_head import BlockHead, BlockLayout, load_block_head
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.stage_model import TargetEnds
from treepipe.profiles.library import REFERENCE
from treepipe.studies.workshop.training.descent import SEED
from treepipe.studies.workshop.training.heads import (
    CAPACITY,
    asked,
    fixed_target,
    save,
    train,
    training_data,
    write_figures,
)

PEAK_RATE, DECAY = 3e-3, 0.9
LAYERS, SIZE, MASK = 2, 8, 0
STATES = (7,)
"""Layers of the target that are read: the last one, whose output is what an EAGLE head reads."""
PROMPT, CONTINUED = 48, 112
TEXTS = {"code": 2048, "prose": 1536, "arithmetic": 512}
BATCH = 128
BLOCKS = 256
"""Blocks per step."""


def main() -> None:
    """Train a block draft and save it in the published layout."""
    out, steps = asked(__doc__, "block", 900)
    target = fixed_target()
    head = new_head(target.config)
    data = {kind: continued(target, row, TEXTS[kind]) for kind, row in training_data().items()}
    train(head, data, steps, lambda window: block_loss(head, target, window), PEAK_RATE)
    save(out, config(head), head.state_dict())
    checkpoint = Checkpoint.open(REFERENCE / "target")
    draft = BlockDraft(load_block_head(out, checkpoint), TargetEnds(checkpoint), CAPACITY)
    write_figures(out, steps, draft, (NORMED,), SIZE - 1)


def new_head(sizes: Any) -> BlockHead:
    """Make the draft to be trained, with the target's sizes but ``LAYERS`` layers."""
    kept = ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"]
    kept += ["head_dim", "max_position_embeddings", "rms_norm_eps", "vocab_size"]
    config = Qwen3Config(
        **{name: getattr(sizes, name) for name in kept},
        num_hidden_layers=LAYERS,
        rope_parameters=sizes.rope_parameters,
    )
    config._attn_implementation = "sdpa"
    head = BlockHead(config, BlockLayout(SIZE, MASK, STATES, causal=False), sizes.hidden_size)
    for name, weight in head.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.02 if "proj" in name else 0.05)
    return head


@torch.no_grad()
def continued(target: Any, row: torch.Tensor, count: int) -> torch.Tensor:
    """Return one long row of the target's greedy continuations of ``count`` beginnings."""
    generator = torch.Generator().manual_seed(SEED)
    firsts = torch.randint(len(row) - PROMPT, (count,), generator=generator)
    prompts = torch.stack([row[first : first + PROMPT] for first in firsts])
    settings = {"max_new_tokens": CONTINUED, "do_sample": False, "pad_token_id": MASK}
    found = [
        target.generate(part, attention_mask=torch.ones_like(part), **settings)
        for part in prompts.split(BATCH)
    ]
    return torch.cat([each.flatten() for each in found])


def block_loss(head: BlockHead, target: Any, window: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over blocks and places; ``window`` is [batch, length] tokens.

    The blocks of a text are one pass: each attends to the states before its anchor, and to itself.
    """
    size, (batch, length) = head.layout.size, window.shape
    count = BLOCKS // batch
    with torch.no_grad():
        found = target.model(window, output_hidden_states=True)
        states = torch.cat([found.hidden_states[each + 1] for each in head.layout.layers], -1)
    anchors = torch.randint(1, length - size, (batch, count))
    places = (anchors[..., None] + torch.arange(size)).flatten(1)
    tokens = window.gather(1, places).view(batch, count, size).clone()
    tokens[..., 1:] = head.layout.mask
    block = target.model.embed_tokens(tokens.flatten(1))
    whole = torch.arange(length).expand(batch, -1)
    context = head.context(states, head.rotary(states, whole))
    seen = whole[:, None] < anchors.repeat_interleave(size, 1)[..., None]
    own = torch.block_diag(*[torch.ones(size, size)] * count).bool().expand(batch, -1, -1)
    mask = torch.cat((seen, own), -1)[:, None]
    behind = head(block, context, head.rotary(block, places), mask)
    behind = behind.view(batch, count, size, -1)[:, :, 1:]
    with torch.no_grad():
        before = places.view(batch, count, size)[:, :, :-1].flatten(1)
        given = found.last_hidden_state.gather(1, before[..., None].expand(-1, -1, block.shape[-1]))
        wanted = target.lm_head(given).softmax(-1).view(batch, count, size - 1, -1)
    losses = -(wanted * target.lm_head(behind).log_softmax(-1)).sum(-1).mean((0, 1))
    weights = DECAY ** torch.arange(size - 1)
    return (losses * weights).sum() / weights.sum()


def config(head: BlockHead) -> dict[str, Any]:
    """Return ``config.json``; embedding and projection are the target's."""
    layout = head.layout
    return {
        **head.config.to_dict(),
        "architectures": ["DFlashDraftModel"],
        "block_size": layout.size,
        "dflash_config": {"mask_token_id": layout.mask, "target_layer_ids": [*layout.layers]},
        "dtype": "float16",
    }


if __name__ == "__main__":
    main()
