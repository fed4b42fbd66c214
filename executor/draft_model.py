"""A whole small causal language model as a draft: committed context plus scratch nodes."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.stage_model import StageModel, TargetEnds
from treepipe.protocol import NO_PARENT, Drafted, DraftPass


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

    def draft(self, session: int, order: DraftPass) -> Drafted:
        """Run one pass; candidates per node in descending probability, ties by token id."""
        cache = self._model.cache(session)
        if order.reset:
            cache.prune((), 0)
        if order.catch_up:
            first = cache.committed
            positions = range(first, first + len(order.catch_up))
            hidden = self._ends.embed(order.catch_up)
            states = self._model.forward(session, hidden, positions, None)[-1:]
        else:
            states = self._scratch_pass(session, order)
        return self._candidates(order, states)

    def _scratch_pass(self, session: int, order: DraftPass) -> torch.Tensor:
        cache = self._model.cache(session)
        nodes, depths = cache.length - cache.committed, []
        above = cache.tree_mask.sum(1).tolist()
        for parent in order.parents:
            depths.append(1 if parent == NO_PARENT else 1 + int(above[parent]))
        if len(order.parents) and max(order.parents) >= nodes:
            raise ValueError("a scratch node's parent was not drafted from before")
        positions = [cache.committed - 1 + depth for depth in depths]
        hidden = self._ends.embed(order.tokens)
        return self._model.forward(session, hidden, positions, order.parents)

    def _candidates(self, order: DraftPass, states: torch.Tensor) -> Drafted:
        log_probs = self._ends.logits(states).double().log_softmax(-1)
        # Stable sorting settles ties by token id; topk alone would leave them open.
        values, tokens = log_probs.sort(dim=-1, descending=True, stable=True)
        count = min(order.top_k, log_probs.shape[-1])
        top: Any = tokens[:, :count].numpy()
        return Drafted(order.ticket, top, values[:, :count].numpy())
