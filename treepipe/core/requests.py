"""Requests as the server that serves them sees them: open ones, and what is left of finished ones.

Only the records belong here; ``draft_book.py`` keeps the open ones of a draft server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from treepipe.core.protocol import RoundRecord, Schedule, Started
from treepipe.core.scratch import Scratch

RUN_ENDED = "run ended"
"""Why a request ended that was open when its run failed."""
LIVES = 2**32
"""A request has fewer sessions' numbers than this; what is opened again is numbered beyond."""


def numbered(session: int) -> tuple[int, int]:
    """How often the request was opened again before this session, and the request's own number.

    >>> numbered(7), numbered(7 + 2 * LIVES)
    ((0, 7), (2, 7))
    """
    return divmod(session, LIVES)


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """One finished request.

    Attributes:
        started_ms: when it was asked for; it may have waited since.
        emitted: (time, tokens) of each emission, in order.
        tokens: the text that was emitted.
        reason: why it ended ("length", "end of text", "worker lost", "refused",
            "run ended").
        pipeline: number of the pipeline that served it.
        preemptions: how often it had to give up its caches.
        recomputed_tokens: of its prompt and its text, fed again after that.
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
        """A request that was not admitted."""
        return cls(session, prompt_tokens, now_ms, now_ms, (), (), (), "refused")

    def shifted(self, by_ms: float) -> RequestTrace:
        """The same with another origin of time."""
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
    """A request is given to a draft server and a pipeline; ``draft`` None: it is refused.

    Attributes:
        request: its index among the requests of the run.
        asked_ms: when it was asked for.
    """

    request: int
    asked_ms: float
    draft: int | None = None
    pipeline: int = 0

    @property
    def session(self) -> int:
        """What its messages and its trace are numbered with in a run."""
        return self.request + 1


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a request is promised (ms, at most); None: nothing.

    Attributes:
        time_between_tokens_ms: of its own text, on average.
    """

    time_to_first_token_ms: float | None = None
    time_between_tokens_ms: float | None = None
    request_latency_ms: float | None = None

    def kept(self, request: RequestTrace) -> bool:
        """Whether a request got what it was promised; one without any token did not."""
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
        session: what its messages are numbered with; another one each time that it is opened.
        new_schedule: gives a fresh one for a session's number and the pipeline's stages.
        asked: what was asked for at first.
        own: what the world keeps of it besides; unset until the world sets it.
        emitted, tokens, rounds: as in ``RequestTrace``, so far (rounds: of former sessions).
        begun: its schedule was told.
        scratch: what the draft holds of it.
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
        """What its schedule is told: what was emitted is prompt by now."""
        asked, text = self.asked, tuple(self.tokens)
        return replace(
            asked, prompt=asked.prompt + text, max_new_tokens=asked.max_new_tokens - len(text)
        )

    def reopened(self) -> OpenRequest[Own]:
        """The same request, to be computed again from its prompt on."""
        return replace(
            self,
            session=self.session + LIVES,
            rounds=[*self.rounds, *self.schedule.rounds],
            preemptions=self.preemptions + self.begun,
            begun=False,
            scratch=Scratch(),
        )

    def trace(self, now_ms: float, reason: str) -> RequestTrace:
        """What is left of it if it ends now."""
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
