"""Rounds of one tree each: drafting it, cutting it into segments, and the effect of a miss.

The subclasses decide when a returned segment is evaluated, and which nodes are fed behind it;
``StaticTree``, when all of the tree is back.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from math import exp

from treepipe.core.decoding.best_first import BlockTreeDraft
from treepipe.core.decoding.drafting import Growth, TreeDraft
from treepipe.core.decoding.in_flight import Walk
from treepipe.core.decoding.tree_decoding import TreeDecoding
from treepipe.core.protocol import Command, Drafted, DraftPass, Feed, Returned
from treepipe.core.tree import split


@dataclass(frozen=True, slots=True)
class TreeParameters:
    """The draft tree of a round (FlowSpec, section 4.1 and appendix A.1 for the defaults).

    Attributes:
        size: nodes below the root (``L``).
        segment: maximum number of tokens per segment (``l_max``).
        score_order: cut the tree in descending score; False: in tree order.
        keeps: the draft need not read accepted tokens that it has drafted from.
        independent_levels: the draft's candidates at a level are the same below every node.
        cut: a segment may be cut behind its root before it leaves (chains in one segment).
    """

    size: int
    segment: int
    score_order: bool
    growth: Growth
    keeps: bool = False
    independent_levels: bool = False
    cut: bool = False


class TreeSchedule(TreeDecoding):
    """A request decoded in rounds, each from a freshly drafted tree."""

    lock_step = False
    """Whether segments and words have places in the pipeline's sequence of steps."""

    def __init__(
        self, session: int, prefill_chunk: int, parameters: TreeParameters, parts: int
    ) -> None:
        """Make the schedule of one request, which cuts a round's tree into ``parts`` segments."""
        super().__init__(session, prefill_chunk, keeps=parameters.keeps)
        self._parameters = parameters
        self._parts = parts
        self._steps = 0  # segments of the round that were fed
        self._draft: TreeDraft | None = None  # under way
        self._base: TreeDraft | None = None  # the last one that is complete

    @abstractmethod
    def _decide(self) -> list[Command]:
        """Decide on a returned segment of the round, which the tree has recorded."""

    def _on_draft_complete(self, draft: TreeDraft) -> list[Command]:
        """Use a draft that was started within a round."""
        raise AssertionError("this schedule drafts only between rounds")

    # --- events ----------------------------------------------------------------------------------

    def _drafted(self, event: Drafted) -> list[Command]:
        draft = self._draft
        assert draft is not None  # only drafts ask
        draft.absorb(event)
        if not draft.complete:
            return [self._next_pass(draft)]
        self._draft = None
        opened = self._flying.opened
        return self._on_draft_complete(draft) if opened else self._open_round(draft)

    def _returned(self, event: Returned) -> list[Command]:
        if not self._flying.take(event):
            return []
        self._seen = event.seen
        self._flying.verify(event)
        return self._decide()

    # --- drafting and feeding --------------------------------------------------------------------

    def _begin(self, root_token: int) -> list[Command]:
        self._flying.open_round(root_token)
        return self._start_draft(self._growth())

    def _growth(self) -> Growth:
        return self._parameters.growth

    def _start_draft(self, growth: Growth) -> list[Command]:
        """Give up a draft under way; draft a new tree, with unread committed tokens first."""
        withdrawn = self._pending.withdraw()
        unread, held = self._pending.unread, self._pending.held()
        best_first = self._parameters.independent_levels and growth.frontier is not None
        kind = BlockTreeDraft if best_first else TreeDraft
        self._draft = kind(self._flying.tree.tokens[0], unread, growth, held=held)
        return [*withdrawn, self._next_pass(self._draft)]

    def _next_pass(self, draft: TreeDraft) -> DraftPass:
        return self._pending.ask(draft.next_pass(self._request.ticket()))

    def _open_round(self, draft: TreeDraft) -> list[Command]:
        parameters = self._parameters
        self._flying.append(*draft.best_tree(parameters.size, parameters.score_order))
        self._base, self._steps = draft, 0
        lengths = split(len(self._flying.tree), self._parts, parameters.segment)
        return [self._feed(length) for length in lengths]

    def _feed(self, count: int) -> Feed:
        step = self._steps if self.lock_step else None
        self._steps += 1
        fed = self._flying.feed(count, step)
        if not self._parameters.cut:
            return fed
        scores = self._flying.tree.scores
        return Feed(fed.segment, tuple([exp(scores[node]) for node in range(1, count)]))

    def _end_round(self, walk: Walk) -> list[Command]:
        """End a round at a miss: keep only the accepted nodes, and draft from the new root."""
        commands = self._flying.commit(walk)
        self._flying.record_round()
        if self.done:
            return commands
        word = self._flying.drop_round(walk, lock_step=self.lock_step)
        return [word, *commands, *self._begin(walk.next_token)]


class StaticTree(TreeSchedule):
    """A schedule that evaluates once per round; the stages run free within it.

    ``naive_pp`` (FlowSpec's baseline, section 4.1): the EAGLE-2 tree is cut into one segment more
    than there are stages; they flow through the pipeline one behind another, in plain tree order in
    the authors' code. With one part it is a tree verified in one batch: ``eagle`` (EAGLE-2 tree
    under PP), ``specinfer`` (fixed branching), ``chain`` (no branching), and each session of
    ``starsd``.
    """

    def _decide(self) -> list[Command]:
        flying = self._flying
        if flying.waiting and len(flying.outstanding) < self._parts:
            flying.nothing_committed()
            return [self._feed(min(self._parameters.segment, flying.waiting))]
        if flying.outstanding:
            flying.nothing_committed()
            return []
        walk = flying.walk()
        assert walk is not None  # the root came back, so at least it is verified
        if self._parameters.cut:
            flying.shortened()
            walk = replace(walk, next_node=None)  # it was drafted, but did not travel
        return self._end_round(walk)
