"""The frame of every schedule that drafts a tree per round and feeds it in segments.

Here: prefill, drafting a round's tree, cutting it, ending a round. When a returned segment is
evaluated and what is fed behind it is decided by the subclasses, by family.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from dataclasses import dataclass

from treepipe.core.decoding.drafting import Growth, TreeDraft
from treepipe.core.decoding.in_flight import Walk
from treepipe.core.decoding.tree_decoding import TreeDecoding
from treepipe.core.protocol import (
    Command,
    Drafted,
    DraftPass,
    Feed,
    Returned,
)
from treepipe.core.tree import split


@dataclass(frozen=True, slots=True)
class TreeParameters:
    """The draft tree of a round (FlowSpec, section 4.1 and appendix A.1 for the defaults).

    Attributes:
        size: nodes below the root (``L``).
        segment: most tokens per segment (``l_max``).
        score_order: cut the tree in descending score; False: in tree order.
        growth: how the tree grows.
        keeps: the draft need not read accepted tokens that it has drafted from.
    """

    size: int
    segment: int
    score_order: bool
    growth: Growth
    keeps: bool = False


class TreeSchedule(TreeDecoding):
    """A request decoded in rounds, each from a freshly drafted tree."""

    def __init__(
        self, session: int, prefill_chunk: int, parameters: TreeParameters, parts: int
    ) -> None:
        """Args: ``parts``: how many segments a round's tree is cut into."""
        super().__init__(session, prefill_chunk, keeps=parameters.keeps)
        self._parameters = parameters
        self._parts = parts
        self._draft: TreeDraft | None = None
        self._waiting: deque[Returned] = deque()

    # --- what the families decide ----------------------------------------------------------------

    @abstractmethod
    def _on_returned(self, event: Returned) -> list[Command]:
        """A segment of the current round came back (already noted in the tree)."""

    @abstractmethod
    def _on_draft_complete(self, draft: TreeDraft) -> list[Command]:
        """A draft that was started within a round is complete."""

    @abstractmethod
    def _step_of(self, index: int) -> int | None:
        """The lock-step place of the round's ``index``-th segment, None if it runs free."""

    # --- events ----------------------------------------------------------------------------------

    def _drafted(self, event: Drafted) -> list[Command]:
        draft = self._draft
        assert draft is not None  # only drafts ask
        draft.absorb(event)
        if not draft.complete:
            return [self._next_pass(draft)]
        self._draft = None
        opened = self._flying.opened
        commands = self._on_draft_complete(draft) if opened else self._open_round(draft)
        while self._waiting and self._draft is None and not self.done:
            commands += self._evaluate(self._waiting.popleft())
        return commands

    def _returned(self, event: Returned) -> list[Command]:
        if not self._flying.take(event):
            return []
        self._seen = event.seen
        if self._draft is not None and not self.listens:
            self._waiting.append(event)
            return []
        return self._evaluate(event)

    def _evaluate(self, event: Returned) -> list[Command]:
        self._flying.verify(event)
        return self._on_returned(event)

    # --- drafting and feeding --------------------------------------------------------------------

    def _begin(self, root_token: int) -> list[Command]:
        """A new round: a tree of nothing but its root, and the draft that extends it."""
        self._flying.open_round(root_token)
        return self._start_draft(self._growth())

    def _growth(self) -> Growth:
        """How the next round's tree grows."""
        return self._parameters.growth

    def _start_draft(self, growth: Growth) -> list[Command]:
        """Draft a new tree below the root, reading the committed tokens not read so far; one that
        is under way is given up."""
        flying = self._flying
        self._asked.abandon()
        unread, flying.unread = flying.unread, []
        held = self._asked.held(unread)
        self._draft = TreeDraft(flying.tree.tokens[0], unread, growth, held=held)
        return [self._next_pass(self._draft)]

    def _next_pass(self, draft: TreeDraft) -> DraftPass:
        return self._asked.ask(draft.next_pass(self._request.ticket()))

    def _open_round(self, draft: TreeDraft) -> list[Command]:
        parameters = self._parameters
        self._flying.append(*draft.best_tree(parameters.size, parameters.score_order))
        lengths = split(len(self._flying.tree), self._parts, parameters.segment)
        self._drafted_round(draft)
        return [self._feed(length, index) for index, length in enumerate(lengths)]

    def _drafted_round(self, draft: TreeDraft) -> None:
        """The draft that opened the round, for families that go on from it."""

    def _feed(self, count: int, index: int) -> Feed:
        """Feed the next ``count`` nodes of the tree as the round's ``index``-th segment."""
        return self._flying.feed(count, self._step_of(index))

    def _end_round(self, walk: Walk, *, lock_step: bool) -> list[Command]:
        """A miss: keep the accepted nodes, drop the rest everywhere, draft from the new root."""
        commands = self._flying.commit(walk)
        self._flying.record_round()
        if self.done:
            return commands
        word = self._flying.drop_round(walk, lock_step=lock_step)
        self._waiting.clear()
        return [word, *commands, *self._begin(walk.next_token)]
