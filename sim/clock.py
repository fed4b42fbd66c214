"""Simulated time: what is to be called when (SimPy's event queue, without its processes).

Law of this file: callbacks that are due together are called in the order in which they were asked
for. Nothing here knows what they do.

Of SimPy only ``timeout``, ``step``, ``now`` and an event's ``callbacks`` are used, all public. A
heap of our own would save a dependency and part of a microsecond of the 25 that an event takes with
the answer of its schedule; against that, what is due together keeps its order by SimPy's own tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import simpy

from treepipe.core.messages import Flight, Message
from treepipe.results.trace import Kind

Callback: TypeAlias = Callable[[Any], None]
"""Called with SimPy's event, which means nothing here."""


class Clock(simpy.Environment):  # type: ignore[misc]
    """An event queue with callbacks, which cost a fraction of what processes do.

    Attributes:
        events: how many were asked for so far; what is due together shares one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events = 0
        self._due_ms = 0.0
        self._latest: simpy.Event | None = None

    def after(self, delay_ms: float, callback: Callback) -> None:
        """Call back in ``delay_ms`` (>= 0).

        What is due at the same time as the callback asked for just before shares its event:
        nothing could come between the two.
        """
        due = self._now + delay_ms
        latest = self._latest
        if latest is None or due != self._due_ms or latest.callbacks is None:
            self._due_ms = due
            latest = self._latest = simpy.Timeout(self, delay_ms)
            self.events += 1
        latest.callbacks.append(callback)

    # What released what is told here, to nobody unless the clock listens (``causes.py``).

    def bound(self, callback: Callback) -> Callback:
        """The callback for what goes on with this moment, whenever it is called."""
        return callback

    def spent(self, place: str, kind: Kind, begin_ms: float) -> None:
        """What was let begin at ``begin_ms`` has just ended."""

    def waited(self, place: str, kind: Kind, since_ms: float) -> None:
        """What begins now was ready before."""

    def ready(self, place: str, message: Message) -> None:
        """A flight is at a stage, or computed there, and may have to wait."""

    def taken(self, place: str, flight: Flight) -> None:
        """Its waiting is over."""

    def transferred(
        self,
        port: object,
        link: str,
        begin_ms: float,
        free_ms: float,
        due_ms: float,
        arrive: Callback,
    ) -> Callback:
        """``arrive`` for a message of a link that comes to a port now."""
        return arrive
