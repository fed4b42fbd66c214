"""Requests at their server: open ones, and the traces of finished ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from treepipe.core.protocol import RoundRecord, Schedule, Started
from treepipe.core.scratch import Scratch

RUN_ENDED = "run ended"
"""End reason of requests that were open when their run failed."""
LIVES = 2**32
"""Upper bound of first session numbers; reopened requests are numbered beyond."""


def numbered(session: int) -> tuple[int, int]:
    """Split a session into the number of earlier openings and the request's own number.

    >>> numbered(7), numbered(7 + 2 * LIVES)
    ((0, 7), (2, 7))
    """
    return divmod(session, LIVES)


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """One finished request.

    Attributes:
        started_ms: time of arrival; it may have waited since.
        emitted: (time, tokens) of each emission, in order.
        reason: why it ended ("length", "end of text", "worker lost", "refused", "run ended").
        preemptions: number of times that it had to give up its caches.
        recomputed_tokens: tokens of its prompt and text that were fed again after that.
    """

    session: int
    prompt_tokens: int
    started_ms: float
    finished_ms: float
    emitted: tuple[tuple[float, int], ...]
    tokens: tuple[int, ...]
    rounds: tuple[RoundRecord, ...]
    reason: str
    pipeline: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0

    @classmethod
    def refused(cls, session: int, prompt_tokens: int, now_ms: float) -> RequestTrace:
        """Make the trace of a request that was not admitted."""
        return cls(session, prompt_tokens, now_ms, now_ms, (), (), (), "refused")

    def shifted(self, by_ms: float) -> RequestTrace:
        return replace(
            self,
            started_ms=self.started_ms + by_ms,
            finished_ms=self.finished_ms + by_ms,
            emitted=tuple((time + by_ms, count) for time, count in self.emitted),
        )

    @property
    def first_token_ms(self) -> float:
        return self.emitted[0][0]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The draft server and the pipeline of a request; ``draft`` None: it still waits.

    Attributes:
        request: its index among the requests of the run.
    """

    request: int
    asked_ms: float
    draft: int | None = None
    pipeline: int = 0

    @property
    def session(self) -> int:
        """The number of its messages and its trace in a run."""
        return self.request + 1


@dataclass(frozen=True, slots=True)
class Objectives:
    """Upper bounds (ms) promised to a request; None: no promise."""

    time_to_first_token_ms: float | None = None
    time_between_tokens_ms: float | None = None
    request_latency_ms: float | None = None

    def kept(self, request: RequestTrace) -> bool:
        """Whether the promises were kept; False for a request without any token."""
        if not request.emitted:
            return False
        decoding, new = request.finished_ms - request.first_token_ms, len(request.tokens) - 1
        figures = (
            (request.first_token_ms - request.started_ms, self.time_to_first_token_ms),
            (decoding / new if new else 0.0, self.time_between_tokens_ms),
            (request.finished_ms - request.started_ms, self.request_latency_ms),
        )
        return all(most is None or value <= most for value, most in figures)


Own = TypeVar("Own")


@dataclass(slots=True)
class OpenRequest(Generic[Own]):
    """One request that is not finished.

    Attributes:
        session: number of its messages; a new one each time that it is opened.
        new_schedule: makes a fresh schedule from a session's number and the pipeline's stages.
        asked: the original request.
        own: the world's own data for it; unset until the world sets it.
        emitted, tokens, rounds: as in ``RequestTrace``, so far (rounds: of former sessions).
        scratch: the draft's contents for it.
    """

    session: int
    new_schedule: Callable[[int, int], Schedule]
    stages: int
    assignment: Assignment
    asked: Started
    schedule: Schedule = field(init=False)
    own: Own = field(init=False)
    emitted: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)
    preemptions: int = 0
    recomputed_tokens: int = 0
    begun: bool = False
    scratch: Scratch[None] = field(default_factory=Scratch)

    def __post_init__(self) -> None:
        self.schedule = self.new_schedule(self.session, self.stages)

    @property
    def prompt_tokens(self) -> int:
        return len(self.asked.prompt)

    @property
    def started(self) -> Started:
        """The event for its schedule: its emitted tokens count as prompt."""
        asked, text = self.asked, tuple(self.tokens)
        return replace(
            asked, prompt=asked.prompt + text, max_new_tokens=asked.max_new_tokens - len(text)
        )

    def reopened(self) -> OpenRequest[Own]:
        """Return the same request, to be computed again from its prompt on."""
        return replace(
            self,
            session=self.session + LIVES,
            rounds=[*self.rounds, *self.schedule.rounds],
            preemptions=self.preemptions + self.begun,
            begun=False,
            scratch=Scratch(),
        )

    def trace(self, now_ms: float, reason: str) -> RequestTrace:
        return RequestTrace(
            session=numbered(self.session)[1],
            prompt_tokens=self.prompt_tokens,
            started_ms=self.assignment.asked_ms,
            finished_ms=now_ms,
            emitted=tuple(self.emitted),
            tokens=tuple(self.tokens),
            rounds=(*self.rounds, *self.schedule.rounds),
            reason=reason,
            pipeline=self.assignment.pipeline,
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed_tokens,
        )
