"""The book of one draft server: its open requests, and who hears what is committed of them.

Law of this file: both worlds keep a server's requests here, so a trace says the same of each in
both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic

from treepipe.core.draft_desk import DraftDesk
from treepipe.core.draft_work import Draft, Orders
from treepipe.core.protocol import Schedule, Started
from treepipe.core.recovery import Committed, Held, Teller
from treepipe.core.requests import OpenRequest, Own, RequestTrace


class DraftBook(Generic[Own]):
    """The open requests of one draft server, by session."""

    def __init__(
        self,
        desk: DraftDesk,
        teller: Teller | None,
        finished: Callable[[RequestTrace], object],
        told: Callable[[Committed], object],
    ) -> None:
        """Args:
        teller: None where nobody hears of a request before it is over.
        finished: hears of each request that is over.
        told: hears now and then of what is committed.
        """
        self._desk, self._teller = desk, teller
        self._finished, self._told = finished, told
        self._open: dict[int, OpenRequest[Own]] = {}

    @property
    def by_session(self) -> Mapping[int, OpenRequest[Own]]:
        """The open requests; not to be written to."""
        return self._open

    def open(
        self,
        held: Held,
        asked: Started,
        new_schedule: Callable[[int, int], Schedule],
        stages: int,
        now_ms: float,
    ) -> None:
        """Take a request into the queue. Args: ``new_schedule``, ``stages``: as in ``OpenRequest``,
        of the pipeline that serves it."""
        session, assignment = held.session, held.assignment
        made: OpenRequest[Own] = OpenRequest(session, new_schedule, stages, assignment, asked)
        request = self._open[session] = held.opened(made)
        schedule, started = request.schedule, request.started
        self._desk.open(session, assignment.pipeline, schedule, started, now_ms)

    def begin(self, session: int) -> OpenRequest[Own]:
        """Its schedule is told now, for which the world gets ready."""
        request = self._open[session]
        request.begun = True
        if request.preemptions:
            request.recomputed_tokens += len(request.started.prompt)
        return request

    def parts(self, work: Draft) -> list[tuple[int, int]]:
        """Rows of each pass of a batch, and the tokens that the draft holds before it: what its
        time depends on. To be asked once per batch, since it follows the passes."""
        found = []
        for session, order in work.passes:
            scratch = self._open[session].scratch
            scratch.follow(order)
            found.append((order.rows, scratch.cached - order.rows))
        return found

    def carry_out(self, orders: Orders, now_ms: float) -> None:
        """Note what the orders emit, close what they finish, open again what they preempt, and say
        what is final by now."""
        for session, tokens in orders.emitted:
            request = self._open[session]
            request.emitted.append((now_ms, len(tokens)))
            request.tokens += tokens
        if self._teller is not None:
            self._teller.emitted(now_ms, orders.emitted)
        again = [self._open.pop(session).reopened() for session in orders.preempted]
        finished = [self._open.pop(each).trace(now_ms, reason) for each, reason in orders.finished]
        for each in again:
            self._open[each.session] = each
            self._desk.reopen(each.session, each.assignment.pipeline, each.schedule, each.started)
        for trace in finished:
            if self._teller is not None:
                self._teller.over(trace.session)
            self._finished(trace)
        if self._teller is not None:
            for said in self._teller.due(now_ms):
                self._told(said)
        self._desk.admit(now_ms)
