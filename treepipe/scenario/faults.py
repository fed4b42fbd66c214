"""What a scenario says of faults: which ones there are, how soon they are noticed, and what then.

Both worlds ask here when the next worker fails; what becomes of the requests is a rule of the core
(``core/recovery.py``).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import expm1, log1p
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator

from treepipe.core.errors import UserError
from treepipe.core.recovery import FaultKind
from treepipe.files.section import ReadIf, Section
from treepipe.scenario.schema import WorkerAddress

DEFAULT_TIMEOUT_MS = 2000.0
"""How long a worker may be silent in a run."""
START_MS = 230.0
"""What starting five workers of small models took on two cores (``docs/faults.md``)."""
DEFAULT_READ_MIB_S = 3000.0
"""What a drive on four lanes of PCI Express 3.0 reads, which carry 3,756 MiB/s (8 GT/s, 128b/130b);
an assumption."""
MS_PER_HOUR = 3.6e6
MOST_SPARES = 1000
Moment = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _listed(given: Any) -> bool:
    return isinstance(given, list | tuple)


Spares: TypeAlias = Annotated[
    Annotated[Annotated[int, Field(ge=0, le=1000)], Tag("spares-count")]
    | Annotated[tuple[WorkerAddress, ...], Tag("spares-named")],
    Discriminator(lambda given: "spares-" + ("named" if _listed(given) else "count")),
]
"""How many there are, or the addresses of their workers."""


class InjectedFault(Section):
    """A worker that fails, once or now and then."""

    worker: str = Field(description='a role, e.g. "draft0" or "pipeline0.stage2"')
    kind: FaultKind
    at_ms: Moment | None = Field(None, description="from the start of each run")
    rate_per_hour: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="mean; times between faults are exponential"
    )

    for_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="a stop or a cut that is over after so long; else it lasts"
    )

    @model_validator(mode="after")
    def _happens(self) -> InjectedFault:
        if (self.at_ms is None) == (self.rate_per_hour is None):
            raise ValueError("keys at_ms and rate_per_hour: a fault has one of them")
        if self.for_ms is not None and self.kind == "kill":
            raise ValueError("key for_ms: a worker that was killed does not come back")
        return self


class FaultsSection(Section):
    """Workers that fail. ``[[faults]]`` is short for ``[[faults.inject]]``."""

    timeout_ms: Annotated[float, Field(ge=1000, allow_inf_nan=False)] = Field(
        DEFAULT_TIMEOUT_MS, description="a worker that is silent for so long is given up"
    )
    spares: Spares = Field(
        0,
        description="lost workers that are replaced, in each run; or HOST:PORT of the workers that "
        "take their places",
    )
    redeal_layers: bool = Field(
        False, description="with no spare left, a lost stage's layers go to its pipeline's others"
    )
    plain_without_draft: Annotated[bool, ReadIf("drafted")] = Field(
        True, description="with no spare left, a lost draft's requests are decoded plainly"
    )
    restart_ms: Annotated[Moment | None, ReadIf("simulation")] = Field(
        None, description="simulator: starting all workers, models included"
    )
    read_mib_s: Annotated[
        float, Field(gt=0, allow_inf_nan=False), ReadIf("simulation"), ReadIf("restart unknown")
    ] = Field(
        DEFAULT_READ_MIB_S,
        description="simulator: a host's rate of reading weights, where no restart_ms is known",
    )
    inject: tuple[InjectedFault, ...] = Field((), description="what fails, and when")

    @property
    def spare_workers(self) -> tuple[str, ...]:
        """Addresses of the spares; none where there is but a number of them."""
        return () if isinstance(self.spares, int) else self.spares

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return {"inject": given} if _listed(given) else given

    def resolved(self, roles: Collection[str], path: object) -> FaultPlan:
        """The plan, but for what a restart takes where that is not given.

        Raises ``UserError`` if it names a worker that there is none of.
        """
        for index, fault in enumerate(self.inject):
            if fault.worker not in roles:
                raise UserError(
                    f"{path}: key faults.{index}.worker = {fault.worker!r}: there is no such "
                    f"worker; there are {', '.join(roles)}"
                )
        injected = tuple(
            Injected(each.worker, each.kind, each.at_ms, each.rate_per_hour, each.for_ms)
            for each in self.inject
        )
        named = self.spare_workers
        spares = self.spares if isinstance(self.spares, int) else len(named)
        return FaultPlan(self.timeout_ms, spares, injected=injected, spare_workers=named)


@dataclass(frozen=True, slots=True)
class Injected:
    """A worker that fails at a time, or at a rate; of ``at_ms`` and ``rate_per_hour`` one is
    None."""

    worker: str
    kind: FaultKind
    at_ms: float | None = None
    rate_per_hour: float | None = None
    for_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A worker is to fail, for ever or for so long."""

    at_ms: float
    worker: str
    kind: FaultKind
    for_ms: float | None = None

    @property
    def over_ms(self) -> float | None:
        """When it is over by itself; None: never."""
        return None if self.for_ms is None else self.at_ms + self.for_ms


