"""What a world remembers about the nodes of one request that came back, in step with the words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from treepipe.core.messages import Segment, Word
from treepipe.core.stage import WordLog

Note = TypeVar("Note")


class NodeNotes(Generic[Note]):
    """Notes by tree index, pruned as the tree is (index law; see ``stage.py``)."""

    def __init__(self) -> None:
        self._notes: dict[int, Note] = {}
        self._log = WordLog()
        self._round = 0

    def write(self, returned: Segment, notes: Sequence[Note]) -> None:
        """One note per row of a segment; those of rows that were pruned meanwhile are dropped."""
        if returned.round != self._round:
            return
        self._log.forget(returned.version)
        rows, start = self._log.survivors(returned.version, returned.start, len(notes))
        kept = notes if rows is None else [notes[row] for row in rows]
        self._notes.update(enumerate(kept, start=start))

    def announce(self, word: Word) -> list[Note]:
        """Follow a word; returns the notes of the nodes that it commits, in order."""
        self._log.add(word)
        if word.retained is None:
            return []
        accepted = [self._notes[node] for node in word.retained[: word.accepted]]
        live = enumerate(word.retained[word.accepted :])
        self._notes = {new: self._notes[old] for new, old in live if old in self._notes}
        self._round += word.ends_round
        return accepted
