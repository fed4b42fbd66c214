"""Messages of every link in the order in which they were sent, each once, however they come.

A transport that connects again may bring what it held back behind what came later. Every message
says how many were sent on its link before it, so who receives can tell.

Law of this file: of each link the messages 0, 1, 2, ... are let in, in this order and once each;
one that stays away is named, and nothing behind it is let in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

LATE_MS = 250.0
"""How long a message may stay away while later ones of its link are there."""
MOST_EARLY = 1024
"""Messages of one link that are held back at most."""
TWICE, FAR = "has come before", "is numbered beyond what can be under way"
"""Why a message is not let in."""

Link = tuple[str, str]
"""Sender and receiver."""
Kept = TypeVar("Kept")


@dataclass(slots=True)
class _Early(Generic[Kept]):
    """What came before its turn, by number, and since when the next one has been missing."""

    held: dict[int, Kept]
    since_ms: float
    named: bool = False


@dataclass(slots=True)
class LinkOrder(Generic[Kept]):
    """The receiving ends of some links."""

    _next: dict[Link, int] = field(default_factory=dict)
    _early: dict[Link, _Early[Kept]] = field(default_factory=dict)

    def take(self, link: Link, number: int, message: Kept, now_ms: float) -> list[Kept] | str:
        """Those whose turn it is now that this one came, or why it is not let in."""
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
        """The links whose next message stays away, with its number; each is named once."""
        found = []
        for link, early in self._early.items():
            if not early.named and now_ms - early.since_ms > LATE_MS:
                early.named = True
                found.append((link, self._next.get(link, 0)))
        return found