@dataclass(frozen=True, slots=True)
class Away:
    """A draft server that is away when some runs begin, without a spare.

    Attributes:
        odds: of that, to a beginning with all draft servers there.
        most_ms: it is decoded plainly for so long at most; any moment of it may be the beginning.
    """

    draft: str
    odds: float
    most_ms: float


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What a deployment is started with of them; fields as in the scenario's section.

    Attributes:
        spares: how many.
        spare_workers: addresses of these; empty: a lost worker is replaced on its own host.
        first_within_ms: the first fault at a rate comes before this time; None: whenever it does.
        away: each run begins with one of these draft servers away; empty: with all there.
    """

    timeout_ms: float = DEFAULT_TIMEOUT_MS
    spares: int = 0
    restart_ms: float = START_MS
    injected: tuple[Injected, ...] = ()
    spare_workers: tuple[str, ...] = ()
    first_within_ms: float | None = None
    away: tuple[Away, ...] = ()

    @property
    def rate_per_ms(self) -> float:
        """The rate of all faults at a rate together."""
        return sum(each.rate_per_hour or 0.0 for each in self.injected) / MS_PER_HOUR

    def planned(self, seed: int) -> Iterator[Planned]:
        """All faults of a run, in the order of time; those at a rate have no end."""
        count = len(self.injected)
        *seeds, first_seed = np.random.SeedSequence([seed, count]).spawn(count + 1)
        first = [] if self.first_within_ms is None else [self._first(first_seed)]
        since = first[0].at_ms if first else 0.0  # exponential times do not remember
        streams = [_times(*each, since) for each in zip(self.injected, seeds, strict=True)]
        return heapq.merge(first, *streams, key=lambda each: each.at_ms)

    def away_at_first(self, seed: int) -> tuple[str, float] | None:
        """The draft server that is away when a run begins, and when it is back; None: none is."""
        if not self.away:
            return None
        rng, odds = np.random.default_rng([seed, *b"away"]), np.array([e.odds for e in self.away])
        lost = self.away[rng.choice(len(odds), p=odds / odds.sum())]
        return lost.draft, float(rng.uniform(0.0, lost.most_ms))

    def _first(self, seed: np.random.SeedSequence) -> Planned:
        """The first fault at a rate of a run that has one in time: whose it is does not depend on
        when it is, which is exponential up to the end of that time."""
        assert self.first_within_ms is not None
        rng = np.random.default_rng(seed)
        within = -expm1(-self.rate_per_ms * self.first_within_ms)
        at_ms = -log1p(-rng.random() * within) / self.rate_per_ms
        rates = np.array([each.rate_per_hour or 0.0 for each in self.injected])
        fault = self.injected[rng.choice(len(rates), p=rates / rates.sum())]
        return Planned(at_ms, fault.worker, fault.kind, fault.for_ms)


def _times(fault: Injected, seed: np.random.SeedSequence, since_ms: float) -> Iterator[Planned]:
    if fault.at_ms is not None:
        yield Planned(fault.at_ms, fault.worker, fault.kind, fault.for_ms)
        return
    assert fault.rate_per_hour is not None  # one of them is given
    rng, at_ms = np.random.default_rng(seed), since_ms
    while True:
        at_ms += float(rng.exponential(MS_PER_HOUR / fault.rate_per_hour))
        yield Planned(at_ms, fault.worker, fault.kind, fault.for_ms)
