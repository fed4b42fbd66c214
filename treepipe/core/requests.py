"""Requests as the server that serves them sees them: open ones, and what is left of finished ones.

Law of this file: both worlds keep a request's book here, so a trace says the same of it in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from treepipe.core.draft_work import Draft, Orders
from treepipe.core.protocol import RoundRecord, Schedule
from treepipe.core.scratch import Scratch

RUN_ENDED = "run ended"
"""Why a request ended that was open when its run failed."""


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


Own = TypeVar("Own")


@dataclass(slots=True)
class OpenRequest(Generic[Own]):
    """One request that is not finished.

    Attributes:
        own: what the world keeps of it besides.
        emitted, tokens: as in ``RequestTrace``, so far.
        scratch: what the draft holds of it.
    """

    session: int
    schedule: Schedule
    assignment: Assignment
    prompt_tokens: int
    own: Own
    emitted: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scratch: Scratch[None] = field(default_factory=Scratch)

    def trace(self, now_ms: float, reason: str) -> RequestTrace:
        """What is left of it if it ends now."""
        return RequestTrace(
            session=self.session,
            prompt_tokens=self.prompt_tokens,
            started_ms=self.assignment.asked_ms,
            finished_ms=now_ms,
            emitted=tuple(self.emitted),
            tokens=tuple(self.tokens),
            rounds=tuple(self.schedule.rounds),
            reason=reason,
            pipeline=self.assignment.pipeline,
        )


class OpenRequests(Generic[Own]):
    """The open requests of one draft server, by session."""

    def __init__(self) -> None:
        self._open: dict[int, OpenRequest[Own]] = {}

    @property
    def by_session(self) -> Mapping[int, OpenRequest[Own]]:
        """The open requests; not to be written to."""
        return self._open

    def open(self, request: OpenRequest[Own]) -> None:
        """A request was taken into the queue."""
        self._open[request.session] = request

    def parts(self, work: Draft) -> list[tuple[int, int]]:
        """Rows of each pass of a batch, and the tokens that the draft holds before it: what its
        time depends on. To be asked once per batch, since it follows the passes."""
        found = []
        for session, order in work.passes:
            scratch = self._open[session].scratch
            scratch.follow(order)
            found.append((order.rows, scratch.cached - order.rows))
        return found

    def carry_out(self, orders: Orders, now_ms: float) -> list[RequestTrace]:
        """Note what the orders emit, and close what they finish; returns the finished ones."""
        for session, tokens in orders.emitted:
            request = self._open[session]
            request.emitted.append((now_ms, len(tokens)))
            request.tokens += tokens
        return [
            self._open.pop(session).trace(now_ms, reason) for session, reason in orders.finished
        ]
