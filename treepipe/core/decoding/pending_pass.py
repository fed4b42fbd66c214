"""The draft pass whose answer a request waits for, and what the draft has read by then.

Invariant: every pass is answered once or withdrawn; an unexpected answer is an error and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.core.errors import ProtocolError
from treepipe.core.protocol import Command, Drafted, DraftPass, Withdraw
from treepipe.core.scratch import Scratch


class PendingPass:
    """The pass that was ordered and is not answered, at most one."""

    def __init__(self, text: Sequence[int], *, keeps: bool = False) -> None:
        """Make the record.

        Args:
            text: the committed tokens, prompt included, which grow.
            keeps: the draft need not reread accepted tokens it drafted from.
        """
        self._text, self._read = text, 0
        self._scratch = Scratch[None]() if keeps else None
        self._order: DraftPass | None = None

    @property
    def under_way(self) -> bool:
        return self._order is not None

    @property
    def unread(self) -> Sequence[int]:
        """Committed tokens that the draft has not read as such, nor will with the pass under way;
        it may hold some of them as scratch nodes."""
        return self._text[self._read :]

    def ask(self, order: DraftPass) -> DraftPass:
        self._order = order
        self._read += order.renews
        return order

    def held(self) -> tuple[int, ...]:
        """Return the scratch nodes that hold the first unread tokens; the last is always read."""
        return () if self._scratch is None else self._scratch.along(self.unread[:-1])

    def withdraw(self) -> list[Command]:
        """Take back the pass under way, if there is one: the draft then reads nothing of it."""
        order, self._order = self._order, None
        if order is None:
            return []
        self._read -= order.renews
        return [Withdraw(order.ticket)]

    def answered(self, event: Drafted) -> None:
        """Take the answer. Raise ``ProtocolError`` if it was not asked for, or does not answer for
        every node."""
        order = self._order
        if order is None or event.ticket != order.ticket:
            raise ProtocolError(f"no draft pass with ticket {event.ticket} is under way")
        event.expect(order.asked if order.top_k else 0)
        if self._scratch is not None:
            self._scratch.follow(order)
        self._order = None
