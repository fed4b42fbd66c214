"""The frame of every schedule that drafts a tree per round and feeds it in segments.

Here: prefill, drafting a round's tree, cutting it, walking verified nodes, ending a round. When a
returned segment is evaluated and what is fed behind it is decided by the subclasses, by family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from treepipe.errors import ProtocolError
from treepipe.protocol import (
    Announce,
    Command,
    Drafted,
    Event,
    Feed,
    Returned,
    RoundRecord,
    Segment,
    Started,
    Word,
    WorkerLost,
)
from treepipe.schedules.drafting import TreeDraft
from treepipe.schedules.request import Request
from treepipe.stage import WordLog
from treepipe.tree import TokenTree, split


@dataclass(frozen=True, slots=True)
class TreeParameters:
    """The draft tree of a round (FlowSpec, section 4.1 and appendix A.1 for the defaults).

    Attributes:
        size: nodes below the root (``L``).
        depth: draft passes behind the catch-up pass (``d0``).
        top_k: candidates per node, and nodes per layer that get candidates.
        segment: most tokens per segment (``l_max``).
        score_order: cut the tree in descending score; False: in tree order.
    """

    size: int = 80
    depth: int = 6
    top_k: int = 10
    segment: int = 16
    score_order: bool = True


@dataclass(frozen=True, slots=True)
class Walk:
    """Where the verified tokens lead: the accepted nodes (root first) and the token behind them.

    ``next_node`` is the tree node that holds ``next_token``, None at a miss.
    """

    accepted: tuple[int, ...]
    next_token: int
    next_node: int | None


class TreeSchedule(ABC):
    """A request decoded in rounds, each from a freshly drafted tree."""

    def __init__(
        self, session: int, prefill_chunk: int, parameters: TreeParameters, parts: int
    ) -> None:
        """Args: ``parts``: how many segments a round's tree is cut into."""
        self._request = Request(session, prefill_chunk)
        self._parameters = parameters
        self._parts = parts
        self._prefill: deque[int] = deque()
        self._outstanding: deque[Segment] = deque()
        self._cancelled: set[int] = set()
        self._unread: list[int] = []
        self._draft: TreeDraft | None = None
        self._waiting: deque[Returned] = deque()
        self._log = WordLog()
        self._tree = TokenTree(0)
        self._verified: list[int | None] = []
        self._fed = 0
        self._round = 0
        self._rounds: list[RoundRecord] = []
        self._per_step: list[int] = []
        self._counts = [0, 0]

    @property
    def done(self) -> bool:
        return self._request.finished is not None

    @property
    def rounds(self) -> Sequence[RoundRecord]:
        return self._rounds

    @property
    def outstanding(self) -> frozenset[int]:
        """Tickets of the segments that are in the pipeline and of use."""
        return frozenset(self._prefill) | {segment.ticket for segment in self._outstanding}

    @property
    def cancelled(self) -> frozenset[int]:
        """Tickets of segments that are of no use any more; answers to them are ignored."""
        return frozenset(self._cancelled)

    # --- what the families decide ----------------------------------------------------------------

    @abstractmethod
    def _on_returned(self, event: Returned) -> list[Command]:
        """A segment of the current round came back (already taken off the outstanding ones)."""

    @abstractmethod
    def _on_draft_complete(self, draft: TreeDraft) -> list[Command]:
        """A draft that was started within a round is complete."""

    @abstractmethod
    def _step_of(self, index: int) -> int | None:
        """The lock-step place of the round's ``index``-th segment, None if it runs free."""

    # --- events ----------------------------------------------------------------------------------

    def handle(self, event: Event) -> Sequence[Command]:
        if self.done:
            raise ProtocolError("the request is done")
        if isinstance(event, Started):
            segments, commands = self._request.start(event)
            self._prefill.extend(segment.ticket for segment in segments)
            self._unread.extend(event.prompt)
            return commands
        if isinstance(event, Drafted):
            return self._drafted(event)
        if isinstance(event, Returned):
            return self._returned(event)
        if isinstance(event, WorkerLost):
            return self._request.lose()
        raise ProtocolError(f"{type(event).__name__} is no event of a schedule")

    def _drafted(self, event: Drafted) -> list[Command]:
        draft = self._draft
        if draft is None:
            raise ProtocolError(f"no draft pass with ticket {event.ticket} is under way")
        draft.absorb(event)
        if not draft.complete:
            return [draft.next_pass(self._request.ticket())]
        self._draft = None
        opened = self._counts[0] > 0  # _fed says nothing: a new root may still wait to be fed
        commands = self._on_draft_complete(draft) if opened else self._open_round(draft)
        while self._waiting and self._draft is None and not self.done:
            commands += self._evaluate(self._waiting.popleft())
        return commands

    def _returned(self, event: Returned) -> list[Command]:
        if event.ticket in self._cancelled:
            self._cancelled.remove(event.ticket)
            return []
        if self._prefill and event.ticket == self._prefill[0]:
            return self._prefilled(event)
        if not self._outstanding or event.ticket != self._outstanding[0].ticket:
            raise ProtocolError(f"no segment with ticket {event.ticket} is next to come back")
        if event.version > self._log.version:
            raise ProtocolError(f"version {event.version} has not been announced yet")
        self._outstanding.popleft()
        if self._draft is not None:
            self._waiting.append(event)
            return []
        return self._evaluate(event)

    def _evaluate(self, event: Returned) -> list[Command]:
        self._verify(event)
        return self._on_returned(event)

    def _prefilled(self, event: Returned) -> list[Command]:
        if len(self._prefill) > 1:
            self._prefill.popleft()
            return []
        if not event.next_tokens:
            raise ProtocolError("a prompt comes back with the target's next token")
        self._prefill.popleft()
        token = event.next_tokens[-1]
        commands = self._request.emit((token,))
        return commands if self.done else commands + self._new_round(token)

    # --- drafting and feeding --------------------------------------------------------------------

    def _new_round(self, root_token: int) -> list[Command]:
        self._tree = TokenTree(root_token)
        self._verified = [None]
        self._fed = 0
        self._per_step, self._counts = [], [0, 0]
        self._unread.append(root_token)
        return self._start_draft(self._parameters.depth)

    def _start_draft(self, depth: int) -> list[Command]:
        """Draft a new tree below the root, reading the committed tokens not read so far."""
        root = self._tree.tokens[0]
        self._draft = TreeDraft(root, self._unread, self._parameters.top_k, depth)
        self._unread = []
        return [self._draft.next_pass(self._request.ticket())]

    def _open_round(self, draft: TreeDraft) -> list[Command]:
        parameters = self._parameters
        self._append(*draft.best_tree(parameters.size, parameters.score_order))
        lengths = split(len(self._tree), self._parts, parameters.segment)
        self._drafted_round(draft)
        return [self._feed(length, index) for index, length in enumerate(lengths)]

    def _drafted_round(self, draft: TreeDraft) -> None:  # noqa: B027  (a hook, empty by default)
        """The draft that opened the round, for families that go on from it."""

    def _append(self, tokens: list[int], parents: list[int], scores: list[float]) -> None:
        self._tree.merge(tokens, parents, scores)
        self._verified += [None] * (len(self._tree) - len(self._verified))

    def _feed(self, count: int, index: int) -> Feed:
        """Feed the next ``count`` nodes of the tree as the round's ``index``-th segment."""
        tree, first, last = self._tree, self._fed, self._fed + count
        segment = Segment(
            session=self._request.session,
            ticket=self._request.ticket(),
            round=self._round,
            version=self._log.version,
            start=first,
            tokens=tuple(tree.tokens[first:last]),
            positions=tuple([self._request.length + d for d in tree.depths[first:last]]),
            parents=tuple(tree.parents[first:last]),
            step=self._step_of(index),
        )
        self._fed = last
        self._counts[0] += count
        self._outstanding.append(segment)
        return Feed(segment)

    # --- verification ----------------------------------------------------------------------------

    def _verify(self, event: Returned) -> None:
        """Note the target's tokens at the nodes that came back and are still in the tree."""
        count = len(event.next_tokens)
        rows, start = self._log.survivors(event.version, event.start, count)
        tokens = event.next_tokens if rows is None else [event.next_tokens[i] for i in rows]
        self._verified[start : start + len(tokens)] = tokens

    def _walk(self) -> Walk | None:
        """Follow the target's tokens from the root as far as they are known."""
        node, accepted = 0, []
        while (token := self._verified[node]) is not None:
            accepted.append(node)
            child = self._tree.child(node, token)
            if child is None or self._verified[child] is None:
                return Walk(tuple(accepted), token, child)
            node = child
        return None

    def _commit(self, walk: Walk) -> list[Command]:
        """Emit the accepted path's tokens and the target's own token behind it."""
        tokens = [self._tree.tokens[node] for node in walk.accepted[1:]] + [walk.next_token]
        self._request.length += len(walk.accepted)
        # The draft has read the root; it reads a token that becomes the next round's root there.
        self._unread += tokens if walk.next_node is not None else tokens[:-1]
        wanted = self._request.wanted
        commands = self._request.emit(tokens)
        useful = wanted - self._request.wanted  # not what lies beyond the wanted length
        self._per_step.append(useful)
        self._counts[1] += useful
        return commands

    def _announce(
        self, retained: tuple[int, ...] | None, accepted: int, *, ends_round: bool, lock_step: bool
    ) -> Announce:
        word = Word(
            self._request.session,
            self._round,
            self._log.version,
            retained,
            accepted,
            ends_round,
            lock_step,
        )
        self._log.add(word)
        return Announce(word)

    def _end_round(self, walk: Walk, *, lock_step: bool) -> list[Command]:
        """A miss: keep the accepted nodes, drop the rest everywhere, draft from the new root."""
        commands = self._commit(walk)
        self._record_round()
        if self.done:
            return commands
        word = self._announce(
            walk.accepted, len(walk.accepted), ends_round=True, lock_step=lock_step
        )
        self._round += 1
        self._cancelled.update(segment.ticket for segment in self._outstanding)
        self._outstanding.clear()
        self._waiting.clear()
        return [word, *commands, *self._new_round(walk.next_token)]

    def _record_round(self) -> None:
        steps = tuple(self._per_step)
        self._rounds.append(RoundRecord(sum(steps), len(steps), steps, *self._counts))
