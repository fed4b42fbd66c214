"""Which rows the target's tokens accept, as far as the end of a pipeline can tell for itself.

Law of this file: a row is accepted if it is its tree's root, or if its parent is and the target's
token there is the row's own. So the states of accepted rows can travel with the target's tokens,
to a draft that reads them, and no word is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.core.messages import NO_PARENT, NO_TOKEN, Segment
from treepipe.core.stage import Prune


class AcceptedRows:
    """The target's tokens at the accepted ones of a last stage's cached nodes, of all sessions."""

    def __init__(self) -> None:
        self._tokens: dict[int, list[int]] = {}

    def prune(self, action: Prune) -> None:
        """The stage prunes its cache."""
        tokens = self._tokens.get(action.session, [])
        self._tokens[action.session] = [tokens[node] for node in action.keep[action.accepted :]]

    def close(self, session: int) -> None:
        """The session is over."""
        self._tokens.pop(session, None)

    def of(self, segment: Segment, answers: Sequence[int]) -> tuple[int, ...]:
        """The accepted ones among a segment's rows.

        Args: ``answers``: the target's token per row; of committed rows at the last one only.
            None for a request that was over before its segment was computed: nobody reads its
            states.
        """
        if not answers:
            return ()
        if segment.committed:
            return tuple(range(len(segment.tokens)))
        tokens, found = self._tokens.setdefault(segment.session, []), list[int]()
        for row, (own, parent) in enumerate(zip(segment.tokens, segment.parents, strict=True)):
            accepted = parent == NO_PARENT or tokens[parent] == own
            tokens.append(answers[row] if accepted else NO_TOKEN)
            if accepted:
                found.append(row)
        return tuple(found)
