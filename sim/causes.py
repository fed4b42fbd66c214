"""The causes of a simulated run: the chain of work and transfers that led to each moment.

Recording causes does not change a run. The parent of a piece of work or a transfer is the event
that let it begin: a delivery, or the work that held the place before. So the chain behind a
request's end, back to its first token, covers that time once, and is its critical path: to shorten
a link of this chain shortens the request by as much, as long as the chain stays the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from treepipe.results.critical_path import PathPart, Why
from treepipe.results.trace import Kind
from treepipe.sim.clock import Callback, Clock

ROUNDING_MS = 1e-9
"""Tolerance for the rounding of summed times."""


@dataclass(slots=True, eq=False)
class Cause:
    """One activity of a place from ``begin_ms`` to ``end_ms``, let begin by ``parent``.

    One without length marks that the work that begins there had been ready since ``ready_ms``.
    """

    parent: Cause | None
    place: str
    kind: Kind
    begin_ms: float
    end_ms: float
    ready_ms: float

    @property
    def waited(self) -> bool:
        return self.begin_ms - self.ready_ms > ROUNDING_MS


class ListeningClock(Clock):
    """A clock that stores with every callback the cause under which it was requested."""

    def __init__(self) -> None:
        super().__init__()
        self.cause: Cause | None = None
        self._ports: dict[object, Cause] = {}

    def after(self, delay_ms: float, callback: Callback) -> None:
        super().after(delay_ms, self.bound(callback))

    def bound(self, callback: Callback) -> Callback:
        return partial(self._resume, self.cause, callback)

    def _resume(self, cause: Cause | None, callback: Callback, event: object) -> None:
        self.cause = cause
        callback(event)

    def spent(self, place: str, kind: Kind, begin_ms: float) -> None:
        if begin_ms < self.now:
            self.cause = Cause(self.cause, place, kind, begin_ms, self.now, begin_ms)

    def waited(self, place: str, kind: Kind, since_ms: float) -> None:
        if since_ms < self.now:
            before = self.cause
            while before is not None and before.begin_ms == before.end_ms == self.now:
                before = before.parent  # other work was ready that took no time
            self.cause = Cause(before, place, kind, self.now, self.now, since_ms)

    def transferred(
        self,
        port: object,
        link: str,
        begin_ms: float,
        free_ms: float,
        due_ms: float,
        arrive: Callback,
    ) -> Callback:
        cause, now = self.cause, self.now
        if begin_ms > now:
            cause = Cause(self._ports[port], link, "transfer", begin_ms, begin_ms, now)
        self._ports[port] = Cause(cause, link, "transfer", begin_ms, free_ms, begin_ms)
        whole = Cause(cause, link, "transfer", begin_ms, due_ms, begin_ms)
        return partial(self._resume, whole, arrive)

    def forget(self, before_ms: float) -> None:
        """Drop the causes before this time, except the work under way then, and its cause."""
        at = self.cause
        while at is not None and (at.begin_ms > before_ms or _hides(at)):
            at = at.parent
        if at is not None and at.parent is not None:
            before = at.parent
            while before.parent is not None and _hides(before):
                before = before.parent
            before.parent = None


def _hides(cause: Cause) -> bool:
    """Whether the reason for the next cause lies before this one."""
    return cause.kind == "prune" or cause.begin_ms == cause.end_ms


def critical_path(
    last: Cause | None, session: int, edges: Sequence[tuple[float, float, Why]]
) -> list[PathPart]:
    """Return the chain behind a request's end, as the time that each place has on it, by reasons.

    Args:
        edges: consecutive times (begin and end, ms), and the reason of the chain there unless
            something waited; empty for a request of one token.
    """
    if not edges:
        return []
    found, begins = dict[tuple[str, Why], float](), [since for since, _, _ in edges]
    for place, begin, end, waited in _waits(_chain(last, edges[0][0], edges[-1][1])):
        first = max(0, bisect_right(begins, begin) - 1)
        for since, until, usual in edges[first : bisect_left(begins, end)]:
            inside = min(end, until) - max(begin, since)
            if inside > 0:
                key = place, waited or usual
                found[key] = found.get(key, 0.0) + inside
    return [PathPart(session, place, why, time) for (place, why), time in found.items()]


def _chain(last: Cause | None, start_ms: float, end_ms: float) -> Iterator[Cause]:
    """Yield the causes from ``end_ms`` back to ``start_ms``, without a gap between them.

    A time without work (an alarm ran) belongs to the place that it woke.
    """
    until, at = end_ms, last
    while until > start_ms and at is not None:
        parent = at.parent
        begin = at.begin_ms if parent is None else min(at.begin_ms, until)
        yield Cause(parent, at.place, at.kind, begin, until, at.ready_ms)
        until = begin
        if parent is not None and parent.end_ms < until:
            yield Cause(parent, at.place, at.kind, parent.end_ms, until, parent.end_ms)
            until = parent.end_ms
        at = parent


def _waits(chain: Iterator[Cause]) -> Iterator[tuple[str, float, float, Why | None]]:
    """Yield the pieces of the chain, latest first, cut where something began to wait: place, begin,
    end, and the reason of the wait.

    A piece that had waited and was let begin by a message, or by the pruning that a message asked
    for, waited for the barrier; all others waited for their place.
    """
    waits = list[tuple[float, Why]]()
    for at in chain:
        end = at.end_ms
        if at.waited:
            waits.append((at.ready_ms, _reason(at)))
        while end > at.begin_ms:
            waits = [wait for wait in waits if wait[0] < end]
            since, why = waits[0] if waits else (at.begin_ms, None)
            begin = max(at.begin_ms, since)
            yield at.place, begin, end, why
            end = begin


def _reason(at: Cause) -> Why:
    before = at.parent
    while before is not None and _hides(before):
        before = before.parent
    by_message = before is not None and before.kind == "transfer" and at.kind == "compute"
    return "barrier" if by_message else "queueing"
