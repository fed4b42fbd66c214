"""PipeDec's central transfer scheduler as a rule, without clock or network; both worlds ask it.

Law of this file (PipeDec, section 3.2): a device takes part in one transfer at a time. Pending
transfers are looked through in the order in which they were asked for, and each one whose two ends
are free starts.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeAlias, TypeVar

Item = TypeVar("Item")
Ends: TypeAlias = tuple[str, str]
"""Sender and receiver."""


class TransferQueue(Generic[Item]):
    """Which transfers start now."""

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._pending: deque[tuple[Ends, Item]] = deque()

    def ask(self, ends: Ends, item: Item) -> list[tuple[Ends, Item]]:
        """A transfer is wanted; returns those that start."""
        self._pending.append((ends, item))
        return self._start()

    def end(self, ends: Ends) -> list[tuple[Ends, Item]]:
        """A transfer is over; returns those that start."""
        self._busy.difference_update(ends)
        return self._start()

    def _start(self) -> list[tuple[Ends, Item]]:
        started, waiting = [], deque[tuple[Ends, Item]]()
        for ends, item in self._pending:
            if self._busy.isdisjoint(ends):
                self._busy.update(ends)
                started.append((ends, item))
            else:
                waiting.append((ends, item))
        self._pending = waiting
        return started
