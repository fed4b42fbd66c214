"""FlowSpec without the per-step barrier (``flowspec_free``): our own step beyond the paper.

Stages never wait for the draft's word: they compute a segment as soon as it is there, and prune
when a prune arrives. The draft evaluates whatever comes back between its own passes; a tree that
it drafts while the root moves on is merged from where the root is by then. With score-aware
expansion it extends the last tree while nothing else is to be drafted or fed, as long as the root
is the one that tree was drafted at. Nothing else differs from FlowSpec (section 3).
"""

from __future__ import annotations

from treepipe.core.decoding.drafting import Growth, TreeDraft
from treepipe.core.decoding.in_flight import Walk
from treepipe.core.decoding.tree_schedule import TreeParameters, TreeSchedule
from treepipe.core.protocol import Command, Returned
from treepipe.core.schedules.flowspec import (
    Expansion,
    ScoreKeys,
    refilled_grid,
    refilled_scratch_tokens,
    refilled_segment_tokens,
    refilled_tree_tokens,
)
from treepipe.core.system import Seat, System


class FreeRunning(TreeSchedule):
    """Evaluates, prunes and expands without any step.

    At most ``parts`` segments are in the pipeline; what is drafted beyond waits at the draft,
    where a prune costs nothing, and goes out together.
    """

    def __init__(
        self,
        session: int,
        prefill_chunk: int,
        parameters: TreeParameters,
        parts: int,
        expansion: Expansion,
    ) -> None:
        super().__init__(session, prefill_chunk, parameters, parts)
        self._expansion = expansion
        self._base: TreeDraft | None = None  # the last one drafted, while the root is still its own
        self._base_size = 0
        self._moved: list[int] = []  # tokens committed below the root of the draft under way

    @property
    def listens(self) -> bool:
        return True

    def _step_of(self, index: int) -> int | None:
        return None

    def _start_draft(self, growth: Growth) -> list[Command]:
        self._moved, self._base = [], None
        return super()._start_draft(growth)

    def _drafted_round(self, draft: TreeDraft) -> None:
        self._base, self._base_size = draft, self._parameters.size

    def _on_returned(self, event: Returned) -> list[Command]:
        flying = self._flying
        walk = flying.walk()
        if walk is None:
            flying.nothing_committed()
            return [*self._feed_rest(), *self._extend()]
        if walk.next_node is None:
            return self._end_round(walk, lock_step=False)
        commands = flying.commit(walk)
        if self.done:
            flying.record_round()
            return commands
        tokens = self._tokens(walk)
        word = flying.prune(walk, flying.tree.subtree(walk.next_node), lock_step=False)
        return [word, *commands, *self._feed_rest(), *self._follow(tokens)]

    def _extend(self) -> list[Command]:
        """Score-aware expansion: nothing was committed, nothing waits, and the draft is idle."""
        expansion, base = self._expansion, self._base
        if not expansion.score_aware or base is None or self._draft or self._flying.waiting:
            return []
        if base.ended:
            return []
        self._base_size += expansion.score_aware_size
        base.extend(expansion.score_aware_depth)
        self._draft = base
        return [self._next_pass(base)]

    def _tokens(self, walk: Walk) -> list[int]:
        tree = self._flying.tree
        return [*(tree.tokens[node] for node in walk.accepted[1:]), walk.next_token]

    def _follow(self, tokens: list[int]) -> list[Command]:
        """Expand below the new root, unless the draft under way can still bring that about."""
        if self._draft is not None:
            self._moved += tokens
            if not self._draft.misses(self._moved):
                return []
        return self._start_draft(self._expansion.growth)

    def _on_draft_complete(self, draft: TreeDraft) -> list[Command]:
        moved, self._moved = self._moved, []
        root, extended = draft.locate(moved), draft is self._base
        size = self._base_size if extended else self._expansion.size
        if root is not None:
            order = extended or self._parameters.score_order
            self._flying.append(*draft.best_tree(size, order, root))
        self._base, self._base_size = draft, size
        # What was drafted from an older root reaches less deep: go on from the root of now.
        again = self._start_draft(self._expansion.growth) if moved else []
        return self._feed_rest() + again

    def _feed_rest(self) -> list[Command]:
        flying = self._flying
        if not flying.waiting or len(flying.outstanding) >= self._parts:
            return []
        return [self._feed(flying.waiting, 0)]


def _make(parameters: ScoreKeys, seat: Seat) -> FreeRunning:
    tree, chunk = parameters.tree, parameters.prefill_chunk
    return FreeRunning(seat.session, chunk, tree, seat.stages + 1, parameters.expansion)


SYSTEMS = (
    System(
        name="flowspec_free",
        year=2026,
        order=7,
        source="ours",
        summary="FlowSpec without the barrier",
        parameters=ScoreKeys,
        make=_make,
        tree_tokens=refilled_tree_tokens,
        segment_tokens=refilled_segment_tokens,
        scratch_tokens=refilled_scratch_tokens,
        grid=refilled_grid,
    ),
)
