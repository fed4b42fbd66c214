"""The interface of drafts, which answer draft passes of several sessions with candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from treepipe.core.protocol import Drafted, DraftPass
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.computing import DTYPES
from treepipe.scenario.deployment import Compute

Passes: TypeAlias = Sequence[tuple[int, DraftPass]]
"""Session and order of each draft pass of a batch; at most one per session."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The arguments that open a draft, in the process of its draft server.

    Attributes:
        keys: values of the keys that its record reads.
        weights: folder of its checkpoint, if its record needs one.
        target: the model whose ends a draft may borrow.
        captured: the boundaries of it whose states the draft is shown.
        vocabulary: size of the target's vocabulary.
        capacity: cache entries per session.
    """

    keys: Any
    weights: Path | None
    target: Checkpoint | None
    vocabulary: int
    capacity: int
    compute: Compute
    captured: tuple[int, ...] = ()

    @property
    def directory(self) -> Path:
        """Folder of a draft whose record needs a checkpoint."""
        assert self.weights is not None
        return self.weights

    @property
    def place(self) -> tuple[int, torch.dtype, str]:
        """Entries of the cache, number type, and processor."""
        return self.capacity, DTYPES[self.compute.dtype], self.compute.device


class DraftSource(ABC):
    """A draft with a state per session.

    A draft that reads the target's hidden states also has a method ``observe(session, features)``.
    """

    @abstractmethod
    def open(self, session: int) -> None:
        """Begin a request."""

    @abstractmethod
    def close(self, session: int) -> None:
        """Forget the session; unknown ones are ignored."""

    @abstractmethod
    def log_probs_batch(self, passes: Passes) -> list[torch.Tensor]:
        """Run the passes; return, per pass, log probabilities [nodes, vocabulary] in float64."""

    def draft_batch(self, passes: Passes) -> list[Drafted]:
        """Run the passes; return candidates per node, most probable first, ties by token id."""
        rows = self.log_probs_batch(passes)
        return [best_candidates(order, row) for (_, order), row in zip(passes, rows, strict=True)]

    def log_probs(self, session: int, order: DraftPass) -> torch.Tensor:
        return self.log_probs_batch([(session, order)])[0]

    def draft(self, session: int, order: DraftPass) -> Drafted:
        return self.draft_batch([(session, order)])[0]


def best_candidates(order: DraftPass, log_probs: torch.Tensor) -> Drafted:
    """Select the ``top_k`` most probable tokens per row of [n, vocabulary]; ties by token id."""
    if not order.top_k:
        return Drafted(order.ticket, (), ())
    count = min(order.top_k, log_probs.shape[-1])
    wider = min(count + 8, log_probs.shape[-1])
    values, tokens = log_probs.topk(wider)
    if wider < log_probs.shape[-1] and bool((values[:, count - 1] == values[:, -1]).any()):
        # Because of ties topk may have left out a lower token id.
        values, tokens = log_probs.sort(dim=-1, descending=True, stable=True)
    else:
        # topk leaves the order of ties open; a stable sort by token id settles it.
        tokens, places = tokens.sort(dim=-1)
        values, places = values.gather(-1, places).sort(dim=-1, descending=True, stable=True)
        tokens = tokens.gather(-1, places)
    top: Any = tokens[:, :count].cpu().numpy()
    return Drafted(order.ticket, top, values[:, :count].cpu().numpy())
