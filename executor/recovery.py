"""What becomes of a run that loses a worker; the rule itself is ``core/recovery.py``.

Law of this file: a spare comes first, then the lost stage's layers go to its pipeline's others,
then its pipeline is given up; only where none of it can be, the run ends.
"""

from __future__ import annotations

from treepipe.core.errors import RunError, UserError
from treepipe.executor.control import Lose
from treepipe.executor.crew import Crew
from treepipe.executor.injection import Injection
from treepipe.executor.pulse import LostWorkerError, WorkerError
from treepipe.executor.run_requests import RunRequests
from treepipe.scenario.redeal import shares_of


class Recovery:
    """Goes on with one run's requests when workers are lost.

    Attributes:
        injection: the faults of the run.
    """

    def __init__(self, crew: Crew, run: RunRequests) -> None:
        self._crew, self._run, self._spares = crew, run, run.deployment.faults.spares
        self.injection = Injection(crew, run.deployment, run.trace.faults)

    def lose(self, death: LostWorkerError) -> None:
        """Go on with a spare, with a lost stage's layers at the others, or without its pipeline if
        there is another; raises the loss itself if there is nothing to go on with."""
        if self._spares_left:
            self._spares -= 1
            spare = next(iter(self._crew.spares()), None)
            where = "" if spare is None else f" at {spare}"
            self._take_up(death, f"a spare{where} took its place", spare)
            return
        if self._deal_anew(death.name):
            self._take_up(death, shares_of(self._run.deployment, death.name))
            return
        crew, run = self._crew, self._run
        pipeline = run.deployment.pipeline_of(death.name)
        if pipeline is None or not run.front.lose(pipeline):
            raise death
        crew.give_up(pipeline)
        self.injection.noticed(death, run.now_ms, None)
        for draft in crew.drafts:
            crew.lines.order(draft, Lose(pipeline, death.name))
        run.trace.warnings.append(
            f"{death} after {run.now_ms:.0f} ms; the requests of pipeline{pipeline} ended with "
            f"what they had, their state was freed, and the other pipelines went on"
        )

    def end(self) -> None:
        """All requests are over: take what the workers noted."""
        self.injection.no_more()
        try:
            self._crew.collect(self._run.trace, self._run.start_ms)
        except LostWorkerError as death:
            if not self._spares_left:
                raise
            self.lose(death)
        self.injection.end()

    def salvage(self, error: RunError, at_ms: float) -> None:
        """Note what is left of a run that failed then."""
        if isinstance(error, WorkerError):
            self._crew.lines.forget(error.name)
        if isinstance(error, LostWorkerError):
            self.injection.noticed(error, at_ms, None)
        self._run.salvage()

    @property
    def _spares_left(self) -> bool:
        """Whether a lost worker can be replaced; of spares that have addresses, one must answer."""
        named = self._run.deployment.faults.spare_workers
        return self._spares > 0 and (not named or bool(self._crew.spares()))

    def _take_up(self, death: LostWorkerError, how: str, spare: str | None = None) -> None:
        """Go on with the committed texts, all workers started anew.

        Args:
            how: without the lost one.
            spare: address of the worker that takes its place.
        """
        crew, run = self._crew, self._run
        noticed_ms = run.now_ms
        crew.lines.forget(death.name)
        over = run.heard()
        try:
            crew.collect(run.trace, run.start_ms)
        except LostWorkerError as other:
            run.trace.warnings.append(f"{other}, too; not all of what workers did is known")
        if death.name in crew.drafts:
            run.recording.complete = False  # it lacks what that draft had answered
        try:
            crew.start_anew(death, spare)
        except UserError as refused:  # the spare lacks what the lost one had
            crew.lines.close()
            raise RunError(f"{death}, and nothing took its place: {refused}") from None
        recovered_ms = run.now_ms
        for held in crew.journal.take_up():
            run.hand_over(held, recovered_ms)
        self.injection.noticed(death, noticed_ms, recovered_ms)
        self.injection.skip(recovered_ms)
        run.trace.warnings.append(
            f"{death} after {noticed_ms:.0f} ms; {how}, and the open requests went on with what "
            f"they had {recovered_ms - noticed_ms:.0f} ms later"
        )
        for found in over:
            run.finished(found)

    def _deal_anew(self, lost: str) -> bool:
        """Deal a lost stage's layers over the others; returns whether they are."""
        run = self._run
        if run.deployment.redeal is None or run.front.lost:
            return False
        try:
            run.deployment = run.deployment.redeal(run.deployment, lost)
        except UserError as refused:
            run.trace.warnings.append(f"no layers were dealt anew: {refused}")
            return False
        self._crew.deal_anew(run.deployment)
        return True
