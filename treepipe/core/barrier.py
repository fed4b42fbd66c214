"""Lock-step: how much a stage may take before it must wait, and when a step of a pipeline is over.

A stage takes a number of segments at once, and then waits before each for a word (FlowSpec, section
3.3, per request; PipeDec, section 3.1, per pipeline, with flights for segments and beats for
words).

A pipeline in lock-step (PipeDec, SpecPipe) always holds one flight per group of stages, as long as
a request takes part. A returned flight ends a step for all requests that take part, as soon as all
groups have computed theirs ("all nodes must complete", PipeDec, section 3.4.3): their words form
the beat, their segments the next flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from treepipe.core.messages import Flight, Segment, Through, require

Groups: TypeAlias = int | tuple[int, ...]
"""Number of stages in a row that work one after another within a step: equal, or per group."""


def group_sizes(groups: Groups, stages: int) -> tuple[int, ...]:
    """Return the number of stages of each group; equal groups leave the rest to the last one.

    >>> group_sizes(2, 5), group_sizes((1, 4), 5)
    ((2, 2, 1), (1, 4))
    """
    if isinstance(groups, tuple):
        return groups
    return tuple([min(groups, stages - first) for first in range(0, stages, groups)])


@dataclass(slots=True)
class Barrier:
    """The first ``free`` things may be taken at once; then words and things alternate.

    Attributes:
        free: one for each group of stages from this one to the last.
        taken, applied: things and words that the stage is done with.

    >>> barrier = Barrier(free=2)
    >>> barrier.lets(1), barrier.lets(2), barrier.word_is_due
    (True, False, False)
    >>> barrier.taken = 2
    >>> barrier.word_is_due
    True
    >>> barrier.applied = 1
    >>> barrier.lets(2), barrier.word_is_due
    (True, False)
    """

    free: int
    taken: int = 0
    applied: int = 0

    def lets(self, number: int) -> bool:
        """Whether thing ``number`` (from 0) may be taken."""
        return number < self.applied + self.free

    @property
    def word_is_due(self) -> bool:
        """Whether the next word is due: after all that precedes it, before what waits for it."""
        return self.taken >= self.applied + self.free


@dataclass(slots=True)
class _Lane:
    """The lock-step of one pipeline.

    Attributes:
        through: number of flights that each group but the last has computed.
        sessions: sessions that take part.
        flying: number of flights in the pipeline.
        back: returned flights whose step goes on in other groups, with their payloads.
    """

    through: list[int]
    sessions: list[int] = field(default_factory=list)
    flying: int = 0
    next_beat: int = 0
    back: deque[tuple[Flight, Any]] = field(default_factory=deque)

    @property
    def is_over(self) -> bool:
        """Whether the oldest returned flight ends its step: while the last group computed it, the
        group n before had the n-th flight behind it, if there is one."""
        if not self.back:
            return False
        beat, before = self.back[0][0].beat, reversed(self.through)
        assert beat is not None  # others are not held up
        return all(n >= min(beat + 1 + g, self.next_beat) for g, n in enumerate(before, start=1))


class LockStep:
    """The steps of a draft server's pipelines."""

    def __init__(self, draft: int, groups: Sequence[int]) -> None:
        """Begin at rest. ``draft``: number of the server; ``groups``: of stages, per pipeline."""
        self._draft, self._groups = draft, groups
        self._lanes = [_Lane([0] * (count - 1)) for count in groups]

    @property
    def at_rest(self) -> bool:
        return not any(lane.sessions or lane.flying for lane in self._lanes)

    def sessions(self, pipeline: int) -> list[int]:
        """Return the sessions that take part, in the order in which they joined."""
        return [*self._lanes[pipeline].sessions]

    def arrive(self, flight: Flight, payload: Any) -> None:
        """Hold a returned flight until its step is over."""
        self._lanes[flight.pipeline].back.append((flight, payload))

    def through(self, said: Through) -> None:
        """Note that a group of stages has computed its next flight.

        Raises:
            ProtocolError: there is no such group, or it is not this flight's turn there.
        """
        done = self._lanes[said.pipeline].through
        in_turn = said.group < len(done) and said.beat == done[said.group]
        require(in_turn, f"group {said.group} is through with flight {said.beat} out of turn")
        done[said.group] += 1

    def over(self, pipeline: int) -> Iterator[tuple[Flight, Any]]:
        """Yield the returned flights whose step is over, with their payloads."""
        lane = self._lanes[pipeline]
        while lane.is_over:
            yield lane.back.popleft()

    def join(self, pipeline: int, session: int) -> list[Flight] | None:
        """Let a session take part from now on; return the empty flights that go before its first
        segments where the pipeline was at rest, and None where its steps are under way."""
        lane, groups = self._lanes[pipeline], self._groups[pipeline]
        lane.sessions.append(session)
        if lane.flying == groups:
            return None
        return [self.fly(pipeline, []) for _ in range(groups - 1 - lane.flying)]

    def landed(self, pipeline: int) -> None:
        """Note that a flight has left the pipeline, since its step is over."""
        self._lanes[pipeline].flying -= 1

    def fly(self, pipeline: int, segments: Sequence[Segment]) -> Flight:
        """Return the pipeline's next flight."""
        lane = self._lanes[pipeline]
        beat, lane.next_beat, lane.flying = lane.next_beat, lane.next_beat + 1, lane.flying + 1
        return Flight(self._draft, pipeline, tuple(segments), beat)

    def left(self, session: int) -> None:
        """Forget a session."""
        for lane in self._lanes:
            if session in lane.sessions:
                lane.sessions.remove(session)
