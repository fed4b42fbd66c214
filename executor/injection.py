"""The faults of one run: planned ones that are let happen, and what is noted of any.

Law of this file: one fault at a time. While a worker's loss is not made good the others are spared,
and who is gone does not fail again.
"""

from __future__ import annotations

from treepipe.core.recovery import Fault
from treepipe.executor.crew import Crew
from treepipe.executor.pulse import LostWorkerError
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.faults import Injected


class Injection:
    """Lets workers fail as a scenario plans it; times from the run's start, in ms."""

    def __init__(self, crew: Crew, deployment: Deployment, noted: list[Fault]) -> None:
        """Args: ``noted``: where faults are noted."""
        self._crew, self._noted = crew, noted
        self._planned = deployment.faults.planned()
        self._next = next(self._planned, None)
        self._failing: tuple[Injected, float] | None = None

    @property
    def fails(self) -> bool:
        """Whether a worker has failed, and nobody has noticed it."""
        return self._failing is not None

    @property
    def next_ms(self) -> float | None:
        """When ``act`` is to be called next; None: not any more."""
        times = [None if self._next is None else self._next.at_ms, self._over_by_itself_ms]
        return min((each for each in times if each is not None), default=None)

    def act(self, now_ms: float) -> None:
        """Do what is due by now."""
        over_ms = self._over_by_itself_ms
        if over_ms is not None and over_ms <= now_ms:  # nobody noticed it
            self._resume()
            self._note_unnoticed()
        planned = self._next
        if planned is None or planned.at_ms > now_ms:
            return
        self._next = next(self._planned, None)
        there = {*self._crew.lines} - self._crew.deployment.plain
        if self._failing is None and planned.worker in there:
            self._failing = planned, now_ms
            self._crew.inject(planned.worker, planned.kind, planned.for_ms)

    def skip(self, until_ms: float) -> None:
        """Workers were started meanwhile: what was to fail by then does not."""
        while self._next is not None and self._next.at_ms <= until_ms:
            self._next = next(self._planned, None)

    def over_ms(self, worker: str) -> float | None:
        """When the present fault is over, if it is this worker's and ends by itself."""
        is_own = self._failing is not None and self._failing[0].worker == worker
        return self._over_by_itself_ms if is_own else None

    def noticed(
        self,
        death: LostWorkerError,
        at_ms: float,
        recovered_ms: float | None,
        *,
        plain: bool = False,
    ) -> None:
        """Note a loss; one that was injected is known better. Args: ``plain``: its requests are
        decoded plainly since."""
        kind, since_ms = death.kind, None
        if self._failing is not None and self._failing[0].worker == death.name:
            kind, since_ms = self._failing[0].kind, self._failing[1]
            self._failing = None
        plain_ms = recovered_ms if plain else None
        self._noted.append(Fault(death.name, kind, since_ms, at_ms, recovered_ms, plain_ms))

    def no_more(self) -> None:
        """All requests are over: a fault that ends by itself need not be waited for."""
        if self._over_by_itself_ms is not None:
            self._resume()

    def end(self) -> None:
        """The run is over: note what nobody noticed."""
        if self._failing is not None:
            self._note_unnoticed()

    @property
    def _over_by_itself_ms(self) -> float | None:
        """When the present fault is over, if it ends by itself."""
        if self._failing is None or self._failing[0].for_ms is None:
            return None
        return self._failing[1] + self._failing[0].for_ms

    def _resume(self) -> None:
        assert self._failing is not None  # it ends by itself
        self._crew.resume(self._failing[0].worker)

    def _note_unnoticed(self) -> None:
        assert self._failing is not None  # as its callers know
        planned, at_ms = self._failing
        self._noted.append(Fault(planned.worker, planned.kind, at_ms, None))
        self._failing = None
