"""Recording acceptance: what a draft proposes along the target's own greedy texts, and off them.

The pools are what ``treepipe.sim.pool`` resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from treepipe.core.messages import NO_PARENT
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.stage_model import StageModel, TargetEnds

CANDIDATES = 16
OFF_PATH_STEPS = 3
SCHEMA = "treepipe.acceptance/1"


class WholeModel:
    """All layers of a checkpoint in this process; for small models and for calibration."""

    def __init__(self, checkpoint: Checkpoint, capacity: int) -> None:
        self.stage = StageModel(checkpoint, range(checkpoint.layers), capacity)
        self.ends = TargetEnds(checkpoint)

    def read(
        self, tokens: Sequence[int], positions: Sequence[int], parents: Sequence[int] | None
    ) -> torch.Tensor:
        """Logits [n, vocabulary] after appending the tokens to session 0."""
        states = self.stage.forward(0, self.ends.embed(tokens), positions, parents)
        return self.ends.logits(states)

    def greedy(
        self, prompt: Sequence[int], new_tokens: int, end_tokens: frozenset[int] = frozenset()
    ) -> list[int]:
        """Plain greedy continuation, up to and with the first of ``end_tokens``."""
        self.stage.open(0)
        logits = self.read(prompt, range(len(prompt)), None)
        text = [int(logits[-1].argmax())]
        while len(text) < new_tokens and text[-1] not in end_tokens:
            position = len(prompt) + len(text) - 1
            text.append(int(self.read(text[-1:], [position], None)[-1].argmax()))
        self.stage.close(0)
        return text


def record_acceptance(
    target: Checkpoint,
    draft: Checkpoint,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    end_tokens: frozenset[int],
    seed: int,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The content of an acceptance pool file (``treepipe.acceptance/1``).

    Args:
        prompts: token ids; each is continued by ``new_tokens`` of the target's greedy text.
        progress: called after every prompt.
    """
    content: dict[str, Any] = {}
    for grown in growing_pool(target, draft, prompts, new_tokens, end_tokens, seed):
        content = grown
        progress()
    return content


def growing_pool(
    target: Checkpoint,
    draft: Checkpoint,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    end_tokens: frozenset[int],
    seed: int,
) -> Iterator[dict[str, Any]]:
    """The same after every prompt, for who may be interrupted."""
    rng = np.random.default_rng(seed)
    capacity = max(map(len, prompts)) + new_tokens * (2 + OFF_PATH_STEPS)
    whole, small = WholeModel(target, capacity), WholeModel(draft, capacity)
    recorded = []
    off_path: dict[str, list[list[float]]] = {str(i + 1): [] for i in range(OFF_PATH_STEPS)}
    for prompt in prompts:
        text = whole.greedy(prompt, new_tokens, end_tokens)
        recorded.append(_record_prompt(small, prompt, text, off_path, rng))
        yield pool_content(target.directory.name, draft.directory.name, recorded, off_path)


def pool_content(
    target: str, draft: str, prompts: list[dict[str, Any]], off_path: dict[str, list[list[float]]]
) -> dict[str, Any]:
    """A pool file of what was recorded."""
    return {
        "schema": SCHEMA,
        "target": target,
        "draft": draft,
        "temperature": 0,
        "candidates": CANDIDATES,
        "prompts": prompts,
        "off_path": off_path,
    }


def _record_prompt(
    draft: WholeModel,
    prompt: Sequence[int],
    text: Sequence[int],
    off_path: dict[str, list[list[float]]],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """On-path vectors and ranks; off-path vectors are appended to ``off_path``.

    The text is read as a chain of tree nodes, so that wrong tokens can hang at any of them.
    """
    draft.stage.open(0)
    first = draft.read(prompt, range(len(prompt)), None)[-1:]
    positions = range(len(prompt), len(prompt) + len(text))
    chain = draft.read(text, positions, range(NO_PARENT, len(text) - 1))
    tokens, vectors = candidates_of(torch.cat((first, chain[:-1])))
    ranks = [rank_of(row, token) for row, token in zip(tokens, text, strict=True)]
    # A wrong sibling of every second token of the text, then its own continuation.
    places = range(0, len(text), 2)
    wrong = [sample_of(rng, tokens[i], vectors[i], text[i]) for i in places]
    parents = [i - 1 for i in places]
    for step in range(1, OFF_PATH_STEPS + 1):
        base = len(text) + (step - 1) * len(wrong)
        depths = [len(prompt) + i + step - 1 for i in places]
        found, rows = candidates_of(draft.read(wrong, depths, parents))
        off_path[str(step)] += np.round(rows, 4).tolist()
        wrong = [sample_of(rng, found[i], rows[i], None) for i in range(len(wrong))]
        parents = list(range(base, base + len(wrong)))
    draft.stage.close(0)
    return {"log_probs": np.round(vectors, 4).tolist(), "ranks": ranks}


def candidates_of(logits: torch.Tensor) -> tuple[Any, Any]:
    """Token ids and log probabilities [n, CANDIDATES], descending, ties by token id; ``logits``
    may be log probabilities."""
    log_probs = logits.double().log_softmax(-1)
    values, tokens = log_probs.sort(dim=-1, descending=True, stable=True)
    return tokens[:, :CANDIDATES].numpy(), values[:, :CANDIDATES].numpy()


def rank_of(candidates: Any, token: int) -> int:
    """Place of a token among candidates, ``CANDIDATES`` if it is not there."""
    found = np.flatnonzero(candidates == token)
    return int(found[0]) if len(found) else CANDIDATES


def sample_of(rng: np.random.Generator, tokens: Any, log_probs: Any, truth: int | None) -> int:
    """A candidate by its probability, but never ``truth``."""
    weights = np.where(tokens == truth, 0.0, np.exp(log_probs))
    return int(rng.choice(tokens, p=weights / weights.sum()))
