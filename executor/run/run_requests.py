"""The requests of one run by a deployment's workers: a closed loop, or requests that arrive.

Times count from the run's start here, and requests from 1; the workers use the controller's clock
and number the sessions of all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from treepipe.core.errors import RunError
from treepipe.core.recovery import OpenRequestState
from treepipe.core.requests import RUN_ENDED, Assignment, RequestTrace
from treepipe.executor.run.pulse import WorkerError
from treepipe.executor.wire.clock import now_ms, wait_until
from treepipe.executor.wire.records import Ask, Finished, Open, OpenTexts
from treepipe.results.recording import RecordedRequest, Recording
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.desks import front_desk

if TYPE_CHECKING:
    from treepipe.executor.run.crew import Crew

SALVAGE_MS = 5000.0
"""Time for draft servers to send the open texts of a run that failed."""
POLLED_MS = 1.0
"""Unit in which ``Lines`` wait; the rest of the time until an arrival is slept."""


class RunRequests:
    """The requests of a run, from the front desk to the trace.

    Attributes:
        front: decides which request is served when and where.
        trace, recording: results of the finished requests.
    """

    def __init__(
        self, crew: Crew, deployment: Deployment, base: int, progress: Callable[[], None]
    ) -> None:
        """Begin the run, after ``base`` sessions of earlier runs."""
        self.deployment = deployment
        self._crew, self._base, self._progress = crew, base, progress
        self._over = 0  # requests that were reported as progress
        self.front = front_desk(deployment)
        for pipeline in crew.given_up:
            self.front.lose(pipeline)
        self.trace = Trace(
            deployment.roles.devices,
            machines=deployment.roles.machines,
            requests=self.front.over,
            paged=deployment.service.cache == "paged",
            slo=deployment.service.slo,
        )
        self.recording = Recording()
        self.start_ms = crew.run_begins()

    @property
    def now_ms(self) -> float:
        return now_ms() - self.start_ms

    def begin(self) -> None:
        self._open(self.front.start(0.0), 0.0)

    def next_finished(self, until_ms: float | None) -> Finished | None:
        """Wait until then, or until the next arrival, for a draft server to finish a request.

        Raises:
            WorkerError: a worker is lost, or failed.
            RunError: all workers wait for each other.
        """
        lines, arrival_ms = self._crew.lines, self.front.next_arrival_ms
        at_ms = min((at for at in (until_ms, arrival_ms) if at is not None), default=None)
        until_ms = None if at_ms is None else at_ms + self.start_ms
        while True:
            for name in self._crew.drafts:
                if (finished := lines.take(name, Finished)) is not None:
                    return finished
            if until_ms is not None and until_ms - now_ms() <= POLLED_MS:
                wait_until(until_ms)
                return None
            lines.listen(None if until_ms is None else until_ms - POLLED_MS)
            idle_ms = lines.watch.all_idle_ms()
            if arrival_ms is None and idle_ms > lines.watch.timeout_ms:
                raise RunError(
                    f"nothing happened for {idle_ms:.0f} ms: requests are open, but every worker "
                    f"waits for a message"
                )

    def finished(self, found: Finished) -> None:
        """Record a finished request, and open the next ones."""
        request = self.note(found)
        self.arrivals(request.finished_ms)
        self._open(self.front.finished(request), request.finished_ms)

    def arrivals(self, until_ms: float) -> None:
        """Open the requests that have arrived by then."""
        while (at := self.front.next_arrival_ms) is not None and at <= until_ms:
            self._open(self.front.arrive(), at)

    def hand_over(self, held: OpenRequestState, at_ms: float) -> None:
        """Send an open request to its draft server."""
        spec, draft = self.deployment.requests[held.assignment.request], held.assignment.draft
        assert draft is not None  # the front desk has assigned one
        order = Open(held, self.deployment.service.new_schedule, spec, at_ms + self.start_ms)
        self._crew.lines.order(self._crew.drafts[draft], order)

    def _open(self, assignments: Sequence[Assignment], at_ms: float) -> None:
        for _ in self.front.over[self._over :]:
            self._progress()
        self._over = len(self.front.over)
        for assignment in assignments:
            spec, session = self.deployment.requests[assignment.request], assignment.session
            given = replace(assignment, asked_ms=assignment.asked_ms + self.start_ms)
            held = self._crew.journal.open(self._base + session, len(spec.prompt), given)
            self.hand_over(held, at_ms)

    # --- recording -------------------------------------------------------------------------------

    def note(self, found: Finished) -> RequestTrace:
        """Record a request; return its trace with this run's times and numbers."""
        self._crew.journal.closed(found.trace.session)
        number = self._record(found)
        return replace(found.trace.shifted(-self.start_ms), session=number)

    def heard(self) -> list[Finished]:
        """Return the requests that are over by now; the open ones go to the journal."""
        over = []
        for found in self._told():
            if found.trace.session <= self._base:
                continue  # it belongs to an earlier run
            if found.trace.reason == RUN_ENDED:
                self._crew.journal.known(found.trace)
                self._record(found)
            else:
                self._crew.journal.closed(found.trace.session)
                over.append(found)
        return over

    def salvage(self) -> None:
        """Record the committed part of the open requests of a run that failed."""
        self.trace.requests += [self.note(found) for found in self.heard()]
        # The draft servers of these open requests are silent; the journal holds part of the texts.
        for text in self._crew.journal.texts(now_ms()):
            known = RecordedRequest(text.prompt_tokens, text.tokens)
            self.trace.requests.append(self.note(Finished(text, known)))
        self.trace.complete = self.recording.complete = False

    def _told(self) -> list[Finished]:
        """Collect the open and the finished requests of the draft servers that answer."""
        lines, drafts = self._crew.lines, self._crew.drafts
        until_ms, found = now_ms() + SALVAGE_MS, list[Finished]()
        asked = [name for name in drafts if lines.serves(name)]
        for name in [*asked]:
            try:
                lines.order(name, Ask("OpenTexts"))
            except WorkerError as lost:
                lines.forget(lost.name)
        while now_ms() < until_ms and any(name in lines for name in asked):
            try:
                lines.listen(until_ms)
            except WorkerError as lost:
                lines.forget(lost.name)
            for name in [*asked]:
                if (answer := lines.take(name, OpenTexts)) is not None:
                    found += answer.requests
                    asked.remove(name)
        for name in drafts:
            while (finished := lines.take(name, Finished)) is not None:
                found.append(finished)
        return found

    def _record(self, found: Finished) -> int:
        """Append the answers to those recorded before; return the request's number in this run."""
        number = found.trace.session - self._base
        before = self.recording.requests.get(number, RecordedRequest(0)).answers
        answers = [*before, *found.recorded.answers]
        self.recording.requests[number] = replace(found.recorded, answers=answers)
        return number
