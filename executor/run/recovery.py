"""Faults of a run: failing workers as planned, and recovery from every loss.

``core/failover.py`` decides what happens, and ``core/recovery.py`` how the open requests go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from treepipe.core import failover
from treepipe.core.errors import RunError, UserError
from treepipe.core.failover import Fault, Spare
from treepipe.executor.run.pulse import LostWorkerError, WorkerError
from treepipe.executor.run.run_requests import RunRequests
from treepipe.executor.wire.records import Finished, Lose
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.faults import Injected

if TYPE_CHECKING:
    from treepipe.executor.run.crew import Crew


class Injection:
    """The planned faults of a run, and the record of every fault; times in ms from its start.

    Invariant: one fault at a time. No other worker fails until the loss of one is recovered, and a
    lost worker does not fail again.
    """

    def __init__(self, crew: Crew, deployment: Deployment, noted: list[Fault]) -> None:
        """Prepare the faults; each one is appended to ``noted``."""
        self._crew, self._noted = crew, noted
        self._planned = deployment.faults.planned()
        self._next = next(self._planned, None)
        self._failing: Injected | None = None  # the present fault

    @property
    def next_ms(self) -> float | None:
        """Time of the next call of ``act``; None: never."""
        times = [None if self._next is None else self._next.at_ms, self._over_ms]
        return min((each for each in times if each is not None), default=None)

    def act(self, now_ms: float) -> None:
        """Begin and end the faults that are due by now."""
        if self._over_ms is not None and self._over_ms <= now_ms:
            self.resume()
            self.end()
        planned = self._next
        if planned is None or planned.at_ms > now_ms:
            return
        self._next = next(self._planned, None)
        if self._failing is None and planned.worker in self._crew.lines:
            self._failing = replace(planned, at_ms=now_ms)
            self._crew.inject(planned.worker, planned.kind, planned.for_ms)

    def skip(self, until_ms: float) -> None:
        """Skip the planned faults until then, since workers were restarting."""
        while self._next is not None and self._next.at_ms <= until_ms:
            self._next = next(self._planned, None)

    def noticed(self, death: LostWorkerError, at_ms: float, recovered_ms: float | None) -> None:
        """Record a loss."""
        kind, since_ms = death.kind, None
        if self._failing is not None and self._failing.worker == death.name:
            kind, since_ms = self._failing.kind, self._failing.at_ms
            self._failing = None
        self._noted.append(Fault(death.name, kind, since_ms, at_ms, recovered_ms))

    def resume(self) -> None:
        """End the present fault, if it ends by itself."""
        if self._failing is not None and self._failing.for_ms is not None:
            self._crew.resume(self._failing.worker)

    def end(self) -> None:
        """Record a fault that was not noticed."""
        if self._failing is not None:
            planned, self._failing = self._failing, None
            self._noted.append(Fault(planned.worker, planned.kind, planned.at_ms, None))

    @property
    def _over_ms(self) -> float | None:
        return None if self._failing is None else self._failing.over_ms


class Recovery:
    """The continuation of one run's requests when workers are lost.

    Attributes:
        injection: the faults of the run.
    """

    def __init__(self, crew: Crew, run: RunRequests) -> None:
        self._crew, self._run = crew, run
        spares = Counter(run.deployment.faults.all_spares) - Counter(crew.replaced.values())
        self._failover = failover.Failover(run.deployment, run.front, spares.elements())
        self.injection = Injection(crew, run.deployment, run.trace.faults)
        self._over = list[Finished]()  # requests that ended before a restart was complete
        run.trace.warnings += [
            f"{lost} before the run began; a spare took its place" for lost in crew.replaced
        ]

    def lose(self, death: LostWorkerError) -> None:
        """Recover from the loss of a worker. Raises the loss if that is impossible."""
        match self._failover.lost(death.name, self._crew.waiting()):
            case failover.Replace(spare):
                self._take_up(death, spare)
            case failover.GiveUp(pipeline):
                self._give_up(death, pipeline)
            case failover.EndRun():
                raise death

    def _give_up(self, death: LostWorkerError, pipeline: int) -> None:
        crew, run = self._crew, self._run
        crew.give_up(pipeline)
        self.injection.noticed(death, run.now_ms, None)
        for draft in crew.drafts:
            crew.lines.order(draft, Lose(pipeline, death.name))
        run.trace.warnings.append(
            f"{death} after {run.now_ms:.0f} ms; the requests of pipeline{pipeline} ended with "
            f"what they had, their state was freed, and the other pipelines went on"
        )

    def end(self) -> None:
        """Collect the workers' spans after the last request."""
        self.injection.resume()
        try:
            self._crew.collect(self._run.trace, self._run.start_ms)
        except LostWorkerError as death:
            self.lose(death)
        self.injection.end()

    def salvage(self, error: RunError, at_ms: float) -> None:
        """Record the rest of a run that failed at ``at_ms``."""
        if isinstance(error, WorkerError):
            self._crew.lines.forget(error.name)
        if isinstance(error, LostWorkerError):
            self.injection.noticed(error, at_ms, None)
        self._run.trace.requests += [self._run.note(found) for found in self._over]
        self._run.salvage()

    def _take_up(self, death: LostWorkerError, spare: Spare) -> None:
        """Restart all workers, the lost one as the spare, and continue from the committed texts."""
        crew, run = self._crew, self._run
        run.deployment = self._failover.deployment
        noticed_ms = run.now_ms
        crew.lines.forget(death.name)
        if death.name in crew.drafts:
            run.recording.complete = False  # it lacks the answers of that draft
        try:
            recovered_ms = self._restart(partial(crew.start_anew, death, spare.address))
        except UserError as refused:  # the spare lacks a checkpoint or a device
            crew.lines.end()
            raise RunError(f"{death}, and nothing took its place: {refused}") from None
        self.injection.noticed(death, noticed_ms, recovered_ms)
        at = "" if spare.address is None else f" at {spare.address}"
        run.trace.warnings.append(
            f"{death} after {noticed_ms:.0f} ms; a spare{at} took its place, and the open requests "
            f"went on with what they had {recovered_ms - noticed_ms:.0f} ms later"
        )

    def _restart(self, start: Callable[[], None]) -> float:
        """Restart the workers, with a spare for each worker lost meanwhile, and send them the open
        requests, and the next ones of finished requests; return the time of completion."""
        crew, run = self._crew, self._run
        self._over += run.heard()
        try:
            crew.collect(run.trace, run.start_ms)
        except LostWorkerError as other:
            run.trace.warnings.append(f"{other}, too; not all of what workers did is known")
        lost_again = crew.persist(start, self._failover.spares)
        recovered_ms = run.now_ms
        for lost, at_ms, _ in lost_again:
            noticed_ms = at_ms - run.start_ms
            self.injection.noticed(lost, noticed_ms, recovered_ms)
            run.trace.warnings.append(
                f"{lost} after {noticed_ms:.0f} ms, while workers started anew; a spare took its "
                f"place, too"
            )
        for held in crew.journal.take_up():
            run.hand_over(held, recovered_ms)
        self.injection.skip(recovered_ms)
        over, self._over = self._over, []
        for found in over:
            run.finished(found)
        return recovered_ms
