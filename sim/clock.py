"""Simulated time: SimPy's event queue, without its processes.

Callbacks that are due together run in the order of their requests. Only SimPy's public names are
used: ``Environment``, its ``now`` and ``step``, ``Timeout`` and an event's ``callbacks``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import simpy

from treepipe.results.trace import Kind

Place = TypeVar("Place")
Callback: TypeAlias = Callable[[Any], None]
"""A function of SimPy's event, which it ignores."""


class Clock(simpy.Environment):  # type: ignore[misc]
    """An event queue with callbacks, which cost a fraction of processes.

    Attributes:
        events: number of events so far; consecutive callbacks due together share one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events = 0
        self._due_ms = 0.0
        self._latest: simpy.Event | None = None

    def after(self, delay_ms: float, callback: Callback) -> None:
        """Call back in ``delay_ms`` (>= 0).

        A callback that is due at the same time as the last requested one shares its event: no
        callback could come between the two.
        """
        due = self.now + delay_ms
        latest = self._latest
        if latest is None or due != self._due_ms or latest.callbacks is None:
            self._due_ms = due
            latest = self._latest = simpy.Timeout(self, delay_ms)
            self.events += 1
        latest.callbacks.append(callback)

    def kind(self, place: type[Place]) -> type[Place]:
        """Return the class of which to make a place (a role, a link, a machine): this one, or one
        that another kind of clock needs instead (``lane_world.py``)."""
        return place

    # Reports of causes, which only ``ListeningClock`` (``causes.py``) keeps.

    def bound(self, callback: Callback) -> Callback:
        """Return the callback with the cause of this moment, for a later call."""
        return callback

    def spent(self, place: str, kind: Kind, begin_ms: float) -> None:
        """Report that work begun at ``begin_ms`` has just ended."""

    def waited(self, place: str, kind: Kind, since_ms: float) -> None:
        """Report that work that begins now was ready before."""

    def transferred(
        self,
        port: object,
        link: str,
        begin_ms: float,
        free_ms: float,
        due_ms: float,
        arrive: Callback,
    ) -> Callback:
        """Return ``arrive`` for a message of a link that comes to a port now."""
        return arrive
