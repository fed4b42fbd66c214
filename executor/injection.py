"""The faults of one run: planned ones that are let happen, and what is noted of any.

Law of this file: one fault at a time. While a worker's loss is not made good the others are spared,
and who is gone does not fail again.
"""

from __future__ import annotations

from dataclasses import replace

from treepipe.core.losses import Fault
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
        self._failing: Injected | None = None  # since it was let happen

    @property
    def fails(self) -> bool:
        """Whether a worker has failed, and nobody has noticed it."""
        return self._failing is not None

    @property
    def next_ms(self) -> float | None:
        """When ``act`` is to be called next; None: not any more."""
        times = [None if self._next is None else self._next.at_ms, self._over_ms]
        return min((each for each in times if each is not None), default=None)

    def act(self, now_ms: float) -> None:
        """Do what is due by now."""
        if self._over_ms is not None and self._over_ms <= now_ms:
            self.resume()
            self.end()
        planned = self._next
        if planned is None or planned.at_ms > now_ms:
            return
        self._next = next(self._planned, None)
        there = {*self._crew.lines} - self._crew.deployment.plain
        if self._failing is None and planned.worker in there:
            self._failing = replace(planned, at_ms=now_ms)
            self._crew.inject(planned.worker, planned.kind, planned.for_ms)

    def skip(self, until_ms: float) -> None:
        """Workers were started meanwhile: what was to fail by then does not."""
        while self._next is not None and self._next.at_ms <= until_ms:
            self._next = next(self._planned, None)

    def over_ms(self, worker: str) -> float | None:
        """When the present fault is over, if it is this worker's and ends by itself."""
        is_own = self._failing is not None and self._failing.worker == worker
        return self._over_ms if is_own else None

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
        if self._failing is not None and self._failing.worker == death.name:
            kind, since_ms = self._failing.kind, self._failing.at_ms
            self._failing = None
        plain_ms = recovered_ms if plain else None
        self._noted.append(Fault(death.name, kind, since_ms, at_ms, recovered_ms, plain_ms))

    def resume(self) -> None:
        """A fault that ends by itself is over, or need not be waited for."""
        if self._failing is not None and self._failing.for_ms is not None:
            self._crew.resume(self._failing.worker)

    def end(self) -> None:
        """Note what nobody noticed."""
        if self._failing is not None:
            planned, self._failing = self._failing, None
            self._noted.append(Fault(planned.worker, planned.kind, planned.at_ms, None))

    @property
    def _over_ms(self) -> float | None:
        """When the present fault is over, if it ends by itself."""
        return None if self._failing is None else self._failing.over_ms
