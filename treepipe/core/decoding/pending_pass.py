"""The draft pass whose answer a request waits for, and abandoned ones.

Invariant: every pass is answered once; an unexpected answer is an error and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.core.errors import ProtocolError
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.scratch import Scratch


class PendingPass:
    """The pass under way, one at a time, besides abandoned ones."""

    def __init__(self, *, keeps: bool = False) -> None:
        """Make the record; ``keeps``: the draft need not reread accepted tokens it drafted from."""
        self._scratch = Scratch[None]() if keeps else None
        self._order: DraftPass | None = None
        self._abandoned: set[int] = set()

    @property
    def under_way(self) -> bool:
        return self._order is not None

    def ask(self, order: DraftPass) -> DraftPass:
        if self._scratch is not None:
            self._scratch.follow(order)
        self._order = order
        return order

    def held(self, unread: Sequence[int]) -> tuple[int, ...]:
        """Return the scratch nodes that hold the first of these tokens; the last is always read."""
        return () if self._scratch is None else self._scratch.along(unread[:-1])

    def abandon(self) -> None:
        """Forget the pass under way, if there is one: its answer will be ignored."""
        if self._order is not None:
            self._abandoned.add(self._order.ticket)
            self._order = None

    def answers(self, event: Drafted) -> bool:
        """Take an answer; return whether the request waits for it. Raise ``ProtocolError`` if it
        was not asked for, or does not answer for every node."""
        if event.ticket in self._abandoned:
            self._abandoned.remove(event.ticket)
            return False
        order = self._order
        if order is None or event.ticket != order.ticket:
            raise ProtocolError(f"no draft pass with ticket {event.ticket} is under way")
        event.expect(order.asked if order.top_k else 0)
        self._order = None
        return True
