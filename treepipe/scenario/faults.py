"""What a scenario says of faults: which ones there are, how soon they are noticed, and what then.

Both worlds ask here when the next worker fails; what becomes of the requests is a rule of the core
(``core/recovery.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from treepipe.core.errors import UserError
from treepipe.core.failover import Spare
from treepipe.core.losses import FaultKind
from treepipe.files.section import ReadIf, Section
from treepipe.scenario.schema import WorkerAddress

DEFAULT_TIMEOUT_MS = 2000.0
"""How long a worker may be silent in a run."""
START_MS = 230.0
"""What starting five workers of small models took on two cores (``docs/faults.md``)."""
DEFAULT_READ_MIB_S = 3000.0
"""What a drive on four lanes of PCI Express 3.0 reads, which carry 3,756 MiB/s (8 GT/s, 128b/130b);
an assumption."""
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
    """A worker that fails."""

    worker: str = Field(description='a role, e.g. "draft0" or "pipeline0.stage2"')
    kind: FaultKind
    at_ms: Moment = Field(description="from the start of each run")
    for_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="a stop or a cut that is over after so long; else it lasts"
    )

    @model_validator(mode="after")
    def _comes_back(self) -> InjectedFault:
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
            Injected(each.worker, each.kind, each.at_ms, each.for_ms) for each in self.inject
        )
        named = self.spare_workers
        spares = self.spares if isinstance(self.spares, int) else len(named)
        return FaultPlan(self.timeout_ms, spares, injected=injected, spare_workers=named)


@dataclass(frozen=True, slots=True)
class Injected:
    """A worker that fails, for ever or for so long."""

    worker: str
    kind: FaultKind
    at_ms: float
    for_ms: float | None = None

    @property
    def over_ms(self) -> float | None:
        """When it is over by itself; None: never."""
        return None if self.for_ms is None else self.at_ms + self.for_ms


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What a deployment is started with of them; fields as in the scenario's section.

    Attributes:
        spares: how many.
        spare_workers: addresses of these; empty: a lost worker is replaced on its own host.
    """

    timeout_ms: float = DEFAULT_TIMEOUT_MS
    spares: int = 0
    restart_ms: float = START_MS
    injected: tuple[Injected, ...] = ()
    spare_workers: tuple[str, ...] = ()

    @property
    def all_spares(self) -> tuple[Spare, ...]:
        """The spares of a run, the one to be used first at the front."""
        named = tuple(Spare(address) for address in self.spare_workers)
        return named or (Spare(),) * self.spares

    def planned(self) -> Iterator[Injected]:
        """The faults of a run, in the order of time."""
        return iter(sorted(self.injected, key=lambda each: each.at_ms))
