"""The rules of one pipeline stage, without clock, network or tensors; both worlds drive it.

Law of this file (the *index law*, FlowSpec section 3.3): whatever the order in which words and
segments reach a stage, it keeps the same tree. A word numbers the nodes to retain; a stage with
``l`` cached tree nodes keeps those below ``l`` in its cache, and of a segment that starts at ``l``
the rows at ``i - l``. Words and segments carry versions, so a stage knows which words a segment
has already been through.

In lock-step (FlowSpec as published) stage n of N computes the first N + 1 - n segments of a round
at once and afterwards waits before each segment for the word of that step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from treepipe.core.errors import ProtocolError
from treepipe.core.messages import Segment, Word


@dataclass(frozen=True, slots=True)
class Prune:
    """Keep, of the cached tree nodes, those at ``keep``; the first ``accepted`` are committed."""

    session: int
    keep: tuple[int, ...]
    accepted: int


@dataclass(frozen=True, slots=True)
class Run:
    """Compute ``segment`` and send it on.

    ``rows`` are the positions, in the message as it arrived, of the rows that are left; None
    means all of them. ``segment`` is what is left, with up-to-date indices.
    """

    segment: Segment
    rows: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Pass:
    """Send the emptied segment on as a marker: no compute."""

    segment: Segment


Action: TypeAlias = Prune | Run | Pass


class WordLog:
    """The words of one session since the round began, applied to segments that missed them."""

    def __init__(self) -> None:
        self.version = 0
        self._first = 0
        self._words: list[Word] = []

    def add(self, word: Word) -> None:
        if word.number != self.version:
            raise ProtocolError(f"word {word.number} arrived at version {self.version}")
        self.version += 1
        if word.ends_round:
            self._first, self._words = self.version, []
        else:
            self._words.append(word)

    def forget(self, version: int) -> None:
        """No segment older than ``version`` will be asked about any more.

        Segments overtake each other nowhere, and none loses a word it has been through. So a
        round without end (``layered.py``) needs no more words than are on their way.
        """
        del self._words[: max(version - self._first, 0)]
        self._first = max(version, self._first)

    def survivors(self, version: int, start: int, count: int) -> tuple[list[int] | None, int]:
        """Which of ``count`` rows from ``start`` at ``version`` are left now, and their start.

        The rows are positions in 0..count-1, None stands for all. Index law (ii).
        """
        if version < self._first:
            raise ProtocolError(f"words before {self._first} are forgotten, not only {version}")
        rows: list[int] | None = None
        for word in self._words[version - self._first :]:
            if word.retained is None:
                continue
            low = bisect_left(word.retained, start)
            high = bisect_left(word.retained, start + count)
            kept = [index - start for index in word.retained[low:high]]
            rows = kept if rows is None else [rows[i] for i in kept]
            start, count = max(low - word.accepted, 0), len(kept)
        return rows, start

    def catch_up(self, segment: Segment) -> tuple[Segment, tuple[int, ...] | None]:
        """The segment after all words it has missed, and which of its rows are left.

        None stands for all rows. The segment's round must be the current one.
        """
        self.forget(segment.version)
        if segment.version == self.version:
            return segment, None
        old, missed = segment, self._words
        rows, start = self.survivors(old.version, old.start, len(old.tokens))
        tokens, positions, parents = old.tokens, old.positions, old.parents
        if rows is not None:
            tokens = tuple([tokens[i] for i in rows])
            positions = tuple([positions[i] for i in rows])
            parents = _renumber([parents[i] for i in rows], missed)
        segment = Segment(
            old.session,
            old.ticket,
            old.round,
            self.version,
            start,
            tokens,
            positions,
            parents,
            old.step,
        )
        return segment, None if rows is None else tuple(rows)


def _renumber(parents: list[int], missed: Sequence[Word]) -> tuple[int, ...]:
    """Surviving rows' parents after the missed words.

    The new root's parent is the last of the accepted nodes, so that it ends up as ``NO_PARENT``.
    """
    for word in missed:
        kept, accepted = word.retained, word.accepted
        if kept is not None:
            parents = [p if p < 0 else bisect_left(kept, p) - accepted for p in parents]
    return tuple(parents)


class StageSession:
    """What one stage knows of one session: cache lengths, version, and what waits."""

    def __init__(self, stage: int, stages: int) -> None:
        """Args: ``stage`` counts from 1 to ``stages`` along the pipeline."""
        self.free_steps = stages + 1 - stage
        self.committed = 0
        self.cached = 0
        self.round = 0
        self._log = WordLog()
        self._round_start = 0
        self._steps = 0
        self._segments: deque[Segment] = deque()
        self._words: deque[Word] = deque()

    @property
    def version(self) -> int:
        """How many words the cache has been through."""
        return self._log.version

    @property
    def waiting(self) -> tuple[Segment, ...]:
        """Segments that arrived and are not due yet."""
        return tuple(self._segments)

    def receive(self, message: Segment | Word) -> None:
        """Take note of a message; ``next_action`` says what follows from it."""
        if isinstance(message, Word):
            self._words.append(message)
        elif message.round >= self.round:
            self._segments.append(message)

    def next_action(self) -> Action | None:
        """The next thing to do, None if the stage must wait for a message."""
        while True:
            if self._words and self._word_is_due(self._words[0]):
                prune = self._apply(self._words.popleft())
                if prune is not None:
                    return prune
            elif self._segments and self._segment_is_due(self._segments[0]):
                return self._take(self._segments.popleft())
            else:
                return None

    def _word_is_due(self, word: Word) -> bool:
        if not word.lock_step:
            return True
        step = word.number - self._round_start + self.free_steps
        return self._steps == step and (word.ends_round or bool(self._segments))

    def _segment_is_due(self, segment: Segment) -> bool:
        if segment.round != self.round or segment.version > self._log.version:
            return False
        if segment.step is None or segment.step < self.free_steps:
            return True
        needed = segment.step - self.free_steps + 1
        return self._log.version - self._round_start >= needed

    def _apply(self, word: Word) -> Prune | None:
        if word.retained is None:
            self._log.add(word)
            return None
        keep = word.retained[: bisect_left(word.retained, self.cached)]
        if len(keep) < word.accepted:
            raise ProtocolError("an accepted node has not passed this stage yet")
        self._log.add(word)
        dropped_all = len(keep) == self.cached
        self.committed += word.accepted
        self.cached = len(keep) - word.accepted
        if word.ends_round:
            self.round = word.round + 1
            self._round_start = self._log.version
            self._steps = 0
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
        self._steps += arrived.step is not None
        if not segment.tokens:
            return Pass(segment)
        self.cached += len(segment.tokens)
        return Run(segment, rows)
