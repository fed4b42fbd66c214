"""The rules of one pipeline stage, without clock, network or tensors; both worlds drive it.

Invariant (the *index law*, FlowSpec section 3.3): whatever the order in which words and segments
reach a stage, it keeps the same tree. A word numbers the nodes to retain; a stage with ``l`` cached
tree nodes keeps those below ``l`` in its cache, and of a segment that starts at ``l`` the rows at
``i - l``. Words and segments carry versions, so a stage knows the words that are applied to a
segment.

In lock-step (FlowSpec as published) stage n of N computes the first N + 1 - n segments of a round
at once and afterwards waits before each segment for the word of that step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from treepipe.core.barrier import Barrier
from treepipe.core.errors import ProtocolError
from treepipe.core.messages import NO_PARENT, NO_TOKEN, Segment, Word, record
from treepipe.core.words import WordLog


@record
class Prune:
    """Keep, of the cached tree nodes, those at ``keep``; the first ``accepted`` are committed."""

    session: int
    keep: tuple[int, ...]
    accepted: int


@record
class Run:
    """Compute ``segment`` and send it on.

    ``rows`` are the positions, in the message as it arrived, of the remaining rows; None means all
    of them. ``segment`` holds those rows, with up-to-date indices.
    """

    segment: Segment
    rows: tuple[int, ...] | None


@record
class Pass:
    """Send the emptied segment on as a marker: no compute."""

    segment: Segment


Action: TypeAlias = Prune | Run | Pass


class StageSession:
    """One session at one stage: cache lengths, version, and the waiting messages."""

    def __init__(self, stage: int, stages: int) -> None:
        """Make a session at stage ``stage``, counted from 1 to ``stages`` along the pipeline."""
        self._barrier = Barrier(stages + 1 - stage)
        self.committed = 0
        self.cached = 0
        self.round = 0
        self._log = WordLog()
        self._segments: deque[Segment] = deque()
        self._words: deque[Word] = deque()

    @property
    def version(self) -> int:
        return self._log.version

    @property
    def first(self) -> Segment | None:
        """The first waiting segment."""
        return self._segments[0] if self._segments else None

    @property
    def word_is_due(self) -> bool:
        """Whether a word is due that waits for no segment."""
        return bool(self._words) and self._is_due(self._words[0], False)

    def receive(self, message: Segment | Word) -> bool:
        """Queue a message; return False for a segment of a finished round."""
        if isinstance(message, Word):
            self._words.append(message)
            return True
        if message.round < self.round:
            return False
        self._segments.append(message)
        return True

    def catch_up(self, segment: Segment) -> tuple[Segment, tuple[int, ...] | None]:
        """Apply later words to a computed segment; return its remaining rows, too (None: all)."""
        return self._log.catch_up(segment)

    def given_up(self, segment: Segment) -> Segment | None:
        """Return the segment that was taken last without a row, as the words that wait leave it;
        None if they leave one. It takes these words into account, so that no stage has it first."""
        log = WordLog(self.version)
        for word in self._words:
            log.add(word)
            if word.ends_round:
                gone: Any = dict.fromkeys(("tokens", "positions", "parents"), ())
                return replace(segment, version=log.version, **gone)
        left = segment if segment.committed else log.catch_up(segment)[0]
        return None if left.tokens else left

    def next_action(self) -> Action | None:
        """Return the next action, None if the stage must wait for a message."""
        if self._words:
            prune = self.next_prune()
            if prune is not None:
                return prune
        return None if self.due is None else self._take(self._segments.popleft())

    def next_prune(self) -> Prune | None:
        """Apply the words that are due, up to the first one that changes the cache."""
        while self._words and self._is_due(self._words[0], bool(self._segments)):
            prune = self._apply(self._words.popleft())
            if prune is not None:
                return prune
        return None

    @property
    def due(self) -> Segment | None:
        """The segment that is computed next, once no word is due; None if it must wait."""
        if not self._segments:
            return None
        segment = self._segments[0]
        if segment.round != self.round or segment.version > self._log.version:
            return None
        return segment if segment.step is None or self._barrier.lets(segment.step) else None

    def _is_due(self, word: Word, segment_waits: bool) -> bool:
        if not word.lock_step:
            return True
        return self._barrier.word_is_due and (word.ends_round or segment_waits)

    def _apply(self, word: Word) -> Prune | None:
        if word.retained is None:
            self._log.add(word)
            self._barrier.applied += 1
            return None
        keep = word.retained[: bisect_left(word.retained, self.cached)]
        if len(keep) < word.accepted:
            raise ProtocolError("an accepted node has not passed this stage yet")
        self._log.add(word)
        self._barrier.applied += 1
        dropped_all = len(keep) == self.cached
        self.committed += word.accepted
        self.cached = len(keep) - word.accepted
        if word.ends_round:
            self.round = word.round + 1
            self._barrier.taken = self._barrier.applied = 0
            self._segments = deque(s for s in self._segments if s.round >= self.round)
        if dropped_all and not word.accepted:
            return None
        return Prune(word.session, keep, word.accepted)

    def _take(self, arrived: Segment) -> Run | Pass:
        if arrived.committed:
            self.committed += len(arrived.tokens)
            return Run(arrived, None)
        segment, rows = self._log.catch_up(arrived)
        if segment.tokens and segment.start != self.cached:
            raise ProtocolError(
                f"a segment starts at node {segment.start}, but {self.cached} nodes are cached"
            )
        self._barrier.taken += arrived.step is not None
        if not segment.tokens:
            return Pass(segment)
        self.cached += len(segment.tokens)
        return Run(segment, rows)


class AcceptedRows:
    """The target's tokens at the accepted nodes in a last stage's cache, of all sessions, as far as
    that stage can judge alone.

    A row is accepted if it is its tree's root, or if its parent is and the target's token there is
    the row's own. So the states of accepted rows can travel with the target's tokens, before any
    word.
    """

    def __init__(self) -> None:
        self._tokens: dict[int, list[int]] = {}

    def prune(self, action: Prune) -> None:
        tokens = self._tokens.get(action.session, [])
        self._tokens[action.session] = [tokens[node] for node in action.keep[action.accepted :]]

    def close(self, session: int) -> None:
        self._tokens.pop(session, None)

    def skip(self, segments: Sequence[Segment]) -> None:
        """Take in rows whose pass ended before its last layer; no one of them is accepted."""
        for each in segments:
            if not each.committed:
                tokens = self._tokens.setdefault(each.session, [])
                tokens += [NO_TOKEN] * len(each.tokens)

    def of(
        self, segment: Segment, token_at: Callable[[int], int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Judge a segment's rows in order; return the target's token at each answered row
        (``NO_TOKEN`` where it is not accepted) and the accepted rows. ``token_at`` returns the
        target's token at an ``answered`` row."""
        if segment.committed:
            rows = range(len(segment.answered))
            return tuple([token_at(row) for row in rows]), tuple(range(len(segment.tokens)))
        tokens, found = self._tokens.setdefault(segment.session, []), list[int]()
        first = len(tokens)
        for row, (own, parent) in enumerate(zip(segment.tokens, segment.parents, strict=True)):
            accepted = parent == NO_PARENT or tokens[parent] == own
            tokens.append(token_at(row) if accepted else NO_TOKEN)
            if accepted:
                found.append(row)
        return tuple(tokens[first:]), tuple(found)
