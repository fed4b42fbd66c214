"""The faults of a scenario: which workers fail, how soon that is noticed, and what follows.

Both worlds ask here when the next worker fails; ``core/recovery.py`` decides about its requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from treepipe.core.errors import UserError
from treepipe.core.failover import FaultKind, Spare
from treepipe.files.section import ReadIf, Section
from treepipe.scenario.schema import WorkerAddress

DEFAULT_TIMEOUT_MS = 2000.0
"""Longest silence of a worker in a run before it counts as lost."""
START_MS = 230.0
"""Time to start five workers of small models on two cores (``docs/faults.md``)."""
ASSUMED_READ_MIB_S = 3000.0
"""Read rate of a drive on four lanes of PCI Express 3.0, which carry 3,756 MiB/s (8 GT/s,
128b/130b); an assumption."""
Moment = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _listed(given: Any) -> bool:
    return isinstance(given, list | tuple)


Spares: TypeAlias = Annotated[
    Annotated[Annotated[int, Field(ge=0, le=1000)], Tag("spares-count")]
    | Annotated[tuple[WorkerAddress, ...], Tag("spares-named")],
    Discriminator(lambda given: "spares-" + ("named" if _listed(given) else "count")),
]
"""Number of spares, or the addresses of their workers."""


class InjectedFault(Section):
    """A worker that fails."""

    worker: str = Field(description="the role that fails, e.g. 'draft0' or 'pipeline0.stage2'")
    kind: FaultKind = Field(
        description="kill: it ends; stop: it stands still; cut: its links close unnoticed"
    )
    at_ms: Moment = Field(description="when it fails, from the start of each run")
    for_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="duration of a stop or a cut; default: it lasts"
    )

    @model_validator(mode="after")
    def _comes_back(self) -> InjectedFault:
        if self.for_ms is not None and self.kind == "kill":
            raise ValueError("key for_ms: a worker that was killed does not come back")
        return self


class FaultsSection(Section):
    """Failures of workers. ``[[faults]]`` is short for ``[[faults.inject]]``."""

    timeout_ms: Annotated[float, Field(ge=1000, allow_inf_nan=False)] = Field(
        DEFAULT_TIMEOUT_MS,
        description="silence after which a worker is given up, and a run in which every worker "
        "waits",
    )
    spares: Spares = Field(
        0,
        description="how many lost workers are replaced in each run; or HOST:PORT of the workers "
        "that replace them, in order",
    )
    restart_ms: Annotated[Moment | None, ReadIf("simulation")] = Field(
        None,
        description="time to start all workers and read their models again; default: the slowest "
        "host profile's, by the weights that it reads, else derived from its devices' read_mib_s",
    )
    inject: tuple[InjectedFault, ...] = Field((), description="the workers that fail")

    @property
    def spare_workers(self) -> tuple[str, ...]:
        """Addresses of the spares; empty where only their number is given."""
        return () if isinstance(self.spares, int) else self.spares

    def resolved(self, roles: Collection[str], path: object) -> Faults:
        """Resolve the faults, except the time of a restart where that is not given.

        Raises ``UserError`` if the section names a worker that does not exist.
        """
        for index, fault in enumerate(self.inject):
            if fault.worker not in roles:
                raise UserError(
                    f"{path}: key faults.{index}.worker = {fault.worker!r}: there is no such "
                    f"worker; there are {', '.join(roles)}"
                )
        injected = tuple(
            Injected(each.worker, each.kind, each.at_ms, each.for_ms) for each in self.inject
        )
        named = self.spare_workers
        spares = self.spares if isinstance(self.spares, int) else len(named)
        return Faults(self.timeout_ms, spares, injected=injected, spare_workers=named)


@dataclass(frozen=True, slots=True)
class Injected:
    """A failure of a worker, permanent or for a given time."""

    worker: str
    kind: FaultKind
    at_ms: float
    for_ms: float | None = None

    @property
    def over_ms(self) -> float | None:
        """Time at which the failure ends by itself; None: never."""
        return None if self.for_ms is None else self.at_ms + self.for_ms


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a deployment, and the response to them; fields as in the scenario's section.

    Attributes:
        spares: number of spare workers.
        spare_workers: their addresses; empty: a lost worker is replaced on its own host.
    """

    timeout_ms: float = DEFAULT_TIMEOUT_MS
    spares: int = 0
    restart_ms: float = START_MS
    injected: tuple[Injected, ...] = ()
    spare_workers: tuple[str, ...] = ()

    @property
    def all_spares(self) -> tuple[Spare, ...]:
        """The spares of a run, the next one to use first."""
        named = tuple(Spare(address) for address in self.spare_workers)
        return named or (Spare(),) * self.spares

    def planned(self) -> Iterator[Injected]:
        """Yield the faults of a run, in the order of time."""
        return iter(sorted(self.injected, key=lambda each: each.at_ms))
