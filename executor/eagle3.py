"""An EAGLE-3 head as a draft, and the heads that it loads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from treepipe.core.errors import UserError
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.draft_source import Opening
from treepipe.executor.eagle import EagleDraft
from treepipe.executor.eagle3_head import load_eagle3
from treepipe.executor.stage_model import TargetEnds


class OwnVocabularyHead:
    """An EAGLE-3 head with the target's embedding; methods as of ``BorrowingHead``."""

    def __init__(
        self, directory: Path, target: Checkpoint, dtype: torch.dtype, device: str
    ) -> None:
        """Load the head. Raises ``UserError`` if it cannot be loaded or does not fit the target."""
        opened = load_eagle3(directory, target, dtype, device)
        self._head, self._embedding, self._tokens = opened.head, opened.embedding, opened.tokens
        self.layers, self.rotary = [*self._head.layers], self._head.rotary
        self.config: Any = self._head.config
        self.inputs = self._head.rules.inputs
        self._vocabulary, self._device = target.vocabulary, device
        self._ends = None
        if opened.embedding is None:
            self._ends = TargetEnds(target, dtype, device, projects=False)

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        if self._ends is not None:
            return self._ends.embed(tokens)
        assert self._embedding is not None
        return self._embedding[torch.tensor(tokens, dtype=torch.long, device=self._device)]

    def observed(self, states: torch.Tensor) -> torch.Tensor:
        return self._head.observed(states)

    def fed_on(self, states: torch.Tensor) -> torch.Tensor:
        return self._head.fed_on(states)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Project; tokens that the head does not have are impossible."""
        found = self._head.logits(states)
        if self._tokens is None:
            return found
        whole = found.new_full((len(found), self._vocabulary), -math.inf)
        whole[:, self._tokens] = found
        return whole


class Eagle3Draft(EagleDraft):
    """An EAGLE-3 head."""

    opens = OwnVocabularyHead

    @classmethod
    def opened(cls, opening: Opening) -> Eagle3Draft:
        """Open the head, which must read as many states as it is shown."""
        assert opening.target is not None  # a head's record borrows the target's embedding
        draft = cls(opening.directory, opening.target, *opening.place)
        inputs, captured = draft._head.inputs, opening.captured
        if inputs != len(captured):
            raise UserError(
                f"{opening.directory}: fc joins {inputs} states, but {len(captured)} boundaries "
                f"are captured: {captured}"
            )
        return draft
