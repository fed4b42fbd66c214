"""The simulated world: the same schedules and desks as executed, with times from profiles.

The world decides nothing. Schedules and desks say what is computed, pruned and fed,
``core/failover.py`` how a run goes on that loses a worker, and ``core/recovery.py`` from where its
requests do; ``running.py`` moves messages, and ``roles.py`` lets time pass.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from functools import partial
from math import inf

from simpy.core import EmptySchedule

from treepipe.core.errors import RunError
from treepipe.core.failover import EndRun, Failover, Fault, GiveUp, noticed_after_ms
from treepipe.core.recovery import Committed, Journal, OpenRequestState
from treepipe.core.requests import RUN_ENDED, Assignment, RequestTrace
from treepipe.physics.timing import later
from treepipe.results.critical_path import ARRIVALS, edges
from treepipe.results.trace import Span, Trace
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.desks import front_desk
from treepipe.scenario.faults import Injected
from treepipe.sim.acceptance import AcceptanceSource
from treepipe.sim.causes import ListeningClock, critical_path
from treepipe.sim.clock import Clock
from treepipe.sim.running import RequestListener, RunningSystem

COLLECTED_AFTER = 50_000
"""Objects made between two searches for cycles, of which a run leaves few: a tenth of its time."""
NO_PATHS = "no critical path is told: what faults cut short has no cause that it could follow"


class RunOver(Exception):  # noqa: N818  (no error: it leaves the event of the end)
    """All requests of a run are over."""


class Simulation(RequestListener):
    """One run of a deployment: a closed loop of requests, or random arrivals."""

    def __init__(
        self,
        deployment: Deployment,
        source: AcceptanceSource,
        record_spans: bool,
        record_paths: bool = False,
        *,
        clock: Clock | None = None,
        spans: list[Span] | None = None,
    ) -> None:
        # Work cut short by a fault released no other work, so no path crosses a fault.
        pathless = record_paths and bool(deployment.faults.injected)
        own = ListeningClock() if record_paths and not pathless else Clock()
        self.clock = own if clock is None else clock
        self._source, self._front = source, front_desk(deployment)
        self._failover = Failover(deployment, self._front, deployment.faults.all_spares)
        self.spans = [] if spans is None else spans
        self.trace = Trace(
            deployment.roles.devices,
            self.spans,
            machines=deployment.roles.machines,
            requests=self._front.over,
            paged=deployment.service.cache == "paged",
            slo=deployment.service.slo,
            warnings=[NO_PATHS] if pathless else [],
        )
        self.records = record_spans or record_paths  # paths are made of spans
        self._running = RunningSystem(self, deployment, source)
        self._journal, self._restarting = Journal(), False
        self._planned = deployment.faults.planned()
        self._failing: Injected | None = None
        self._over = False
        self._awaited_ms = inf

    def run(self) -> Trace:
        """Run until all requests are over.

        Raises:
            RunError: no role can go on before the requests are over, or a fault ends the run.
        """
        self._open(self._front.start(self.clock.now))
        self._await_arrival()
        self._await_fault()
        try:
            while True:
                self.clock.step()
        except RunOver:
            pass
        except EmptySchedule:
            waiting = [role.state for role in self._running.roles.values()]
            now = self.clock.now
            raise RunError(f"deadlock at {now:.3f} ms: {'; '.join(waiting)}") from None
        if self._failing is not None:  # not noticed before the end
            planned = self._failing
            self.trace.faults.append(Fault(planned.worker, planned.kind, planned.at_ms, None))
        self._keep_turns()
        self.trace.requests.sort(key=lambda request: request.session)
        return self.trace

    @property
    def deployment(self) -> Deployment:
        """The simulated deployment, which a fault may have changed."""
        return self._failover.deployment

    @property
    def events(self) -> int:
        return self.clock.events

    def finished(self, request: RequestTrace) -> None:
        if isinstance(self.clock, ListeningClock):
            self.trace.paths += critical_path(self.clock.cause, request.session, edges(request))
            left = [each for draft in self._running.drafts for each in draft.requests]
            oldest = min([each.assignment.asked_ms for each in left], default=self.clock.now)
            self.clock.forget(oldest)
        self._journal.closed(request.session)
        self._open(self._front.finished(request))
        self._await_arrival()

    def committed(self, report: Committed) -> None:
        self._journal.committed(report)

    def _await_arrival(self) -> None:
        at = self._front.next_arrival_ms
        if at is not None and at < self._awaited_ms:
            now, self._awaited_ms = self.clock.now, at
            self.clock.after(later(at - now, 0.0), partial(self._arrive, now, at))

    def _arrive(self, since_ms: float, at_ms: float, _: object) -> None:
        if at_ms != self._awaited_ms:
            return  # a turn of a session came before, and this one is awaited anew
        self.clock.spent(ARRIVALS, "wait", since_ms)
        self._awaited_ms = inf
        self._open(self._front.arrive())
        self._await_arrival()

    def _open(self, assignments: Iterable[Assignment]) -> None:
        for assignment in assignments:
            spec = self.deployment.requests[assignment.request]
            held = self._journal.open(assignment.session, len(spec.prompt), assignment)
            if not self._restarting:
                self._hand_over(held)
        if self._front.done:
            self.clock.after(0, self._end)

    def _hand_over(self, held: OpenRequestState) -> None:
        draft = held.assignment.draft
        assert draft is not None  # it is served
        self._running.drafts[draft].open(held)

    def _end(self, _: object) -> None:
        """End the run at once: callbacks that share the event of the end come behind it."""
        if not self._over:
            self._over = True
            raise RunOver

    def _keep_turns(self) -> None:
        if self.records:
            turns = [turn for draft in self._running.drafts for turn in draft.turns]
            self.trace.turns = [*self.trace.turns, *turns]

    # --- faults ----------------------------------------------------------------------------------

    def _await_fault(self) -> None:
        """Wait for the next fault; faults that fall into a recovery are left out."""
        now = self.clock.now
        planned = next((each for each in self._planned if each.at_ms >= now), None)
        if planned is not None:
            self.clock.after(planned.at_ms - now, partial(self._fail, planned))

    def _fail(self, planned: Injected, _: object) -> None:
        """Let a worker fail, unless it is gone; the next one fails after the recovery."""
        there = {*self.deployment.roles.devices} - self._running.failed
        if planned.worker not in there:
            self._await_fault()
            return
        self._failing = planned
        after = noticed_after_ms(planned.kind, self.deployment.faults.timeout_ms)
        if planned.for_ms is not None and planned.for_ms < after:
            self._running.stopped[planned.worker].stand_still(planned.for_ms)
            self.clock.after(planned.for_ms, lambda _: self._made_good(planned, None, None))
            return
        self._running.failed.add(planned.worker)
        self.clock.after(after, partial(self._notice, planned))

    def _notice(self, planned: Injected, _: object) -> None:
        lost, now = planned.worker, self.clock.now
        if self._front.done:
            return  # a loss at the very end is not noticed
        match self._failover.lost(lost, self._failover.spares):
            case GiveUp(pipeline):
                self._give_up(planned, pipeline)
                return
            case EndRun():
                raise RunError(
                    f"{lost} fails {planned.at_ms:.0f} ms after the run began (faults, kind "
                    f"{planned.kind!r}), and no spare is left (faults.spares = "
                    f"{self.deployment.faults.spares}): the run would end"
                )
        self._restart(partial(self._recover, planned, now))

    def _give_up(self, planned: Injected, pipeline: int) -> None:
        """Go on without the pipeline of a lost stage."""
        self._running.failed.update(
            stage.name for stage in self.deployment.roles.pipelines[pipeline]
        )
        for draft in self._running.drafts:
            draft.lose(pipeline, planned.worker)
        now = self.clock.now
        self.trace.warnings.append(
            f"{planned.worker} fails (faults, kind {planned.kind!r}), which is noticed after "
            f"{now:.0f} ms; the requests of pipeline{pipeline} end with what they had, and the "
            f"other pipelines go on"
        )
        self._made_good(planned, now, None)

    def _restart(self, begin: Callable[[object], None]) -> None:
        """Let the remaining draft servers report and all roles end; ``begin`` starts them anew."""
        now, running = self.clock.now, self._running
        for draft in running.drafts:
            if draft.name not in running.failed:
                for request in draft.requests:
                    self._journal.known(request.trace(now, RUN_ENDED))
        running.failed.update(self.deployment.roles.devices)
        self._keep_turns()
        self._restarting = True
        self.clock.after(self.deployment.faults.restart_ms, begin)

    def _take_up(self) -> None:
        self._running, self._restarting = RunningSystem(self, self.deployment, self._source), False
        for held in self._journal.take_up():
            self._hand_over(held)

    def _recover(self, planned: Injected, noticed_ms: float, _: object) -> None:
        self._take_up()
        self._made_good(planned, noticed_ms, self.clock.now)

    def _made_good(
        self, planned: Injected, noticed_ms: float | None, recovered_ms: float | None
    ) -> None:
        """Record a fault; from now on another worker may fail."""
        times = planned.at_ms, noticed_ms, recovered_ms
        self.trace.faults.append(Fault(planned.worker, planned.kind, *times))
        self._failing = None
        self._await_fault()


def simulate(
    deployment: Deployment,
    source: AcceptanceSource,
    *,
    record_spans: bool = True,
    record_paths: bool = False,
) -> Trace:
    """Simulate a deployment once; the same deployment and source seed give an equal trace.

    Args:
        record_spans: False leaves the trace's spans empty (then no utilization is known).
        record_paths: whether the trace holds each request's critical path.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(COLLECTED_AFTER, before[0]) if before[0] else 0, *before[1:])
    try:
        return Simulation(deployment, source, record_spans, record_paths).run()
    finally:
        gc.set_threshold(*before)
