"""The rule of recovery: the committed tokens at the loss of a worker, and the work to repeat.

A draft server reports its commits at intervals. When a worker is lost, the remaining draft servers
report the rest, all workers start anew (as ``failover.py`` decides), and every open request is
opened again as a preempted one is: its prompt and its committed text are fed first.

Invariant: reported tokens are committed, and unreported ones have not been shown to anyone. So no
token is lost, and none comes twice. ``DraftBook`` keeps what a draft server reports from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from treepipe.core.draft_desk import DraftDesk
from treepipe.core.draft_work import Orders
from treepipe.core.protocol import Schedule, Started
from treepipe.core.requests import (
    LIVES,
    RUN_ENDED,
    Assignment,
    OpenRequest,
    Own,
    RequestTrace,
    numbered,
)

MOST_LIVES = 2**10
"""Upper bound of a request's preemptions between two losses."""
TELL_MS = 100.0
"""Minimum interval between reports of a draft server."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A request's tokens that became final since the last report, as in ``RequestTrace``."""

    session: int
    emitted: tuple[tuple[float, int], ...]
    tokens: tuple[int, ...]


class CommitReporter:
    """A draft server's side: gathers commits until the next report."""

    def __init__(self) -> None:
        self._unreported: dict[int, tuple[list[tuple[float, int]], list[int]]] = {}
        self._next_ms = 0.0
        self._over = False

    def emitted(self, at_ms: float, emitted: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        """Add final tokens, by session."""
        for session, tokens in emitted:
            times, text = self._unreported.setdefault(session, ([], []))
            times.append((at_ms, len(tokens)))
            text += tokens

    def over(self, session: int) -> None:
        """Forget a finished request (by its own number), which is reported by itself."""
        for each in [each for each in self._unreported if numbered(each)[1] == session]:
            del self._unreported[each]

    def end(self) -> None:
        """Stop reporting: the worker sends its whole texts instead, before all workers end."""
        self._over = True

    def due(self, now_ms: float) -> list[Committed]:
        """Return the reports that are due now."""
        if self._over or not self._unreported or now_ms < self._next_ms:
            return []
        reports = [Committed(s, tuple(t), tuple(text)) for s, (t, text) in self._unreported.items()]
        self._unreported.clear()
        self._next_ms = now_ms + TELL_MS
        return reports


@dataclass(frozen=True, slots=True)
class OpenRequestState:
    """An open request: its place, and its committed tokens.

    Attributes:
        trace: its trace if it ends now.
        lost: number of losses of a worker that it needs.
    """

    assignment: Assignment
    trace: RequestTrace
    lost: int = 0

    @property
    def session(self) -> int:
        """The number of its next opening: beyond all earlier ones."""
        return self.trace.session + self.lost * MOST_LIVES * LIVES

    def opened(self, request: OpenRequest[Own]) -> OpenRequest[Own]:
        """Give a request, just made under ``session``, its committed text."""
        held = self.trace
        request.emitted, request.tokens = [*held.emitted], [*held.tokens]
        request.rounds, request.preemptions = [*held.rounds], held.preemptions
        request.recomputed_tokens = held.recomputed_tokens
        return request


class Journal:
    """The controller's side: all open requests of a run, with their committed tokens."""

    def __init__(self) -> None:
        self._open: dict[int, OpenRequestState] = {}

    def open(self, session: int, prompt_tokens: int, assignment: Assignment) -> OpenRequestState:
        """Add a request that was given to a draft server, under its own number."""
        asked_ms = assignment.asked_ms
        trace = RequestTrace(
            session, prompt_tokens, asked_ms, asked_ms, (), (), (), RUN_ENDED, assignment.pipeline
        )
        self._open[session] = OpenRequestState(assignment, trace)
        return self._open[session]

    def committed(self, report: Committed) -> None:
        """Take a report; one of a finished request is ignored."""
        if (known := self._open.get(numbered(report.session)[1])) is not None:
            trace = known.trace
            emitted, tokens = (*trace.emitted, *report.emitted), (*trace.tokens, *report.tokens)
            self._note(replace(trace, emitted=emitted, tokens=tokens))

    def known(self, trace: RequestTrace) -> None:
        """Replace an open request's record with a draft server's full trace of it."""
        if trace.session in self._open:
            self._note(trace)

    def closed(self, session: int) -> None:
        self._open.pop(session, None)

    def texts(self, now_ms: float) -> list[RequestTrace]:
        return [replace(each.trace, finished_ms=now_ms) for each in self._open.values()]

    def take_up(self) -> list[OpenRequestState]:
        """Return all requests to open again, in the order of their first arrival."""
        self._open = {
            each.trace.session: replace(each, lost=each.lost + 1) for each in self._open.values()
        }
        return [*self._open.values()]

    def _note(self, trace: RequestTrace) -> None:
        self._open[trace.session] = replace(self._open[trace.session], trace=trace)


class DraftBook(Generic[Own]):
    """The open requests of one draft server, by session."""

    def __init__(
        self,
        desk: DraftDesk,
        reporter: CommitReporter | None,
        finished: Callable[[RequestTrace], object],
        committed: Callable[[Committed], object],
    ) -> None:
        """Make the book of one draft server.

        Args:
            reporter: gathers commits; None where requests are reported only at their end.
            finished: called with each finished request.
            committed: called at intervals with committed tokens.
        """
        self._desk, self._reporter = desk, reporter
        self._finished, self._committed = finished, committed
        self._open: dict[int, OpenRequest[Own]] = {}

    @property
    def by_session(self) -> Mapping[int, OpenRequest[Own]]:
        """The open requests; read-only."""
        return self._open

    def open(
        self,
        held: OpenRequestState,
        asked: Started,
        new_schedule: Callable[[int, int], Schedule],
        stages: int,
        now_ms: float,
    ) -> None:
        """Take a request into the queue; the rest is as in ``OpenRequest``, of its pipeline."""
        session, assignment = held.session, held.assignment
        made: OpenRequest[Own] = OpenRequest(session, new_schedule, stages, assignment, asked)
        request = self._open[session] = held.opened(made)
        schedule, started = request.schedule, request.started
        self._desk.open(session, assignment.pipeline, schedule, started, now_ms)

    def begin(self, session: int) -> OpenRequest[Own]:
        """Note that the request's schedule begins."""
        request = self._open[session]
        request.begun = True
        if request.preemptions:
            request.recomputed_tokens += len(request.started.prompt) - request.asked.known
        return request

    def carry_out(self, orders: Orders, now_ms: float, emitted_ms: float | None = None) -> None:
        """Record emitted tokens, close finished requests, reopen preempted ones, and report.

        Args:
            emitted_ms: time at which the tokens were out, and the requests that end with them over,
                where that was before now.
        """
        out_ms = now_ms if emitted_ms is None else emitted_ms
        for session, tokens in orders.emitted:
            request = self._open[session]
            request.emitted.append((out_ms, len(tokens)))
            request.tokens += tokens
        if self._reporter is not None:
            self._reporter.emitted(out_ms, orders.emitted)
        again = [self._open.pop(session).reopened() for session in orders.preempted]
        finished = [self._open.pop(each).trace(out_ms, reason) for each, reason in orders.finished]
        for each in again:
            self._open[each.session] = each
            pipeline, schedule, started = each.assignment.pipeline, each.schedule, each.started
            self._desk.open(each.session, pipeline, schedule, started, now_ms, again=True)
        for trace in finished:
            if self._reporter is not None:
                self._reporter.over(trace.session)
            self._finished(trace)
        if self._reporter is not None:
            for report in self._reporter.due(now_ms):
                self._committed(report)
        self._desk.admit(now_ms)
