"""How a run goes on that loses a worker, and when a returned draft server drafts again.

A spare takes the lost worker's place. Without a spare, a stand-in without a draft replaces a lost
draft server, and its requests are decoded plainly until it is back; the layers of a lost stage are
dealt over the other stages of its pipeline; else its pipeline is given up, if there is another one;
else the run ends. Once a pipeline was given up, only spares help, and no draft comes back.

This module only decides. Both worlds report each loss and each return, and start their workers as
``Failover.deployment`` says from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from treepipe.core.errors import UserError
from treepipe.core.front_desk import FrontDesk
from treepipe.core.records import record

Made = TypeVar("Made", bound="Workers")
NOBODY: frozenset[str] = frozenset()


class Workers(Protocol):
    """A deployment's workers, and the deployments derived from it.

    Attributes:
        plain: absent draft servers, whose requests a stand-in has decoded plainly.
        redeal: makes the deployment without a stage, or raises ``UserError``; None: layers stay in
            place.
    """

    @property
    def plain(self) -> frozenset[str]: ...

    @property
    def redeal(self) -> Callable[[Any, str], Any] | None: ...

    def pipeline_of(self, role: str) -> int | None: ...

    def without_draft(self: Made, lost: str) -> Made | None: ...

    def with_draft(self: Made, back: str) -> Made: ...

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
class DecodePlainly:
    """A stand-in takes the lost draft server's place."""


@record
class DealLayers:
    """The lost stage's layers are dealt over the others of its pipeline."""


@record
class GiveUp:
    """The requests of a pipeline end with their tokens so far, and the others go on.

    Attributes:
        refused: reason why the lost stage's layers are not dealt anew, if they were to be.
    """

    pipeline: int
    refused: str | None


@record
class EndRun:
    """The end of a run that cannot go on; ``refused`` as in ``GiveUp``."""

    refused: str | None


AfterLoss: TypeAlias = Replace | DecodePlainly | DealLayers | GiveUp | EndRun


@record
class DraftAgain:
    """A draft server drafts again: it is back, or a spare takes its place."""

    draft: str
    spare: Spare | None


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

    In its methods ``waiting`` are the spares that answer now, the next one first, and ``unreached``
    the draft servers whose own hosts do not answer.

    Attributes:
        deployment: the deployment from the workers' next start on.
        spares: the remaining spares.
    """

    def __init__(self, deployment: Made, front: FrontDesk, spares: Iterable[Spare]) -> None:
        """Make the decisions of one run, whose ``front`` receives the given-up pipelines."""
        self.deployment, self.spares = deployment, [*spares]
        self._front = front

    def lost(
        self, worker: str, waiting: Iterable[Spare], unreached: Collection[str] = NOBODY
    ) -> AfterLoss:
        """Decide how the run goes on without this worker."""
        if (spare := take_spare(self.spares, waiting)) is not None:
            self._place(worker, spare, unreached)
            return Replace(spare)
        refused = None
        if not self._front.lost:
            if (plain := self.deployment.without_draft(worker)) is not None:
                self.deployment = plain
                return DecodePlainly()
            if self.deployment.redeal is not None and not self._front.done:
                try:
                    self.deployment = self.deployment.redeal(self.deployment, worker)
                except UserError as error:
                    refused = str(error)
                else:
                    return DealLayers()
        pipeline = self.deployment.pipeline_of(worker)
        if pipeline is None or self._front.done or not self._front.lose(pipeline):
            return EndRun(refused)
        return GiveUp(pipeline, refused)

    def back(
        self,
        returned: Collection[str],
        waiting: Sequence[Spare] = (),
        unreached: Collection[str] = NOBODY,
    ) -> DraftAgain | None:
        """Return the draft server that drafts again now, if one does: one at a time, and none once
        a pipeline was given up. Workers in ``returned`` are available again."""
        away = () if self._front.lost else sorted(self.deployment.plain)
        for draft in away:
            if draft in returned:
                self.deployment = self.deployment.with_draft(draft)
                return DraftAgain(draft, None)
            fitting = [each for each in waiting if each.address or draft not in unreached]
            if (spare := take_spare(self.spares, fitting)) is not None:
                self._place(draft, spare, unreached)
                return DraftAgain(draft, spare)
        return None

    def _place(self, worker: str, spare: Spare, unreached: Collection[str]) -> None:
        """Put a spare in this worker's place; on a reachable host, it drafts if that did."""
        if spare.address is not None:
            self.deployment = self.deployment.at_spare(worker, spare.address)
        if spare.address is not None or worker not in unreached:
            self.deployment = self.deployment.with_draft(worker)
