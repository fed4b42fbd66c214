"""Continuous schedules over a lock-step pipeline: ``pruned_pp`` and ``flowspec``.

FlowSpec, section 3: whenever a segment is back, walk the verified nodes, commit what is accepted,
prune everywhere, and feed freshly drafted nodes as the next segment. Pruned PP is the same without
expansion. One segment or marker returns per step and one is fed per step, and each step is closed
by a word to all stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treepipe.core.protocol import Command, Returned
from treepipe.core.schedules.drafting import Growth, TreeDraft
from treepipe.core.schedules.tree_schedule import TreeParameters, TreeSchedule


@dataclass(frozen=True, slots=True)
class Expansion:
    """How FlowSpec refills the pipeline (section 3.4, appendix A.1 for the defaults).

    Attributes:
        growth: how the tree grows that context-aware expansion drafts at the new root whenever
            tokens were committed (``d_exp`` in it).
        size: how many of its best nodes are taken.
        context_aware: do so.
        score_aware: also extend the last drafted tree when nothing was committed.
        score_aware_size, score_aware_depth: new nodes and further passes of that.
    """

    growth: Callable[[], Growth]
    size: int = 64
    context_aware: bool = True
    score_aware: bool = False
    score_aware_size: int = 48
    score_aware_depth: int = 1


class Continuous(TreeSchedule):
    """Evaluates every returned segment at once; ``expansion`` None is Pruned PP."""

    def __init__(
        self,
        session: int,
        prefill_chunk: int,
        parameters: TreeParameters,
        parts: int,
        expansion: Expansion | None,
    ) -> None:
        super().__init__(session, prefill_chunk, parameters, parts)
        self._expansion = expansion
        self._base: TreeDraft | None = None
        self._base_size = parameters.size
        self._extending = False
        self._steps = 0

    def _step_of(self, index: int) -> int | None:
        return index

    def _drafted_round(self, draft: TreeDraft) -> None:
        self._base, self._base_size = draft, self._parameters.size
        self._steps = self._parts

    def _on_returned(self, event: Returned) -> list[Command]:
        flying = self._flying
        walk = flying.walk()
        if walk is None:
            flying.nothing_committed()
            word = flying.announce(None, 0, lock_step=True)
            return [word, *self._refill(committed=False)]
        if walk.next_node is None:
            return self._end_round(walk, lock_step=True)
        commands = flying.commit(walk)
        if self.done:
            flying.record_round()
            return commands
        word = flying.prune(walk, flying.tree.subtree(walk.next_node), lock_step=True)
        return [word, *commands, *self._refill(committed=True)]

    def _refill(self, *, committed: bool) -> list[Command]:
        """Expand the tree if the schedule does, then feed what has not been fed."""
        expansion = self._expansion
        if expansion is not None and committed and expansion.context_aware:
            self._extending = False
            return self._start_draft(expansion.growth())
        if committed:
            self._base = None  # rooted at a node that is committed now
        if expansion is not None and expansion.score_aware and self._base is not None:
            self._extending = True
            self._base.extend(expansion.score_aware_depth)
            self._draft = self._base
            return [self._draft.next_pass(self._request.ticket())]
        return self._feed_rest()

    def _on_draft_complete(self, draft: TreeDraft) -> list[Command]:
        expansion = self._expansion
        assert expansion is not None  # nothing else drafts within a round
        if self._extending:
            self._base_size += expansion.score_aware_size
            self._flying.append(*draft.best_tree(self._base_size, score_order=True))
        else:
            self._base, self._base_size = draft, expansion.size
            tree = draft.best_tree(expansion.size, self._parameters.score_order)
            self._flying.append(*tree)
        return self._feed_rest()

    def _feed_rest(self) -> list[Command]:
        """Everything that waits as one segment (``L_exp = -1``); a marker if nothing does."""
        feed = self._feed(self._flying.waiting, self._steps)
        self._steps += 1
        return [feed]
