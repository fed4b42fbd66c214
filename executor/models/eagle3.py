"""An EAGLE-3 head as a draft, and the heads that it loads."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from treepipe.core.errors import UserError
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.draft_source import Opening
from treepipe.executor.models.eagle import BorrowingHead, EagleDraft
from treepipe.executor.models.eagle3_head import load_eagle3
from treepipe.executor.models.stage_model import TargetEnds


class OwnVocabularyHead(BorrowingHead):
    """An EAGLE-3 head, which borrows at most the target's embedding."""

    def __init__(
        self, directory: Path, target: Checkpoint, dtype: torch.dtype, device: str
    ) -> None:
        """Load the head. Raises ``UserError`` if it cannot be loaded or does not fit the target."""
        head, self._embedding, self._tokens = load_eagle3(directory, target, dtype, device)
        self._head, self.inputs = head, head.rules.inputs
        self.layers, self.rotary, self.config = [*head.layers], head.rotary, head.config
        self._vocabulary, self._device = target.vocabulary, device
        if self._embedding is None:
            self._ends = TargetEnds(target, dtype, device, projects=False)

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
    def opened(cls, opening: Opening) -> EagleDraft:
        """Open the head, which must read as many states as it is shown."""
        draft = super().opened(opening)
        inputs, captured = draft._head.inputs, opening.captured
        if inputs != len(captured):
            raise UserError(
                f"{opening.directory}: fc joins {inputs} states, but {len(captured)} boundaries "
                f"are captured: {captured}"
            )
        return draft
