"""What becomes of a run that loses a worker; the rule itself is ``core/recovery.py``.

Law of this file: a spare comes first, then a stand-in for a draft server, then the lost stage's
layers go to its pipeline's others, then its pipeline is given up; only where none of it can be, the
run ends. A draft server that is away drafts again as soon as it can.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from treepipe.core.errors import RunError, UserError
from treepipe.core.recovery import drafts_again
from treepipe.executor import clock
from treepipe.executor.control import Finished, Lose
from treepipe.executor.crew import Crew
from treepipe.executor.injection import Injection
from treepipe.executor.pulse import LostWorkerError, WorkerError
from treepipe.executor.run_requests import RunRequests
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.redeal import shares_of

LOOK_MS = 200.0
"""Between two looks for a draft server that is away."""


class Recovery:
    """Goes on with one run's requests when workers are lost.

    Attributes:
        injection: the faults of the run.
    """

    def __init__(self, crew: Crew, run: RunRequests) -> None:
        self._crew, self._run = crew, run
        self._spares = run.deployment.faults.spares - len(crew.replaced)
        self.injection = Injection(crew, run.deployment, run.trace.faults)
        self._over = list[Finished]()  # requests that ended before the run knew of it
        self._next_look_ms = 0.0
        if run.deployment.plain:
            run.recording.complete = False  # nobody drafts at first
        run.trace.warnings += [
            f"{lost} before the run began; a spare took its place" for lost in crew.replaced
        ]
        run.trace.warnings += [
            f"{draft} was lost in a run before; its requests are decoded plainly until it is back"
            for draft in sorted(run.deployment.plain)
        ]

    @property
    def next_ms(self) -> float | None:
        """When ``act`` is to be called next, from the run's start; None: not any more."""
        if not self._run.deployment.plain:
            return self.injection.next_ms
        failing_ms = self.injection.next_ms
        return self._next_look_ms if failing_ms is None else min(self._next_look_ms, failing_ms)

    def act(self, now_ms: float) -> None:
        """Do what is due by now: let workers fail, or a draft server draft again."""
        self.injection.act(now_ms)
        if self._run.deployment.plain and now_ms >= self._next_look_ms:
            self._look()
            known = [at_ms for at_ms in self._crew.back_ms.values() if at_ms is not None]
            later = [at_ms - self._run.start_ms for at_ms in known if at_ms > clock.now_ms()]
            self._next_look_ms = min([self._run.now_ms + LOOK_MS, *later])

    def lose(self, death: LostWorkerError) -> None:
        """Go on with a spare, with plain decoding instead of a draft, with a lost stage's layers at
        the others, or without its pipeline if there is another; raises the loss itself if there is
        nothing to go on with."""
        if self._spares_left:
            spare = self._take_spare()
            where = "" if spare is None else f" at {spare}"
            stood_in = death.name in self._run.deployment.plain
            if stood_in and (spare is not None or self._crew.reaches(death.name)):
                self._regain(death.name)
            self._take_up(death, f"a spare{where} took its place", spare)
            return
        if self._decode_plainly(death.name):
            self._take_up(death, "its requests are decoded plainly until it is back")
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
            if not (self._spares_left or self._stands_in_for(death.name)):
                raise
            self.lose(death)
        self.injection.end()

    def salvage(self, error: RunError, at_ms: float) -> None:
        """Note what is left of a run that failed then."""
        if isinstance(error, WorkerError):
            self._crew.lines.forget(error.name)
        if isinstance(error, LostWorkerError):
            self.injection.noticed(error, at_ms, None)
        self._run.trace.requests += [self._run.note(found) for found in self._over]
        self._run.salvage()

    @property
    def _spares_left(self) -> bool:
        """Whether a lost worker can be replaced; of spares that have addresses, one must answer."""
        named = self._run.deployment.faults.spare_workers
        return self._spares > 0 and (not named or bool(self._crew.spares()))

    def _take_spare(self) -> str | None:
        """One spare less is left; returns its address, if it has one."""
        self._spares -= 1
        return next(iter(self._crew.spares()), None)

    def _take_up(self, death: LostWorkerError, how: str, spare: str | None = None) -> None:
        """Go on with the committed texts, all workers started anew.

        Args:
            how: without the lost one.
            spare: address of the worker that takes its place.
        """
        crew, run = self._crew, self._run
        noticed_ms = run.now_ms
        crew.lines.forget(death.name)
        if death.name in crew.drafts:
            run.recording.complete = False  # it lacks what that draft had answered
        try:
            recovered_ms = self._restart(partial(crew.start_anew, death, spare))
        except UserError as refused:  # the spare lacks what the lost one had
            crew.lines.close()
            raise RunError(f"{death}, and nothing took its place: {refused}") from None
        plain = death.name in run.deployment.plain
        self.injection.noticed(death, noticed_ms, recovered_ms, plain=plain)
        run.trace.warnings.append(
            f"{death} after {noticed_ms:.0f} ms; {how}, and the open requests went on with what "
            f"they had {recovered_ms - noticed_ms:.0f} ms later"
        )
        self._finish()

    def _restart(self, start: Callable[[], None]) -> float:
        """Hand the open requests over to workers that are started anew, with a spare for each one
        that is lost meanwhile; returns when that was."""
        crew, run = self._crew, self._run
        self._over += run.heard()
        try:
            crew.collect(run.trace, run.start_ms)
        except LostWorkerError as other:
            run.trace.warnings.append(f"{other}, too; not all of what workers did is known")
        lost_again = list[tuple[LostWorkerError, float]]()

        def replaced(lost: LostWorkerError) -> str | None:
            if not self._spares_left:
                raise lost
            lost_again.append((lost, run.now_ms))
            return self._take_spare()

        crew.persist(start, replaced)
        recovered_ms = run.now_ms
        for lost, noticed_ms in lost_again:
            self.injection.noticed(lost, noticed_ms, recovered_ms)
            run.trace.warnings.append(
                f"{lost} after {noticed_ms:.0f} ms, while workers started anew; a spare took its "
                f"place, too"
            )
        for held in crew.journal.take_up():
            run.hand_over(held, recovered_ms)
        self.injection.skip(recovered_ms)
        return recovered_ms

    def _finish(self) -> None:
        """Some requests were over before all workers started anew."""
        over, self._over = self._over, []
        for found in over:
            self._run.finished(found)

    def _make_anew(self, deployment: Deployment) -> None:
        self._run.deployment = deployment
        self._crew.make_anew(deployment)

    # --- a draft server that is away -------------------------------------------------------------

    def _stands_in_for(self, lost: str) -> Deployment | None:
        """The deployment with a stand-in for a draft server; None: the run cannot go on so."""
        return None if self._run.front.lost else self._run.deployment.without_draft(lost)

    def _decode_plainly(self, lost: str) -> bool:
        """Let a stand-in take a lost draft server's place; returns whether it does."""
        plain, over_ms = self._stands_in_for(lost), self.injection.over_ms(lost)
        if plain is None:
            return False
        self._crew.back_ms[lost] = None if over_ms is None else over_ms + self._run.start_ms
        self._next_look_ms = 0.0
        self._make_anew(plain)
        return True

    def _look(self) -> None:
        """Let one draft server draft again that is back, or has a spare now."""
        crew, run = self._crew, self._run
        crew.look()
        if run.front.lost or self.injection.fails:
            return  # once a pipeline was given up nothing is made anew; and one loss at a time
        for draft in sorted(run.deployment.plain):
            if crew.is_back(draft):
                self._draft_again(draft, "was back")
                return
            placed = crew.reaches(draft) or run.deployment.faults.spare_workers
            if placed and self._spares_left:
                spare = self._take_spare()
                where = "" if spare is None else f" at {spare}"
                self._draft_again(draft, f"was replaced by a spare{where}", spare)
                return

    def _regain(self, draft: str, spare: str | None = None) -> None:
        self._make_anew(self._run.deployment.with_draft(draft))
        self._crew.return_to(draft, spare)

    def _draft_again(self, draft: str, how: str, spare: str | None = None) -> None:
        """Go on with the committed texts and a draft server that drafts; if it does not start, it
        is lost once more."""
        crew, run = self._crew, self._run
        back_ms = run.now_ms
        self._regain(draft, spare)
        try:
            recovered_ms = self._restart(crew.start_anew)
        except (LostWorkerError, UserError) as error:
            crew.lines.close()
            if isinstance(error, UserError):
                error = LostWorkerError(draft, f"did not start: {error}")
            self.lose(error)
            return
        drafts_again(run.trace.faults, draft, recovered_ms)
        run.trace.warnings.append(
            f"{draft} {how} after {back_ms:.0f} ms, and drafted again "
            f"{recovered_ms - back_ms:.0f} ms later"
        )
        self._finish()

    # --- layers ----------------------------------------------------------------------------------

    def _deal_anew(self, lost: str) -> bool:
        """Deal a lost stage's layers over the others; returns whether they are."""
        run = self._run
        if run.deployment.redeal is None or run.front.lost:
            return False
        try:
            self._make_anew(run.deployment.redeal(run.deployment, lost))
        except UserError as refused:
            run.trace.warnings.append(f"no layers were dealt anew: {refused}")
            return False
        return True
