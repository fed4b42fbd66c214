"""A head is recorded to answer for every token of a text, once per depth below what is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from treepipe.core.drafts import drafters
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.eagle import EagleDraft
from treepipe.executor.measure.calibration import (
    Texts,
    WholeModel,
    record_acceptance,
)
from treepipe.executor.measure.judging import CANDIDATES, candidates_of, rank_of
from treepipe.executor.sources import SourceSettings
from treepipe.profiles.pool_file import PoolFile
from treepipe.scenario.schema import GREEDY, SourceSection

PROMPTS = [(3, 9, 27, 20), (60, 58, 52, 34, 1, 2)]
TOKENS = 6


@pytest.fixture(scope="module")
def draft(target: Checkpoint, head: Path) -> EagleDraft:
    return EagleDraft(head, target, 64)


def test_answers_by_depth_are_the_heads(target: Checkpoint, draft: EagleDraft, head: Path) -> None:
    asked = Texts(target, PROMPTS, TOKENS)
    settings = SourceSettings(SourceSection(source="eagle"), head, GREEDY, False, 0)
    pool = record_acceptance(settings, asked)
    assert PoolFile.from_content(pool.content()).content() == pool.content()
    assert pool.candidates == CANDIDATES
    assert {steps: len(rows) for steps, rows in pool.off_path.items()} == {
        steps: len(PROMPTS) * TOKENS // 2 for steps in (1, 2, 3)
    }
    for prompt, recorded in zip(PROMPTS, pool.prompts, strict=True):
        text = WholeModel(target, 64).greedy(prompt, TOKENS)
        tables = [recorded.known, *recorded.guessed]
        assert len(tables) == drafters()["eagle"].unverified_depths + 1
        assert all(len(table.ranks) == TOKENS for table in tables)
        # Two levels below the second new token: the answer for the fourth, by hand.
        found = _answers(target, draft, prompt, text, known=2)
        for depth, (log_probs, rank) in enumerate(found):
            np.testing.assert_allclose(
                tables[depth].vectors[2 + depth], log_probs, rtol=1e-4, atol=1e-3
            )
            assert tables[depth].ranks[2 + depth] == rank
        assert tables[3].ranks[1] == tables[1].ranks[1], "no deeper than the text reaches"


def _answers(
    target: Checkpoint, draft: EagleDraft, prompt: tuple[int, ...], text: list[int], known: int
) -> list[tuple[list[float], int]]:
    """What the head says of the text's tokens from ``known`` on when those before are verified."""
    whole, tokens = WholeModel(target, 64), [*prompt, *text]
    whole.stage.open(0)
    states = whole.stage.forward(0, whole.ends.embed(tokens), range(len(tokens)), None)
    draft.open(9)
    draft.observe(9, whole.ends.features(states[: len(prompt) + known]))
    order = DraftPass(0, tuple(tokens[: len(prompt) + known]), (), (), True, 1)
    found = []
    for depth, token in enumerate(text[known:]):
        ids, rows = candidates_of(draft.log_probs(9, order))
        found.append((rows[0].tolist(), rank_of(ids[0], token)))
        order = DraftPass(0, (), (token,), (depth - 1 if depth else NO_PARENT,), False, 1)
    draft.close(9)
    return found
