"""A worker's activities, one entry per change.

Invariant: a worker always has exactly one activity, so its entries, in order, cover all of its time
without gap or overlap. An entry costs less than a microsecond.
"""

from __future__ import annotations

from array import array

from treepipe.executor.wire.clock import now_ms
from treepipe.results.trace import Kind, Span


class ActivityLog:
    """The entries of one worker since the last ``take``."""

    def __init__(self) -> None:
        self._kinds: list[Kind] = []
        self._starts = array("d")
        self._sessions, self._tokens = array("q"), array("q")
        self._begin("desk", now_ms(), 0, 0)

    def enter(self, kind: Kind, session: int = 0, tokens: int = 0) -> None:
        """Begin an activity."""
        if kind != self._kinds[-1] or session:  # equal pieces of work stay separate
            self._begin(kind, now_ms(), session, tokens)

    def woken(self, sent_ms: float) -> None:
        """Count the wait since a message was sent as waking up (the message's way through the
        system, and the scheduling of this process)."""
        if len(self._kinds) > 1 and self._kinds[-2:] == ["wait", "receive"]:
            start = max(sent_ms, self._starts[-2])
            if start < self._starts[-1]:
                self._kinds.insert(-1, "wake")
                self._starts.insert(-1, start)
                self._sessions.insert(-1, 0)
                self._tokens.insert(-1, 0)

    def take(self, device: str) -> list[Span]:
        """Return all entries until now as spans of this device; the last activity goes on."""
        ends = [*self._starts[1:], now_ms()]
        rows = zip(self._kinds, self._starts, ends, self._sessions, self._tokens, strict=True)
        found = [Span(device, *row) for row in rows]
        last = self._kinds[-1], ends[-1], self._sessions[-1], self._tokens[-1]
        for column in (self._kinds, self._starts, self._sessions, self._tokens):
            del column[:]
        self._begin(*last)
        return [span for span in found if span.end_ms > span.start_ms]

    def _begin(self, kind: Kind, at_ms: float, session: int, tokens: int) -> None:
        self._kinds.append(kind)
        self._starts.append(at_ms)
        self._sessions.append(session)
        self._tokens.append(tokens)
