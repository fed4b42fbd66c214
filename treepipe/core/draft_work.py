"""What a draft server is asked to do, and what it did: records between its desk and a world.

Only records belong here; who is served when is decided in ``draft_desk.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from treepipe.core.messages import Flight, Message
from treepipe.core.protocol import DraftPass
from treepipe.core.records import record


@record
class Begin:
    """A request begins."""

    session: int


@record
class Evaluate:
    """A flight came back: the target's tokens are to be read off its rows."""

    flight: Flight
    payload: Any


@record
class Draft:
    """Draft passes to be run as one batch.

    Attributes:
        later: others were run before in the same turn.
    """

    passes: tuple[tuple[int, DraftPass], ...]
    later: bool = False

    @property
    def rows(self) -> int:
        passes = self.passes
        if len(passes) == 1:  # nearly always
            return passes[0][1].rows
        return sum([order.rows for _, order in passes])

    @property
    def asked(self) -> int:
        """Rows whose distribution is read."""
        return sum([order.asked for _, order in self.passes])


@record
class WarmUp:
    """A draft pass in vain, for no request; it is not reported back.

    (StarSD, section 5.3, runs such passes behind an idle gap, since a draft that idled is slow.)
    """


Work: TypeAlias = Begin | Evaluate | Draft | WarmUp


@record
class Turn:
    """One turn of a draft server: when it began to wait, to be served, and when it was over.

    ``pipeline`` is the one whose flight came back, None for a request's beginning.
    """

    draft: int
    pipeline: int | None
    arrived_ms: float
    started_ms: float
    ended_ms: float

    def shifted(self, by_ms: float) -> Turn:
        """The same with another origin of time."""
        times = (self.arrived_ms + by_ms, self.started_ms + by_ms, self.ended_ms + by_ms)
        return Turn(self.draft, self.pipeline, *times)


@dataclass(slots=True)
class Orders:
    """What the world has to carry out, in order.

    Attributes:
        messages: (pipeline, message); a ``Flight`` goes to its first stage, others to all of them.
        emitted: (session, tokens) that are final.
        finished: (session, reason); the session is closed.
        preempted: sessions that are closed to be opened again, the last admitted first: they have
            to give up their caches (``cache_room.py``).
    """

    messages: list[tuple[int, Message]] = field(default_factory=list)
    emitted: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    finished: list[tuple[int, str]] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to carry out, as between the draft passes of a turn."""
        return not (self.messages or self.emitted or self.finished or self.preempted)

    @property
    def closed(self) -> list[int]:
        """Sessions of which nothing is to be kept."""
        return [*self.preempted, *[session for session, _ in self.finished]]
