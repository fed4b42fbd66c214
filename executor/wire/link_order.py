"""Delivery of every link's messages in order, each once.

A transport that reconnects may deliver older messages after later ones, so each has a number.

Invariant: the messages 0, 1, 2, ... of a link are admitted in this order and once each; a missing
one is reported, and none after it is admitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

LATE_MS = 250.0
"""Longest wait of a link's later messages for a missing one."""
MOST_EARLY = 1024
"""Limit of the waiting messages of one link."""
TWICE, FAR = "has come before", "is numbered beyond what can be under way"
"""Reasons to drop a message."""
Link = tuple[str, str]
Kept = TypeVar("Kept")


@dataclass(slots=True)
class _Early(Generic[Kept]):
    """Waiting messages by number, and the time since when the next one has been missing."""

    held: dict[int, Kept]
    since_ms: float
    named: bool = False


@dataclass(slots=True)
class LinkOrder(Generic[Kept]):
    """The receiving ends of links, which are named by sender and receiver."""

    _next: dict[Link, int] = field(default_factory=dict)
    _early: dict[Link, _Early[Kept]] = field(default_factory=dict)

    def take(self, link: Link, number: int, message: Kept, now_ms: float) -> list[Kept] | str:
        """Return the messages whose turn comes with this one, or the reason to drop it."""
        due, early = self._next.get(link, 0), self._early.get(link)
        held = {} if early is None else early.held
        if number < due or number in held:
            return TWICE
        if number > due:
            if len(held) == MOST_EARLY or number > due + MOST_EARLY:
                return FAR
            self._early.setdefault(link, _Early(held, now_ms)).held[number] = message
            return []
        found = [message]
        while (following := held.pop(due + len(found), None)) is not None:
            found.append(following)
        self._next[link] = due + len(found)
        if held:
            self._early[link] = _Early(held, now_ms)
        else:
            self._early.pop(link, None)
        return found

    def missing(self, now_ms: float) -> list[tuple[Link, int]]:
        """Return links with an overdue message, and its number; each once."""
        found = []
        for link, early in self._early.items():
            if not early.named and now_ms - early.since_ms > LATE_MS:
                early.named = True
                found.append((link, self._next.get(link, 0)))
        return found
