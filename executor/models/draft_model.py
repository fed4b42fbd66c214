"""A whole small causal language model as a draft: committed context plus scratch nodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.models.cache import TreeCache
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.draft_source import DraftSource, Opening, Passes
from treepipe.executor.models.stage_model import Part, StageModel, TargetEnds


class LanguageModelDraft(DraftSource):
    """A language model as a draft; equal token paths always get equal answers."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        graphs: bool = False,
    ) -> None:
        """Load the model; ``graphs`` as of a ``LayerStack``."""
        layers = range(checkpoint.layers)
        self._model = StageModel(checkpoint, layers, capacity, dtype, device, graphs=graphs)
        self._ends = TargetEnds(checkpoint, dtype, device)

    @classmethod
    def opened(cls, opening: Opening) -> LanguageModelDraft:
        """Open the draft source ``model``."""
        graphs = opening.compute.graphs
        return cls(Checkpoint.open(opening.directory), *opening.place, graphs=graphs)

    def open(self, session: int, capacity: int | None = None) -> None:
        self._model.open(session, capacity)

    def close(self, session: int) -> None:
        self._model.close(session)

    def cache(self, session: int) -> TreeCache:
        return self._model.cache(session)

    def log_probs_batch(self, passes: Passes) -> list[torch.Tensor]:
        states = self._model.forward_batch([self._part(*each) for each in passes])
        asked = [
            rows[-1:] if order.catch_up else rows
            for (_, order), rows in zip(passes, states, strict=True)
        ]
        logits = self._ends.logits(torch.cat(asked)).double().log_softmax(-1)
        return list(logits.split([len(rows) for rows in asked]))

    def _part(self, session: int, order: DraftPass) -> Part:
        """Return the rows of one session's pass, after pruning its cache."""
        cache = self._model.cache(session)
        if order.cut is not None:
            cache.prune(*order.cut)
        if not order.catch_up:
            hidden, positions = self._ends.embed(order.tokens), _positions(cache, order.parents)
            return Part(session, hidden, positions, order.parents)
        first = cache.committed
        positions = list(range(first, first + len(order.catch_up)))
        return Part(session, self._ends.embed(order.catch_up), positions, None)


def _positions(cache: TreeCache, parents: Sequence[int]) -> list[int]:
    """Position ids of new scratch nodes."""
    depths = list[int]()
    for parent in [*cache.parents, *parents]:
        if parent >= len(depths):
            raise ValueError("a scratch node comes after its parent")
        depths.append(1 if parent == NO_PARENT else 1 + depths[parent])
    return [cache.committed - 1 + depth for depth in depths[len(cache.parents) :]]
