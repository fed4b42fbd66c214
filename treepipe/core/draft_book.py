"""The open requests of one draft server, and the reports of their committed tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic

from treepipe.core.draft_desk import DraftDesk
from treepipe.core.draft_work import Draft, Orders
from treepipe.core.protocol import Schedule, Started
from treepipe.core.recovery import CommitReporter, Committed, OpenRequestState
from treepipe.core.requests import OpenRequest, Own, RequestTrace


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

    def parts(self, work: Draft) -> list[tuple[int, int]]:
        """Return the rows of each pass of a batch, and the number of tokens that the draft holds
        before it; call once per batch, since this follows the passes."""
        found = []
        for session, order in work.passes:
            scratch = self._open[session].scratch
            scratch.follow(order)
            found.append((order.rows, scratch.cached - order.rows))
        return found

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
            self._desk.reopen(each.session, each.assignment.pipeline, each.schedule, each.started)
        for trace in finished:
            if self._reporter is not None:
                self._reporter.over(trace.session)
            self._finished(trace)
        if self._reporter is not None:
            for report in self._reporter.due(now_ms):
                self._committed(report)
        self._desk.admit(now_ms)
