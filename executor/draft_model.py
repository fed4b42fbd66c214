"""A whole small causal language model as a draft: committed context plus scratch nodes."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from treepipe.executor.cache import TreeCache
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.stage_model import StageModel, TargetEnds
from treepipe.messages import NO_PARENT
from treepipe.protocol import Drafted, DraftPass


class DraftSource(Protocol):
    """What proposes tokens: a language model, or a head that reads the target's states."""

    def open(self, session: int) -> None: ...

    def close(self, session: int) -> None: ...

    def draft(self, session: int, order: DraftPass) -> Drafted: ...


class LanguageModelDraft:
    """The draft as a language model: the same token path always gets the same answer."""

    def __init__(self, checkpoint: Checkpoint, capacity: int) -> None:
        layers = range(checkpoint.layers)
        self._model = StageModel(checkpoint, layers, capacity)
        self._ends = TargetEnds(checkpoint)

    def open(self, session: int) -> None:
        self._model.open(session)

    def close(self, session: int) -> None:
        self._model.close(session)

    def cache(self, session: int) -> TreeCache:
        return self._model.cache(session)

    def draft(self, session: int, order: DraftPass) -> Drafted:
        """Run one pass; candidates per node in descending probability, ties by token id."""
        return best_candidates(order, self.log_probs(session, order))

    def log_probs(self, session: int, order: DraftPass) -> torch.Tensor:
        """[asked nodes, vocabulary] log probabilities (float64) of one pass."""
        cache = self._model.cache(session)
        if order.reset:
            cache.prune((), 0)
        elif order.keep is not None:
            cache.prune(order.keep, order.accepted)
        if order.catch_up:
            first = cache.committed
            positions = range(first, first + len(order.catch_up))
            hidden = self._ends.embed(order.catch_up)
            states = self._model.forward(session, hidden, positions, None)[-1:]
        else:
            states = self._scratch_pass(session, order)
        return self._ends.logits(states).double().log_softmax(-1)

    def _scratch_pass(self, session: int, order: DraftPass) -> torch.Tensor:
        cache = self._model.cache(session)
        nodes, depths = cache.length - cache.committed, list[int]()
        above = cache.tree_mask.sum(1).tolist()
        for parent in order.parents:
            if parent >= nodes + len(depths):
                raise ValueError("a scratch node comes after its parent")
            depth = 1 if parent == NO_PARENT else 1 + int(above[parent])
            depths.append(depth)
            above.append(depth)
        positions = [cache.committed - 1 + depth for depth in depths]
        hidden = self._ends.embed(order.tokens)
        return self._model.forward(session, hidden, positions, order.parents)


def best_candidates(order: DraftPass, log_probs: torch.Tensor) -> Drafted:
    """The ``top_k`` most probable tokens per row of [n, vocabulary]; ties by token id."""
    count = min(order.top_k, log_probs.shape[-1])
    wider = min(count + 8, log_probs.shape[-1])
    values, tokens = log_probs.topk(wider)
    if wider < log_probs.shape[-1] and bool((values[:, count - 1] == values[:, -1]).any()):
        # So many tie that topk may have left out the first of them.
        values, tokens = log_probs.sort(dim=-1, descending=True, stable=True)
    else:
        # topk leaves the order of ties open; a stable sort of tokens in order settles it.
        tokens, places = tokens.sort(dim=-1)
        values, places = values.gather(-1, places).sort(dim=-1, descending=True, stable=True)
        tokens = tokens.gather(-1, places)
    top: Any = tokens[:, :count].numpy()
    return Drafted(order.ticket, top, values[:, :count].numpy())
