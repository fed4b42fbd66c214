"""The block draft against its published formulas, and what it cannot open."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.worlds.tiny_models import change, save_block_head
from treepipe.core.drafter import BlockKeys
from treepipe.core.errors import UserError
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.core.verification import Sampling
from treepipe.executor.models.block import BlockDraft
from treepipe.executor.models.block_head import load_block_head
from treepipe.executor.models.checkpoint import Checkpoint, read_tensors
from treepipe.executor.models.draft_memory import RememberingDraft
from treepipe.executor.models.draft_source import Opening
from treepipe.executor.models.offsets import head_settings, measure_offsets, refuse
from treepipe.executor.models.shards import shards_of
from treepipe.executor.models.stage_model import TargetEnds
from treepipe.profiles.library import REFERENCE
from treepipe.scenario.deployment import ONE_CORE

TEXT = (3, 9, 27, 20, 60, 58, 52, 34, 11)
Weights = Mapping[str, torch.Tensor]


def by_the_formulas(
    weights: Weights,
    config: Mapping[str, object],
    ends: TargetEnds,
    text: Sequence[int],
    states: torch.Tensor,
) -> torch.Tensor:
    """Log probabilities [size - 1, vocabulary] of the block behind ``text``, position by position
    and head by head, without a cache; ``states`` [n - 1, layers * H] are those of all tokens but
    the last (DFlash, section 3; the causal block is JetSpec's)."""
    size, causal = int(str(config["block_size"])), bool(config["is_causal"])
    head_dim, eps, theta = int(str(config["head_dim"])), 1e-6, 10000.0
    before = len(text) - 1

    def norm(row: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return row / torch.sqrt((row * row).mean(-1, keepdim=True) + eps) * weight

    def turned(row: torch.Tensor, position: int) -> torch.Tensor:
        half = head_dim // 2
        angles = position * theta ** (-torch.arange(half) / half)
        first, second = row[:half], row[half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin))

    features = norm(states @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    block = ends.embed([text[-1], *[int(str(config["mask"]))] * (size - 1)])
    for number in range(2):
        own = {
            name.removeprefix(f"layers.{number}."): each
            for name, each in weights.items()
            if name.startswith(f"layers.{number}.")
        }
        given = norm(block, own["input_layernorm.weight"])
        rows = torch.cat((features, given))
        queries = (given @ own["self_attn.q_proj.weight"].T).split(head_dim, -1)
        keys = (rows @ own["self_attn.k_proj.weight"].T).split(head_dim, -1)
        values = (rows @ own["self_attn.v_proj.weight"].T).split(head_dim, -1)
        mixed = []
        for place in range(size):
            seen = before + (place + 1 if causal else size)
            parts = []
            for head, query in enumerate(queries):
                group = head * len(keys) // len(queries)
                q = turned(norm(query[place], own["self_attn.q_norm.weight"]), before + place)
                scores = torch.stack(
                    [
                        q @ turned(norm(keys[group][i], own["self_attn.k_norm.weight"]), i)
                        for i in range(seen)
                    ]
                )
                shares = (scores / head_dim**0.5).softmax(-1)
                parts.append(shares @ values[group][:seen])
            mixed.append(torch.cat(parts))
        block = block + torch.stack(mixed) @ own["self_attn.o_proj.weight"].T
        given = norm(block, own["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(given @ own["mlp.gate_proj.weight"].T)
        block = (
            block + (gate * (given @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
        )
    return ends.project(norm(block[1:], weights["norm.weight"])).log_softmax(-1)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_every_answer_is_the_published_computation_s(
    target: Checkpoint, tmp_path: Path, causal: bool, graphs: bool
) -> None:
    """Along a text that grows by catch-up and by accepted nodes, in two sessions of one batch; a
    node has its level's distribution whatever its path, and below the block there is nothing."""
    folder = save_block_head(tmp_path, target, layers=(0, 1), causal=causal)
    ends, head = TargetEnds(target), load_block_head(folder, target)
    weights = read_tensors(shards_of(folder))
    config = {**json.loads((folder / "config.json").read_text()), "mask": 5, "is_causal": causal}
    draft = BlockDraft(head, ends, 64, graphs)
    states = torch.randn((2, len(TEXT), 64), generator=torch.Generator().manual_seed(3))

    def expected(session: int, read: int) -> torch.Tensor:
        return by_the_formulas(weights, config, ends, TEXT[:read], states[session, : read - 1])

    def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
        torch.testing.assert_close(found.float(), wanted, rtol=1e-5, atol=1e-5)

    for session, read in enumerate((4, 6)):
        draft.open(session)
        draft.observe(session, states[session, : read - 1])
    passes = [(0, DraftPass(1, TEXT[:4], (), (), True, 4))]
    passes.append((1, DraftPass(1, TEXT[:6], (), (), True, 4)))
    blocks = [expected(0, 4), expected(1, 6)]
    for found, block in zip(draft.log_probs_batch(passes), blocks, strict=True):
        close(found, block[:1])
    order = DraftPass(2, (), (*TEXT[4:6], 8, 30, 2), (NO_PARENT, 0, NO_PARENT, 1, 3), False, 4)
    found = draft.log_probs(0, order)  # nodes one, two, one, three and four levels down
    close(found[:4], blocks[0][[1, 2, 1, 3]])
    assert (found[4] == -torch.inf).all(), "the block has four levels"
    draft.observe(0, states[0, 3:5])
    accepted = DraftPass(3, (), (2, 7), (NO_PARENT, 0), False, 4, (0, 1, 3), 2)
    close(draft.log_probs(0, accepted), expected(0, 6)[[1, 2]])
    draft.observe(0, states[0, 5:8])
    close(draft.log_probs(0, DraftPass(4, TEXT[6:9], (), (), True, 4)), expected(0, 9)[:1])


def test_draws_end_with_the_block(target: Checkpoint, tmp_path: Path) -> None:
    """Siblings are drawn from their level's distribution without replacement, and below the block
    there is nothing to draw, so that the rejection rule draws from the target there."""
    folder = save_block_head(tmp_path, target, layers=(0, 1))
    whole = BlockDraft(load_block_head(folder, target), TargetEnds(target), 64)
    draft = RememberingDraft(whole, Sampling(1.0), 0)
    draft.open(1)
    draft.observe(1, torch.ones(3, 64))
    draft.draft(1, DraftPass(1, TEXT[:4], (), (), True, 4, drawn=True))
    order = DraftPass(2, (), (1, 2, 3, 4), (NO_PARENT, 0, 1, 2), False, 4, drawn=True)
    drafted = draft.draft(1, order)
    level, below = (draft.distribution(1, TEXT[:4], path) for path in ((1,), (1, 2, 3, 4)))
    assert level is not None
    assert below is not None
    assert len(set(drafted.tokens[0])) == 4
    assert np.allclose(np.exp(drafted.log_probs[0]), level[np.array(drafted.tokens[0])])
    assert level.sum() == pytest.approx(1)
    assert not below.any()
    assert list(drafted.log_probs[3]) == [-np.inf] * 4


def test_what_is_no_block_draft_of_this_target_is_refused(
    target: Checkpoint, tmp_path: Path
) -> None:
    def opening(folder: Path, block: int = 5) -> Opening:
        return Opening(BlockKeys(block), folder, target, target.vocabulary, 64, ONE_CORE)

    last = target.layers - 1
    wrong = [
        ({"block_size": ...}, "is no block draft's, key block_size is missing"),
        ({"dflash_config": {"mask_token_id": 5}}, "key target_layer_ids is missing"),
        ({"selector_rank": 8}, "key selector_rank = 8 is of a kind that is not done"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types has sliding_attention, not done"),
        ({"hidden_size": 48}, "hidden_size = 48 differs from the target's 32"),
        ({"num_hidden_layers": 3, "layer_types": ...}, r"tensor layers\.2\.\S+ is missing"),
        (
            {"dflash_config": {"mask_token_id": 900, "target_layer_ids": [last]}},
            "describe no block",
        ),
    ]
    for number, (keys, sentence) in enumerate(wrong):
        folder = save_block_head(tmp_path / str(number), target, layers=(last,))
        change(folder, **keys)
        with pytest.raises(UserError, match=sentence):
            BlockDraft.opened(opening(folder))
    folder = save_block_head(tmp_path / "right", target, layers=(last,))
    BlockDraft.opened(opening(folder))
    with pytest.raises(UserError, match=r"block_size = 5, but drafts\.block = 8"):
        BlockDraft.opened(opening(folder, 8))


def test_the_bundled_draft_passes_the_offset_test() -> None:
    target = Checkpoint.open(REFERENCE / "target")
    offsets = measure_offsets(head_settings(REFERENCE / "block", "drafts.source=block"), target)
    assert [each.said for each in offsets] == [f"target_layer_ids = [{n}]" for n in (7, 6)]
    refuse(offsets)
    with pytest.raises(UserError, match=r"--set drafts\.capture: has no effect"):
        head_settings(REFERENCE / "block", "drafts.source=block", "drafts.capture=output")
