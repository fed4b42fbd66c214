"""Recording acceptance of a draft that reads the target's states (an EAGLE head).

Its answer for a token depends on how far back the last known state is: right below what was
verified it reads true states, each level further down it reads its own guess. So every position of
a text is answered for once per depth. The pools are what ``treepipe.sim.pool`` resamples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.eagle import EagleDraft
from treepipe.executor.measure.calibration import (
    OFF_PATH_STEPS,
    WholeModel,
    candidates_of,
    pool_content,
    rank_of,
    sample_of,
)

DEPTHS = 7
"""Levels below what was verified that are recorded; deeper ones answer like the last."""
SESSION = 1


class HeadAnswer(NamedTuple):
    """Candidates in descending probability, and the rank of the text's token among them."""

    tokens: Any
    log_probs: list[float]
    rank: int


def record_head_acceptance(
    target: Checkpoint,
    draft: EagleDraft,
    name: str,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    end_tokens: frozenset[int],
    seed: int,
) -> dict[str, Any]:
    """The content of an acceptance pool file (``treepipe.acceptance/1``); as
    ``calibration.record_acceptance``, with what the head guesses at every depth."""
    pools = growing_head_pool(target, draft, name, prompts, new_tokens, end_tokens, seed)
    *_, content = pools
    return content


def growing_head_pool(
    target: Checkpoint,
    draft: EagleDraft,
    name: str,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    end_tokens: frozenset[int],
    seed: int,
) -> Iterator[dict[str, Any]]:
    """The same after every prompt, for who may be interrupted."""
    rng = np.random.default_rng(seed)
    whole = WholeModel(target, max(map(len, prompts)) + new_tokens)
    recorded = []
    off_path: dict[str, list[list[float]]] = {str(i + 1): [] for i in range(OFF_PATH_STEPS)}
    for prompt in prompts:
        text = whole.greedy(prompt, new_tokens, end_tokens)
        _show_states(whole, draft, [*prompt, *text])
        recorded.append(_record_prompt(draft, prompt, text, off_path, rng))
        draft.close(SESSION)
        yield pool_content(target.directory.name, name, recorded, off_path)


def _show_states(whole: WholeModel, draft: EagleDraft, tokens: Sequence[int]) -> None:
    """Open the draft's session with the target's states of all tokens."""
    whole.stage.open(0)
    hidden = whole.ends.embed(tokens)
    states = whole.stage.forward(0, hidden, range(len(tokens)), None)
    whole.stage.close(0)
    draft.open(SESSION)
    draft.observe(SESSION, whole.ends.features(states))


def _record_prompt(
    draft: EagleDraft,
    prompt: Sequence[int],
    text: Sequence[int],
    off_path: dict[str, list[list[float]]],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Per depth an answer for each of the text's tokens; off-path vectors are appended."""
    by_depth: list[list[HeadAnswer]] = [[] for _ in range(DEPTHS + 1)]
    unread = list(prompt)
    for first in range(len(text)):
        found = _chain(draft, unread, text[first : first + DEPTHS + 1])
        unread = [text[first]]
        for depth, answer in enumerate(found):
            by_depth[depth].append(answer)
        if first % 2 == 0:
            _stray(draft, found, text[first], off_path, rng)
    # Near a text's beginning no state is further back than the prompt's last one.
    filled = [
        [by_depth[min(depth, place)][max(place - depth, 0)] for place in range(len(text))]
        for depth in range(DEPTHS + 1)
    ]
    tables = [
        {
            "log_probs": [each.log_probs for each in answers],
            "ranks": [each.rank for each in answers],
        }
        for answers in filled
    ]
    return {**tables[0], "guessed": tables[1:]}


def _chain(draft: EagleDraft, unread: Sequence[int], tokens: Sequence[int]) -> list[HeadAnswer]:
    """Answers for each of the tokens when only what is before the first one is verified."""
    order = DraftPass(0, tuple(unread), (), (), True, 1)
    found = []
    for depth, token in enumerate(tokens):
        found.append(_ask(draft, order, token))
        parent = (depth - 1 if depth else NO_PARENT,)
        order = DraftPass(0, (), (token,), parent, False, 1)
    return found


def _stray(
    draft: EagleDraft,
    chain: Sequence[HeadAnswer],
    truth: int,
    off_path: dict[str, list[list[float]]],
    rng: np.random.Generator,
) -> None:
    """A wrong sibling of the chain's first token and its continuation, as scratch nodes behind
    those of the chain (whose last token was not fed)."""
    slots, answer, parent = len(chain) - 1, chain[0], NO_PARENT
    wrong = sample_of(rng, answer.tokens, answer.log_probs, truth)
    for step in range(OFF_PATH_STEPS):
        answer = _ask(draft, DraftPass(0, (), (wrong,), (parent,), False, 1), None)
        off_path[str(step + 1)].append(answer.log_probs)
        wrong, parent = sample_of(rng, answer.tokens, answer.log_probs, None), slots + step


def _ask(draft: EagleDraft, order: DraftPass, truth: int | None) -> HeadAnswer:
    tokens, rows = candidates_of(draft.log_probs(SESSION, order))
    rank = rank_of(tokens[0], truth) if truth is not None else -1
    return HeadAnswer(tokens[0], np.round(rows[0], 4).tolist(), rank)
