"""Two drafts as one: their distributions are mixed, so both contribute to one tree.

(SpecPipe, section 3.4, leaves hybrid prediction trees for future work.)
"""

from __future__ import annotations

from typing import Any

import torch

from treepipe.executor.draft_memory import OpenSource
from treepipe.executor.draft_model import best_candidates
from treepipe.protocol import Drafted, DraftPass


class HybridDraft:
    """``weight`` of the first source's distribution, the rest of the second's."""

    def __init__(self, first: OpenSource, second: OpenSource, weight: float) -> None:
        self._sources = (first, second)
        self._weight = weight
        self._observers: list[Any] = [s.observe for s in self._sources if hasattr(s, "observe")]
        if self._observers:
            self.observe = self._observe

    def open(self, session: int) -> None:
        for source in self._sources:
            source.open(session)

    def close(self, session: int) -> None:
        for source in self._sources:
            source.close(session)

    def _observe(self, session: int, features: torch.Tensor) -> None:
        """Hand the target's states on to those sources that read them."""
        for observe in self._observers:
            observe(session, features)

    def draft(self, session: int, order: DraftPass) -> Drafted:
        """Run one pass of both; candidates in descending mixed probability, ties by token id."""
        return best_candidates(order, self.log_probs(session, order))

    def log_probs(self, session: int, order: DraftPass) -> torch.Tensor:
        """[asked nodes, vocabulary] log of the mixture, of one pass."""
        first, second = (source.log_probs(session, order).exp() for source in self._sources)
        return (self._weight * first + (1 - self._weight) * second).log()
