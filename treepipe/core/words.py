"""The words of one session, and their effect on segments and notes that missed some.

A word numbers the nodes to retain, the accepted ones first (the index law; see ``stage.py``). The
words from ``v`` on bring a segment of version ``v`` up to date.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, TypeVar

from treepipe.core.errors import ProtocolError
from treepipe.core.messages import NO_PARENT, Segment, Word

Note = TypeVar("Note")


class WordLog:
    """The words of one session since the round began, applied to segments that missed them."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self._first = version
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
        """Drop the words before ``version``, which no later segment needs.

        Segments overtake each other nowhere, and a segment keeps the words applied to it. So a
        round without end (``layered.py``) needs only the words on their way.
        """
        del self._words[: max(version - self._first, 0)]
        self._first = max(version, self._first)

    def survivors(self, version: int, start: int, count: int) -> tuple[list[int] | None, int]:
        """Return which of ``count`` rows from ``start`` at ``version`` remain, and their start.

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
        """Return the segment after all words it has missed, and its remaining rows.

        None stands for all rows. The segment's round must be the current one.
        """
        if segment.version > self._first:
            self.forget(segment.version)
        if segment.version == self.version:
            return segment, None
        old, missed = segment, self._words
        rows, start = self.survivors(old.version, old.start, len(old.tokens))
        tokens, positions, parents = old.tokens, old.positions, old.parents
        if rows is not None:
            tokens = tuple([tokens[row] for row in rows])
            positions = tuple([positions[row] for row in rows])
            parents = _renumber([parents[row] for row in rows], missed)
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
    """Return surviving rows' parents after the missed words.

    The new root's parent is the last of the accepted nodes, so that it ends up as ``NO_PARENT``.
    """
    for word in missed:
        kept, accepted = word.retained, word.accepted
        if kept is not None:  # many rows share few parents
            places = {parent: bisect_left(kept, parent) - accepted for parent in {*parents}}
            places[NO_PARENT] = NO_PARENT
            parents = [places[parent] for parent in parents]
    return tuple(parents)


class NodeNotes(Generic[Note]):
    """A world's notes about the returned nodes of one request, pruned as the tree is."""

    def __init__(self) -> None:
        self._notes: dict[int, Note] = {}
        self._log = WordLog()
        self._round = 0

    def write(self, returned: Segment, notes: Sequence[Note]) -> None:
        """Store one note per row of a segment, except for rows that were pruned meanwhile."""
        if returned.round != self._round:
            return
        self._log.forget(returned.version)
        rows, start = self._log.survivors(returned.version, returned.start, len(notes))
        kept = notes if rows is None else [notes[row] for row in rows]
        self._notes.update(enumerate(kept, start=start))

    def announce(self, word: Word) -> list[Note]:
        """Follow a word; return the notes of the nodes that it commits, in order."""
        self._log.add(word)
        if word.retained is None:
            return []
        accepted = [self._notes[node] for node in word.retained[: word.accepted]]
        live = enumerate(word.retained[word.accepted :])
        self._notes = {new: self._notes[old] for new, old in live if old in self._notes}
        self._round += word.ends_round
        return accepted
