"""How a run goes on that loses a worker: a spare takes its place; else its pipeline is given up, if
there is another one; else the run ends with all that is committed.

Kinds of faults, the time until one is noticed, and its record are alike in both worlds, too. This
module only decides. Both worlds report each loss, and start their workers as
``Failover.deployment`` says from then on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

from treepipe.core.front_desk import FrontDesk
from treepipe.core.messages import record

FaultKind: TypeAlias = Literal["kill", "stop", "cut"]
"""A worker ends, stands still, or is cut off (by its links, or a power loss of its host)."""
BEATS = 10
"""Minimum number of signs of life within the time after which a worker counts as silent."""
MOST_BEAT_MS, LEAST_BEAT_MS = 500.0, 100.0
"""Bounds of the time between two signs of life."""


def beat_ms(timeout_ms: float) -> float:
    """Return the time between two signs of a worker's life, and between two checks for them."""
    return max(LEAST_BEAT_MS, min(MOST_BEAT_MS, timeout_ms / BEATS))


def noticed_after_ms(kind: FaultKind, timeout_ms: float) -> float:
    """Return the mean time until a fault is noticed.

    It is 0 if the worker's end itself is noticed. Else the worker is reported two checks before its
    time is up; its last sign came half a beat before the fault, and was seen half a check after
    that. A worker that is cut off shows itself once more.
    """
    if kind == "kill":
        return 0.0
    return timeout_ms - (1 if kind == "cut" else 2) * beat_ms(timeout_ms)


@dataclass(frozen=True, slots=True)
class Fault:
    """A worker failed; times from the run's start, in ms.

    Attributes:
        at_ms: time of the fault; None if unknown.
        detected_ms: time of notice; None if the run was over before.
        recovered_ms: time at which all open requests were handed over again; None if they were not.
    """

    worker: str
    kind: FaultKind
    at_ms: float | None
    detected_ms: float | None
    recovered_ms: float | None = None


Made = TypeVar("Made", bound="Workers")


class Workers(Protocol):
    """A deployment's workers, and the deployments derived from it."""

    def pipeline_of(self, role: str) -> int | None: ...

    def at_spare(self: Made, role: str, spare: str) -> Made: ...


@record
class Spare:
    """A spare worker: one that waits at ``address``; None: a new process on the lost one's host."""

    address: str | None = None


@record
class Replace:
    """A spare takes the lost worker's place."""

    spare: Spare


@record
class GiveUp:
    """The requests of a pipeline end with their tokens so far, and the others go on."""

    pipeline: int


@record
class EndRun:
    """The end of a run that cannot go on."""


AfterLoss: TypeAlias = Replace | GiveUp | EndRun


def take_spare(left: list[Spare], waiting: Iterable[Spare]) -> Spare | None:
    """Take the next spare that waits; None if no remaining spare waits.

    >>> left = [Spare("a:1"), Spare("b:1")]
    >>> take_spare(left, [Spare("b:1")]), take_spare(left, [Spare("b:1")]), left
    (Spare(address='b:1'), None, [Spare(address='a:1')])
    """
    spare = next((each for each in waiting if each in left), None)
    if spare is not None:
        left.remove(spare)
    return spare


class Failover(Generic[Made]):
    """The decisions of one run.

    Attributes:
        deployment: the deployment from the workers' next start on.
        spares: the remaining spares.
    """

    def __init__(self, deployment: Made, front: FrontDesk, spares: Iterable[Spare]) -> None:
        """Make the decisions of one run, whose ``front`` receives the given-up pipelines."""
        self.deployment, self.spares = deployment, [*spares]
        self._front = front

    def lost(self, worker: str, waiting: Iterable[Spare]) -> AfterLoss:
        """Decide how the run goes on without this worker; ``waiting`` are the spares that answer
        now, the next one first."""
        if (spare := take_spare(self.spares, waiting)) is not None:
            if spare.address is not None:
                self.deployment = self.deployment.at_spare(worker, spare.address)
            return Replace(spare)
        pipeline = self.deployment.pipeline_of(worker)
        if pipeline is None or self._front.done or not self._front.lose(pipeline):
            return EndRun()
        return GiveUp(pipeline)
