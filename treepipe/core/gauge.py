"""What a draft server may note while it serves, for the schedules of all its requests.

Here is only the interface, which the draft desk calls; a system whose schedules want to know
something of their draft server has a gauge of its own (``decoding/pace.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treepipe.core.messages import Flight

if TYPE_CHECKING:
    from treepipe.core.draft_work import Work
    from treepipe.core.protocol import Command


class Gauge:
    """Notes nothing; times are in milliseconds."""

    def given(self, work: Work | None, now_ms: float) -> None:
        """What was given out last is over, and all that it fed is on its way; now this is."""

    def arrived(self, flight: Flight, now_ms: float) -> None:
        """A flight came back, and waits for its turn."""

    def commanded(self, session: int, command: Command) -> None:
        """A request's schedule wants this."""

    def left(self, session: int) -> None:
        """A request is closed."""

    def seen(self, requests: int) -> Any:
        """What the next event that is told of a segment holds (``Returned.seen``).

        Args: ``requests``: how many are open at the draft server.
        """
        return None
