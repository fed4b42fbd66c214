"""Continuous speculation: small runs in flight, and a draft that never waits (``pipeinfer``).

(PipeInfer, arXiv 2407.11798, and its code.) The root enters the pipeline alone and at once. The
draft reads it in one pass and then makes *micro-batches*, of ``gamma`` passes each, whose best
``tree_size`` nodes follow as one segment; it looks for verdicts between them only. In the paper a
micro-batch is a chain; with ``top_k`` above 1 it is a tree, and a following one grows below the
best of all nodes so far, not below the first branch alone. After a verdict that commits tokens the
draft begins anew below the new root, as the code does, or goes on (``restart``). A run that a
verdict refutes is cancelled in the pipeline (``cancels``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Literal

import numpy as np

from treepipe.core.decoding.drafting import Growth, TreeDraft
from treepipe.core.decoding.keys import ChainKeys
from treepipe.core.decoding.tree_schedule import TreeParameters
from treepipe.core.protocol import Command, Drafted, Returned
from treepipe.core.registry import key
from treepipe.core.schedules.flowspec import Expansion
from treepipe.core.schedules.flowspec_free import FreeRunning
from treepipe.core.system import Block, Load, ScheduleContext, System


@dataclass(frozen=True)
class PipeInferKeys(ChainKeys):
    """Keys of micro-batches, and of when the draft stops."""

    gamma: int = key(4, "tokens of a chain; StarSD's depth d", least=1)
    tree_size: int | None = key(None, "nodes of a micro-batch; default: gamma", least=1)
    top_k: int = key(1, "k, candidates per node", least=1)
    restart: Literal["every", "miss"] = key(
        "every", "verdicts behind which the draft begins anew: all that commit tokens, or misses"
    )
    cutoff: tuple[float, float, float] = key(
        (0.0, 0.0, 0.0),
        "least probability of a candidate; more per micro-batch in a row, less per empty one",
        least=0,
        most=1,
    )
    ahead: int = key(
        64, "nodes in flight below the root, at most (but for one micro-batch)", least=1
    )
    cancels: bool = key(True, "a word ends a pass under way of which it leaves no row")

    @property
    def nodes(self) -> int:
        """Number of nodes of a micro-batch."""
        return self.gamma if self.tree_size is None else self.tree_size

    @property
    def most(self) -> int:
        """Number of nodes below the root, at most: there is always room for one micro-batch."""
        return max(self.ahead, self.nodes)

    def candidates(self) -> Mapping[str, int]:
        return {"top_k": self.top_k}

    def lengths(self) -> Mapping[str, int]:
        return {"ahead": self.most}

    @property
    def drafts_ahead(self) -> bool:
        return True


class Speculating(FreeRunning):
    """A request whose draft goes on until a verdict stops it."""

    def __init__(self, context: ScheduleContext, keys: PipeInferKeys) -> None:
        first = Growth((keys.top_k,), keys.top_k)
        tree = TreeParameters(
            keys.nodes,
            keys.nodes,
            True,
            first,
            keeps=context.keeps,
            independent_levels=context.independent_levels,
        )
        batch = Expansion(first, keys.nodes, True, keys.nodes, keys.gamma)
        super().__init__(context.session, keys.prefill_chunk, tree, 1, batch)
        self._keys = keys
        self._goes_on = keys.restart == "miss" and not context.independent_levels
        self._between = True  # no micro-batch is half made
        self._fresh = True  # the draft was begun below the root of now
        self._stopped: Drafted | None = None  # the answer whose candidates were all too improbable
        self._batches = self._empty = 0

    @property
    def listens(self) -> bool:
        return self._between

    def _begin(self, root_token: int) -> list[Command]:
        self._flying.open_round(root_token)
        return [self._feed(1), *self._start_draft(self._growth())]

    def _start_draft(self, growth: Growth) -> list[Command]:
        self._between, self._fresh, self._stopped = True, True, None
        return super()._start_draft(growth)

    def _returned(self, event: Returned) -> list[Command]:
        self._batches = 0
        return super()._returned(event)

    def _refill(self, committed: list[int]) -> list[Command]:
        if not committed:
            return [] if self._draft else self._speculate()
        self._empty = 0
        if self._goes_on and self._draft is not None:
            return self._follow(committed)
        follows = self._goes_on and self._stopped is None and self._moves(self._base, committed)
        return self._speculate() if follows else self._start_draft(self._growth())

    # --- micro-batches ---------------------------------------------------------------------------

    @property
    def _least(self) -> float:
        """The least probability of a candidate now."""
        least, recovery, decay = self._keys.cutoff
        return least + self._batches * recovery - self._empty * decay

    def _speculate(self) -> list[Command]:
        """Begin the next micro-batch, if there is room for it and a candidate to begin with."""
        base, keys = self._base, self._keys
        if base is None or self._least >= 1 or base.scratch > keys.most:
            return []
        if len(self._flying.tree) - 1 + keys.nodes > keys.most:
            return []
        if self._stopped is not None:
            likely = self._likely(self._stopped)
            if likely is None:
                return []
            self._stopped = None
            base.absorb(likely)
        if base.ended:
            return [] if self._fresh else self._start_draft(self._growth())
        self._between = True
        return self._extend(base, self._expansion)

    def _moves(self, draft: TreeDraft | None, tokens: list[int]) -> bool:
        """Let a draft go on below tokens that were committed; return whether it has them."""
        if draft is None or not draft.reaches(tokens):
            return False
        draft.move(tokens)
        self._fresh = False
        return True

    def _likely(self, event: Drafted) -> Drafted | None:
        """Return the answer without candidates that are too improbable; None if all are."""
        likely = event.least(log(self._least)) if self._least > 0 else event
        return likely if np.isfinite(likely.log_probs).any() else None

    def _drafted(self, event: Drafted) -> list[Command]:
        self._between = False
        likely, draft = self._likely(event), self._draft
        assert draft is not None  # only drafts ask
        if likely is not None:
            return super()._drafted(likely)
        self._stopped, self._draft = event, None
        return self._on_draft_complete(draft)

    def _on_draft_complete(self, draft: TreeDraft) -> list[Command]:
        """Feed a micro-batch, and go on; behind one without a new node wait for an event."""
        moved, self._moved = self._moved, []
        first, self._base, self._between = draft is not self._base, draft, True
        if moved and not (self._stopped is None and self._moves(draft, moved)):
            return self._start_draft(self._growth())
        if first and self._stopped is None:
            return self._speculate()
        self._append_best(draft)
        waiting = self._flying.waiting
        if not waiting:
            self._empty += 1
            return []
        self._batches += 1
        return [self._feed(waiting), *([] if self._stopped else self._speculate())]


def _make(parameters: PipeInferKeys, context: ScheduleContext) -> Speculating:
    return Speculating(context, parameters)


def _tree_tokens(parameters: PipeInferKeys, stages: int) -> int:
    return parameters.most + 1


def _segment_tokens(parameters: PipeInferKeys, stages: int) -> int:
    return parameters.nodes


def _scratch_tokens(parameters: PipeInferKeys, stages: int) -> int:
    """Count what the draft holds when it begins its last micro-batch, and that one."""
    return parameters.most + parameters.top_k * parameters.gamma


def _grid(load: Load) -> Sequence[Block]:
    chains = {"gamma": (1, 2, 4), "top_k": (1,)}
    trees = {"gamma": (1, 2, 4), "top_k": (4,), "tree_size": (8, 16)}
    return tuple({**each, "restart": ("every", "miss")} for each in (chains, trees))


SYSTEMS = (
    System(
        name="pipeinfer",
        year=2024,
        order=8,
        source="PipeInfer, arXiv 2407.11798",
        summary="small runs in flight behind each other, cancelled when refuted",
        parameters=PipeInferKeys,
        make=_make,
        tree_tokens=_tree_tokens,
        segment_tokens=_segment_tokens,
        scratch_tokens=_scratch_tokens,
        grid=_grid,
        closed_form="continuous",
    ),
)
