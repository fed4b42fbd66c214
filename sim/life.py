"""The roles and links of a deployment, from when they start until they end or a worker is lost.

Law of this file: who is mute acts on nobody; what it was at goes on without a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np

from treepipe.core.messages import Flight, Message
from treepipe.core.recovery import Committed
from treepipe.core.requests import RequestTrace, numbered
from treepipe.physics.transfers import Port
from treepipe.results.trace import Kind, Span, Trace
from treepipe.scenario.deployment import Deployment
from treepipe.sim.acceptance import AcceptanceSource
from treepipe.sim.clock import Clock
from treepipe.sim.device import StoppedPlace, places
from treepipe.sim.link import Claim, Ports, SimulatedLink, Traffic
from treepipe.sim.roles import Answers, DraftServer, StageRole, World


class FrontOffice(Protocol):
    """Whom draft servers tell of requests."""

    clock: Clock
    records: bool  # whether what happens is noted, and not only what comes of it
    trace: Trace

    def finished(self, request: RequestTrace) -> None: ...

    def told(self, said: Committed) -> None: ...


class Life(World):
    """One life of a deployment's roles.

    Attributes:
        mute: names of roles that have failed.
        stopped: places of those that may stand still for a while.
    """

    def __init__(
        self, office: FrontOffice, deployment: Deployment, source: AcceptanceSource
    ) -> None:
        self.clock, self.records, self.deployment = office.clock, office.records, deployment
        self.mute: set[str] = set()
        self._office, self._trace = office, office.trace
        self._row_bytes = {name: deployment.sent_row_bytes(name) for name in deployment.devices}
        staged = {stage.name for stages in deployment.pipelines for stage in stages}
        machines = {name: deployment.machine(name) for name in deployment.devices}
        at = places(self.clock, machines, staged, deployment.seed)
        passing = {each.worker for each in deployment.faults.injected if each.for_ms is not None}
        self.stopped = {n: StoppedPlace(self.clock, at[n]) for n in passing & at.keys()}
        at |= self.stopped
        self.drafts = [
            DraftServer(self, deployment, number, source, at[placed.name])
            for number, placed in enumerate(deployment.drafts)
        ]
        self.stages = [
            StageRole(self, deployment, pipeline, number, at[placed.name])
            for pipeline, stages in enumerate(deployment.pipelines)
            for number, placed in enumerate(stages, start=1)
        ]
        self._links = self._connect()

    @property
    def roles(self) -> list[DraftServer | StageRole]:
        """All roles, in the order of the deployment's devices."""
        return [*self.drafts, *self.stages]

    def send(self, sender: str, receivers: Sequence[str], message: Message) -> None:
        if sender in self.mute:
            return
        size = message.size_bytes(self._row_bytes[sender])
        links = self._links[self.deployment.unscheduled(message)]
        for receiver in receivers:
            links[sender, receiver].send(message, size)

    def size(self, sender: str, message: Message) -> int:
        """Bytes, as links count them."""
        return message.size_bytes(self._row_bytes[sender])

    def note(self, device: str, kind: Kind, start_ms: float, session: int, tokens: int) -> None:
        if device in self.mute:
            return
        self.clock.spent(device, kind, start_ms)
        if self.records:
            self._span(device, kind, start_ms, self.clock.now, session, tokens)

    def verified(self, flight: Flight) -> Answers:
        return self.drafts[flight.draft].answers(flight)

    def finished(self, draft: str, request: RequestTrace) -> None:
        if draft not in self.mute:
            self._office.finished(request)

    def told(self, draft: str, said: Committed) -> None:
        if draft not in self.mute:
            self._office.told(said)

    def _note_transfer(self, device: str, message: Message, begin: float, due: float) -> None:
        rows = message.rows
        self._span(device, "transfer", begin, due, message.session, rows)

    def _span(
        self, device: str, kind: Kind, start: float, end: float, session: int, tokens: int
    ) -> None:
        self._trace.spans.append(Span(device, kind, start, end, numbered(session)[1], tokens))

    def _connect(self) -> dict[bool, dict[tuple[str, str], SimulatedLink[Message]]]:
        """One for each of the deployment's connections, with a stream of random numbers each; a
        second one for what passes by a central scheduler."""
        deployment, pairs = self.deployment, self.deployment.connections
        roles = dict(zip(deployment.devices, self.roles, strict=True))
        seeds = np.random.SeedSequence(deployment.seed).spawn(2 * len(pairs))
        traffic, found = (
            Traffic(self.clock),
            dict[bool, dict[tuple[str, str], SimulatedLink[Message]]](),
        )
        sending, receiving = ({name: Port() for name in roles} for _ in range(2))
        for unscheduled in (False, True) if deployment.central_transfers else (False,):
            links = found[unscheduled] = {}
            for pair in pairs:
                held, receiver = deployment.held(*pair, unscheduled=unscheduled), roles[pair[1]]
                until_delivered = deployment.central_transfers and not unscheduled
                local = deployment.is_local(*pair)
                links[pair] = SimulatedLink(
                    self.clock,
                    deployment.link_for(*pair, unscheduled=unscheduled),
                    partial(receiver.hear, self._row_bytes[pair[0]])
                    if deployment.machine(pair[1]).costs
                    else receiver.deliver,
                    np.random.default_rng(seeds.pop(0)),
                    Claim(traffic, held, until_delivered) if held else None,
                    partial(self._note_transfer, "->".join(pair)) if self.records else None,
                    "->".join(pair),
                    None if local else Ports(sending[pair[0]], receiving[pair[1]]),
                )
        return found
