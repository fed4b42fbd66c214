"""Records between a draft server's desk and its world: work to do, and orders that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from treepipe.core.messages import Beat, Feedback, Flight, Message, record
from treepipe.core.protocol import DraftPass


@record
class Begin:
    session: int


@record
class Evaluate:
    """Take the target's tokens of a returned flight."""

    flight: Flight
    payload: Any


@record
class Draft:
    """Draft passes to be run as one batch."""

    passes: tuple[tuple[int, DraftPass], ...]

    @property
    def rows(self) -> int:
        passes = self.passes
        if len(passes) == 1:  # nearly always
            return passes[0][1].rows
        return sum([order.rows for _, order in passes])

    @property
    def asked(self) -> int:
        return sum([order.asked for _, order in self.passes])

    def parts(self, requests: Mapping[int, Any]) -> list[tuple[int, int]]:
        """Return the rows of each pass, and the number of tokens that the draft holds before it;
        call once, since the ``scratch`` of each of the requests (by session) follows the passes."""
        found = []
        for session, order in self.passes:
            scratch = requests[session].scratch
            scratch.follow(order)
            found.append((order.rows, scratch.cached - order.rows))
        return found


@record
class WarmUp:
    """A draft pass without a request; the world does not report it back.

    (StarSD, section 5.3: a draft that idled is slow.)
    """


Work: TypeAlias = Begin | Evaluate | Draft | WarmUp


@record
class Turn:
    """One turn of a draft server; ``pipeline`` is that of its flight, None if a request began."""

    draft: int
    pipeline: int | None
    arrived_ms: float
    started_ms: float
    ended_ms: float

    def shifted(self, by_ms: float) -> Turn:
        times = (self.arrived_ms + by_ms, self.started_ms + by_ms, self.ended_ms + by_ms)
        return Turn(self.draft, self.pipeline, *times)


@dataclass(slots=True)
class Orders:
    """Orders to the world, in sequence.

    Attributes:
        messages: (pipeline, message).
        emitted: (session, tokens) that are final.
        finished: (session, reason); the session is closed.
        preempted: sessions that are closed to be opened again, the last admitted first.
    """

    messages: list[tuple[int, Message]] = field(default_factory=list)
    emitted: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    finished: list[tuple[int, str]] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        return not (self.messages or self.emitted or self.finished or self.preempted)

    @property
    def closed(self) -> list[int]:
        """Sessions that end with these orders."""
        return [*self.preempted, *[session for session, _ in self.finished]]

    def letters(
        self, stages: Sequence[Sequence[str]], feedback: Feedback
    ) -> Iterator[tuple[Sequence[str], Message]]:
        """Yield receivers and message, one after another; ``stages`` are names, by pipeline."""
        handed_on = (Flight, Beat) if feedback == "ring" else Flight
        for pipeline, message in self.messages:
            names = stages[pipeline]
            yield names[:1] if isinstance(message, handed_on) else names, message
