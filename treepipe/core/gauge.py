"""The notes that a draft server may keep while it serves, for the schedules of all its requests.

The draft desk calls this interface; ``decoding/pace.py`` implements it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treepipe.core.messages import Flight

if TYPE_CHECKING:
    from treepipe.core.draft_work import Work
    from treepipe.core.protocol import Command


class Gauge:
    """The gauge that records nothing; times are in milliseconds."""

    def given(self, work: Work | None, now_ms: float) -> None:
        """Record that the last work is over and its segments are on their way; ``work`` is next."""

    def arrived(self, flight: Flight, now_ms: float) -> None:
        """Record that a flight came back, and waits for its turn."""

    def commanded(self, session: int, command: Command) -> None:
        """Record a command of a request's schedule."""

    def left(self, session: int) -> None:
        """Record that a request is closed."""

    def seen(self, requests: int) -> Any:
        """Return the value of ``seen`` in the next ``Returned``, with ``requests`` open."""
        return None
