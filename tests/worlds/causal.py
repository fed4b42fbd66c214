"""A stage that checks its masks: rows attend to committed entries, ancestors and themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treepipe.core.messages import NO_PARENT
from treepipe.executor.models.cache import TreeCache
from treepipe.executor.models.stage_model import StageModel


class CausalStage(StageModel):
    """A stage model whose caches assert that at every exact pass (slow)."""

    def open(self, session: int, capacity: int | None = None) -> None:
        super().open(session, capacity)
        cache = self.cache(session)
        begin = cache.begin

        def checked(rows: int, parents: Sequence[int] | None) -> torch.Tensor:
            mask = begin(rows, parents)
            assert_causal(cache, mask, parents)
            return mask

        cache.begin = checked  # type: ignore[method-assign]


def assert_causal(cache: TreeCache, mask: torch.Tensor, parents: Sequence[int] | None) -> None:
    """Recompute each row's allowed entries from its chain of parents, and compare.

    Must be called between ``begin`` and ``finish`` of a pass.
    """
    before = cache.length
    nodes = before - cache.committed
    chain: dict[int, set[int]] = {
        i: set(torch.nonzero(cache.tree_mask[i]).flatten().tolist()) for i in range(nodes)
    }
    for row in range(len(mask)):
        if parents is None:
            allowed = set(range(before + row + 1))
        else:
            above = chain[parents[row]] if parents[row] != NO_PARENT else set()
            chain[nodes + row] = above | {nodes + row}
            committed = set(range(cache.committed))
            allowed = committed | {cache.committed + i for i in chain[nodes + row]}
        attended = set(torch.nonzero(mask[row]).flatten().tolist())
        if attended != allowed:
            raise AssertionError(f"row {row} attends to {attended}, allowed are {allowed}")
