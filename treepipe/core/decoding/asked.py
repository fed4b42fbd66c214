"""The draft pass whose answer a request waits for, and those whose answers are of no use any more;
and what the draft holds by then of the request.

Law of this file: every pass is answered once; an answer that nothing waits for is an error and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.core.errors import ProtocolError
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.scratch import Scratch


class Asked:
    """At most one pass is under way at a time, besides abandoned ones."""

    def __init__(self, *, keeps: bool = False) -> None:
        """Args: ``keeps``: the draft need not read accepted tokens that it has drafted from."""
        self._scratch = Scratch[None]() if keeps else None
        self._order: DraftPass | None = None
        self._abandoned: set[int] = set()

    @property
    def under_way(self) -> bool:
        """Whether an answer is waited for."""
        return self._order is not None

    def ask(self, order: DraftPass) -> DraftPass:
        """A pass is ordered."""
        if self._scratch is not None:
            self._scratch.follow(order)
        self._order = order
        return order

    def held(self, unread: Sequence[int]) -> tuple[int, ...]:
        """Scratch nodes that hold the first of these committed tokens, all but the last one: the
        draft reads that one to answer for it."""
        return () if self._scratch is None else self._scratch.along(unread[:-1])

    def abandon(self) -> None:
        """The answer to the pass under way, if there is one, is of no use any more."""
        if self._order is not None:
            self._abandoned.add(self._order.ticket)
            self._order = None

    def answers(self, event: Drafted) -> bool:
        """A pass was answered; returns whether that was waited for.

        Raises ``ProtocolError`` if it was not asked for, or does not answer for every node.
        """
        if event.ticket in self._abandoned:
            self._abandoned.remove(event.ticket)
            return False
        order = self._order
        if order is None or event.ticket != order.ticket:
            raise ProtocolError(f"no draft pass with ticket {event.ticket} is under way")
        event.expect(order.asked if order.top_k else 0)
        self._order = None
        return True
