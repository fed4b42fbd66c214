"""Fault injection: failing workers as planned, and recording every fault of one run.

Invariant: one fault at a time. No other worker fails until the loss of one is recovered, and a lost
worker does not fail again.
"""

from __future__ import annotations

from dataclasses import replace

from treepipe.core.losses import Fault
from treepipe.executor.crew import Crew
from treepipe.executor.pulse import LostWorkerError
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.faults import Injected


class Injection:
    """The planned faults of a run; times in ms from its start."""

    def __init__(self, crew: Crew, deployment: Deployment, noted: list[Fault]) -> None:
        """Prepare the faults; each one is appended to ``noted``."""
        self._crew, self._noted = crew, noted
        self._planned = deployment.faults.planned()
        self._next = next(self._planned, None)
        self._failing: Injected | None = None  # the present fault

    @property
    def fails(self) -> bool:
        """Whether a worker has failed and the loss was not noticed yet."""
        return self._failing is not None

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
        there = {*self._crew.lines} - self._crew.deployment.plain
        if self._failing is None and planned.worker in there:
            self._failing = replace(planned, at_ms=now_ms)
            self._crew.inject(planned.worker, planned.kind, planned.for_ms)

    def skip(self, until_ms: float) -> None:
        """Skip the planned faults until then, since workers were restarting."""
        while self._next is not None and self._next.at_ms <= until_ms:
            self._next = next(self._planned, None)

    def over_ms(self, worker: str) -> float | None:
        """End of this worker's present fault; None without one, or if it lasts."""
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
        """Record a loss; with ``plain`` the requests are decoded plainly from now on."""
        kind, since_ms = death.kind, None
        if self._failing is not None and self._failing.worker == death.name:
            kind, since_ms = self._failing.kind, self._failing.at_ms
            self._failing = None
        plain_ms = recovered_ms if plain else None
        self._noted.append(Fault(death.name, kind, since_ms, at_ms, recovered_ms, plain_ms))

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
