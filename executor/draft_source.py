"""What every draft can do: answer draft passes with candidates, several sessions at a time.

How a draft comes to its distributions belongs to the files of the drafts; here is what is read off
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from treepipe.core.protocol import Drafted, DraftPass
from treepipe.executor.checkpoint import Checkpoint, CheckpointSource
from treepipe.executor.computing import DTYPES
from treepipe.scenario.computing import Compute

Passes: TypeAlias = Sequence[tuple[int, DraftPass]]
"""Session and order of each draft pass of a batch; at most one per session."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a draft is opened with, in the process of its draft server.

    Attributes:
        keys: values of the keys that its record reads.
        weights: the checkpoint that its record asks for.
        target: whose embedding and output projection a draft may borrow; None where none does.
        vocabulary: of the target.
        capacity: cache entries per session.
        compute: with what it computes.
    """

    keys: Any
    weights: CheckpointSource | None
    target: Checkpoint | None
    vocabulary: int
    capacity: int
    compute: Compute

    @property
    def checkpoint(self) -> CheckpointSource:
        """The weights of a draft whose record asks for some."""
        assert self.weights is not None  # as was checked at launch
        return self.weights

    @property
    def place(self) -> tuple[int, torch.dtype, str]:
        """Entries of the cache, the type of numbers, and the processor."""
        return self.capacity, DTYPES[self.compute.dtype], self.compute.device


class DraftSource(ABC):
    """A draft with a state per session.

    One that reads the target's hidden states also has a method ``observe(session, features)``.
    """

    @abstractmethod
    def open(self, session: int) -> None:
        """A request begins."""

    @abstractmethod
    def close(self, session: int) -> None:
        """Forget the session; unknown ones are ignored."""

    @abstractmethod
    def log_probs_batch(self, passes: Passes) -> list[torch.Tensor]:
        """Run the passes; per pass the log probabilities [asked nodes, vocabulary] (float64)."""

    def draft_batch(self, passes: Passes) -> list[Drafted]:
        """Run the passes; candidates per node in descending probability, ties by token id."""
        rows = self.log_probs_batch(passes)
        return [best_candidates(order, row) for (_, order), row in zip(passes, rows, strict=True)]

    def log_probs(self, session: int, order: DraftPass) -> torch.Tensor:
        """What one pass alone answers."""
        return self.log_probs_batch([(session, order)])[0]

    def draft(self, session: int, order: DraftPass) -> Drafted:
        """The candidates of one pass alone."""
        return self.draft_batch([(session, order)])[0]


def best_candidates(order: DraftPass, log_probs: torch.Tensor) -> Drafted:
    """The ``top_k`` most probable tokens per row of [n, vocabulary]; ties by token id."""
    if not order.top_k:
        return Drafted(order.ticket, (), ())
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
    top: Any = tokens[:, :count].cpu().numpy()
    return Drafted(order.ticket, top, values[:, :count].cpu().numpy())
