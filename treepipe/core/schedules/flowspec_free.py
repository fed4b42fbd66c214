"""FlowSpec without the per-step barrier (``flowspec_free``): our own step beyond the paper.

Stages never wait for the draft's word: they compute a segment as soon as it is there, and prune
when a prune arrives; with ``cancels`` it also ends a pass of which it leaves no row. The draft
evaluates each returned segment between its own passes; a tree that it drafts while the root moves
on is merged from the root at that time. With score-aware expansion it extends the last tree while
nothing else is to be drafted or fed, as long as the root is the one that tree was drafted at.
Everything else is as in FlowSpec (section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from treepipe.core.decoding.drafting import Growth, TreeDraft
from treepipe.core.decoding.tree_schedule import TreeParameters
from treepipe.core.protocol import Command
from treepipe.core.registry import key
from treepipe.core.schedules.flowspec import (
    Continuous,
    Expansion,
    ScoreKeys,
    refilled_grid,
    refilled_scratch_tokens,
    refilled_segment_tokens,
    refilled_tree_tokens,
)
from treepipe.core.system import ScheduleContext, System


class FreeRunning(Continuous):
    """A schedule that evaluates, prunes and expands without any step.

    At most ``parts`` segments are in the pipeline; further drafted nodes wait at the draft, where a
    prune costs nothing, and leave together.
    """

    lock_step = False
    _expansion: Expansion

    def __init__(
        self,
        session: int,
        prefill_chunk: int,
        parameters: TreeParameters,
        parts: int,
        expansion: Expansion,
    ) -> None:
        super().__init__(session, prefill_chunk, parameters, parts, expansion)
        self._moved: list[int] = []  # tokens committed below the root of the draft under way

    @property
    def listens(self) -> bool:
        return True

    def _start_draft(self, growth: Growth) -> list[Command]:
        self._moved, self._base = [], None
        return super()._start_draft(growth)

    def _refill(self, committed: list[int]) -> list[Command]:
        return [*self._feed_rest(), *(self._follow(committed) if committed else self._deepen())]

    def _deepen(self) -> list[Command]:
        """Extend the base tree while nothing waits, the draft is idle, and its root is current."""
        base = self._base
        if not self._expansion.score_aware or base is None or base.ended:
            return []
        return [] if self._draft or self._flying.waiting else self._extend(base, self._expansion)

    def _follow(self, tokens: list[int]) -> list[Command]:
        """Expand below the new root, unless the draft under way can still reach it."""
        if self._draft is not None:
            self._moved += tokens
            if not self._draft.misses(self._moved):
                return []
        return self._start_draft(self._expansion.growth)

    def _on_draft_complete(self, draft: TreeDraft) -> list[Command]:
        moved, self._moved = self._moved, []
        if draft.reaches(moved):
            self._append_best(draft, moved)
        self._base = draft
        # A draft from an older root reaches less deep: go on from the current root.
        again = self._start_draft(self._expansion.growth) if moved else []
        return self._feed_rest() + again

    def _feed_rest(self) -> list[Command]:
        flying = self._flying
        if not flying.waiting or len(flying.outstanding) >= self._parts:
            return []
        return [self._feed(flying.waiting)]


@dataclass(frozen=True)
class FreeKeys(ScoreKeys):
    """Keys of FlowSpec's expansions, and of words that come while a stage computes."""

    cancels: bool = key(False, "a word ends a pass under way of which it leaves no row")


def _make(parameters: ScoreKeys, context: ScheduleContext) -> FreeRunning:
    tree, chunk = parameters.tree(context), parameters.prefill_chunk
    return FreeRunning(context.session, chunk, tree, context.stages + 1, parameters.expansion)


SYSTEMS = (
    System(
        name="flowspec_free",
        year=2026,
        order=7,
        source="ours",
        summary="FlowSpec without the barrier",
        parameters=FreeKeys,
        make=_make,
        tree_tokens=refilled_tree_tokens,
        segment_tokens=refilled_segment_tokens,
        scratch_tokens=refilled_scratch_tokens,
        grid=refilled_grid,
    ),
)
