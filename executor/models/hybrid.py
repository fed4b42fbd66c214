"""A mixture of two drafts' distributions, as in the hybrid trees of SpecPipe, section 3.4."""

from __future__ import annotations

from typing import Any

import torch

from treepipe.executor.models.draft_model import LanguageModelDraft
from treepipe.executor.models.draft_source import DraftSource, Opening, Passes
from treepipe.executor.models.ngram import PromptLookupDraft


class HybridDraft(DraftSource):
    """A mixture: ``weight`` of the first source's distribution, the rest of the second's."""

    def __init__(self, first: DraftSource, second: DraftSource, weight: float) -> None:
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
        """Pass the target's states to those sources that read them."""
        for observe in self._observers:
            observe(session, features)

    def log_probs_batch(self, passes: Passes) -> list[torch.Tensor]:
        both = (source.log_probs_batch(passes) for source in self._sources)
        return [self._mixed(first, second) for first, second in zip(*both, strict=True)]

    def _mixed(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        second = second.to(first.device)
        return (self._weight * first.exp() + (1 - self._weight) * second.exp()).log()


def model_and_lookup(opening: Opening) -> HybridDraft:
    """Open the draft source ``hybrid``."""
    model, lookup = LanguageModelDraft.opened(opening), PromptLookupDraft.opened(opening)
    return HybridDraft(model, lookup, opening.keys.weight)
