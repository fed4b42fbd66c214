"""The settings of a worker process, which the coordinator sends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from treepipe.executor.models.source_settings import SourceSettings
from treepipe.scenario.deployment import SWITCH, Deployment, Placed
from treepipe.scenario.faults import DEFAULT_TIMEOUT_MS

WorkerKind: TypeAlias = Literal["draft", "level", "stage", "switch"]
"""A "level" is a draft that drafts for another draft."""


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """The settings of a worker process.

    Attributes:
        placed: its name, layers and (for emulation) service times.
        number: draft server's number from 0, or stage's number from 1 along its pipeline.
        pipeline: the stage's pipeline, None for the other kinds.
        target: folder of the target's checkpoint.
        source: a draft server's draft.
        capacity: cache entries per session.
        port: 0 for any free one.
        emulate: pad work and delay messages to the profiles; "devices": pad work alone.
        timeout_ms: longest allowed silence of a worker.
        vocabulary: size of the target's vocabulary.
        token: the run's secret, known only to its workers.
    """

    placed: Placed
    kind: WorkerKind
    number: int
    pipeline: int | None
    deployment: Deployment
    target: Path
    source: SourceSettings
    capacity: int
    port: int = 0
    emulate: bool | Literal["devices"] = False
    timeout_ms: float = DEFAULT_TIMEOUT_MS
    vocabulary: int = 2**31
    token: bytes = field(default=b"", repr=False)

    @property
    def travelling(self) -> RoleSettings:
        """These settings without fields that no worker reads: prompts (each comes with its
        request), hosts' costs, and estimates."""
        deployment = self.deployment
        requests = tuple(replace(request, prompt=()) for request in deployment.requests)
        machines = tuple(replace(machine, costs=None) for machine in deployment.roles.machines)
        kept = replace(
            deployment,
            roles=replace(deployment.roles, machines=machines),
            requests=requests,
            estimates={},
            warnings=(),
        )
        return replace(self, deployment=kept)

    def at(self, worker: str) -> RoleSettings:
        return replace(self, placed=replace(self.placed, worker=worker))

    @property
    def delays(self) -> bool:
        """Whether messages take the time of the scenario's links, not the network's own."""
        return self.emulate is True

    @property
    def reads_target(self) -> bool:
        if self.kind == "draft":
            return self.deployment.roles.ends == "draft" or self.source.section.drafter.borrows
        return self.kind == "stage"

    @property
    def models(self) -> tuple[Path, ...]:
        """Folders of the checkpoints that the worker reads: the target's, and a draft's own."""
        own = self.source.model if self.kind in ("draft", "level") else None
        read = self.target if self.reads_target else None
        return tuple(each for each in (read, own) if each is not None)

    def with_copies(self, folders: Sequence[Path]) -> RoleSettings:
        """Replace ``models`` by these folders, in the same order."""
        found: dict[Path | None, Path] = dict(zip(self.models, folders, strict=True))
        source = replace(self.source, model=found.get(self.source.model, self.source.model))
        return replace(self, target=found.get(self.target, self.target), source=source)

    def as_switch(self) -> RoleSettings:
        placed = Placed(SWITCH, self.placed.times)
        return replace(self, placed=placed, kind="switch", number=0, pipeline=None, port=0)
