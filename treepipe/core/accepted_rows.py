"""The rows that the target's tokens accept, as far as a pipeline's last stage can judge alone.

A row is accepted if it is its tree's root, or if its parent is and the target's token there is the
row's own. So the states of accepted rows can travel with the target's tokens, before any word.
"""

from __future__ import annotations

from collections.abc import Callable

from treepipe.core.messages import NO_PARENT, NO_TOKEN, Segment
from treepipe.core.stage import Prune


class AcceptedRows:
    """The target's tokens at the accepted nodes in a last stage's cache, of all sessions."""

    def __init__(self) -> None:
        self._tokens: dict[int, list[int]] = {}

    def prune(self, action: Prune) -> None:
        tokens = self._tokens.get(action.session, [])
        self._tokens[action.session] = [tokens[node] for node in action.keep[action.accepted :]]

    def close(self, session: int) -> None:
        self._tokens.pop(session, None)

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
