"""The roles and links of a deployment, from their start until they end or a worker is lost.

A role that has failed affects no other role; its work goes on without a trace.
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
from treepipe.results.trace import Kind, Span
from treepipe.scenario.deployment import Deployment
from treepipe.sim.acceptance import AcceptanceSource
from treepipe.sim.clock import Clock
from treepipe.sim.device import StoppedPlace, places
from treepipe.sim.link import Claim, Ports, SimulatedLink, Traffic
from treepipe.sim.roles import Answers, DraftServer, LevelRole, Role, StageRole, World


class RequestListener(Protocol):
    """The interface of the simulation to draft servers."""

    clock: Clock
    records: bool  # whether spans are noted
    spans: list[Span]

    def finished(self, request: RequestTrace) -> None: ...

    def committed(self, report: Committed) -> None: ...


class RunningSystem(World):
    """The roles of a deployment from one start to their end.

    Attributes:
        roles: all of them, by name.
        failed: names of roles that have failed.
        stopped: places of roles that may stand still for a while.
    """

    def __init__(
        self, listener: RequestListener, deployment: Deployment, source: AcceptanceSource
    ) -> None:
        self.clock, self.records = listener.clock, listener.records
        self.deployment = deployment
        self.failed: set[str] = set()
        self._listener, self._spans = listener, listener.spans
        staged = {stage.name for stages in deployment.roles.pipelines for stage in stages}
        machines = {name: deployment.roles.machine(name) for name in deployment.roles.devices}
        cancels = deployment.service.cancels
        at = places(self.clock, machines, staged, deployment.seed, cancels=cancels)
        passing = {each.worker for each in deployment.faults.injected if each.for_ms is not None}
        self.stopped = {n: StoppedPlace(self.clock, at[n]) for n in passing & at.keys()}
        at |= self.stopped
        self.drafts = [
            self.clock.kind(DraftServer)(self, deployment, number, source, at[placed.name])
            for number, placed in enumerate(deployment.roles.heads)
        ]
        served = len(self.drafts)
        levels = [
            LevelRole(self, deployment, number, source, at[placed.name])
            for number, placed in enumerate(deployment.roles.drafts[served:], start=served)
        ]
        stages = [
            self.clock.kind(StageRole)(self, deployment, pipeline, number, at[placed.name])
            for pipeline, stages in enumerate(deployment.roles.pipelines)
            for number, placed in enumerate(stages, start=1)
        ]
        self.roles: dict[str, Role] = {role.name: role for role in (*self.drafts, *levels, *stages)}
        self._ports = {name: Ports(Port(), Port()) for name in deployment.roles.devices}
        self._links = self._connect()

    def send(self, sender: str, receivers: Sequence[str], message: Message) -> None:
        if sender in self.failed:
            return
        size = self.size(sender, message)
        links = self._links[self.deployment.wiring.unscheduled(message)]
        for receiver in receivers:
            links[sender, receiver].send(message, size)

    def size(self, sender: str, message: Message) -> int:
        return self.deployment.roles.size_bytes(sender, message)

    def note(self, device: str, kind: Kind, start_ms: float, session: int, tokens: int) -> None:
        if device in self.failed:
            return
        self.clock.spent(device, kind, start_ms)
        if self.records:
            self._span(device, kind, start_ms, self.clock.now, session, tokens)

    def verified(self, flight: Flight) -> Answers:
        return self.drafts[flight.draft].answers(flight)

    def finished(self, draft: str, request: RequestTrace) -> None:
        if draft not in self.failed:
            self._listener.finished(request)

    def committed(self, draft: str, report: Committed) -> None:
        if draft not in self.failed:
            self._listener.committed(report)

    def _note_transfer(self, link: str, message: Message, begin: float, due: float) -> None:
        self._span(link, "transfer", begin, due, message.session, message.rows)

    def _span(
        self, device: str, kind: Kind, start: float, end: float, session: int, tokens: int
    ) -> None:
        self._spans.append(Span(device, kind, start, end, numbered(session)[1], tokens))

    def _connect(self) -> dict[bool, dict[tuple[str, str], SimulatedLink[Message]]]:
        """Make a link for each of the deployment's connections, with its own stream of random
        numbers, and a second one for messages that bypass a central scheduler."""
        pairs = self.deployment.roles.connections
        seeds = iter(np.random.SeedSequence(self.deployment.seed).spawn(2 * len(pairs)))
        traffic = self.clock.kind(Traffic)(self.clock)
        return {
            unscheduled: {
                pair: self._link(pair, np.random.default_rng(next(seeds)), traffic, unscheduled)
                for pair in pairs
            }
            for unscheduled in (
                [False, True] if self.deployment.wiring.central_transfers else [False]
            )
        }

    def _link(
        self, pair: tuple[str, str], rng: np.random.Generator, traffic: Traffic, unscheduled: bool
    ) -> SimulatedLink[Message]:
        deployment, (sender, receiver), name = self.deployment, pair, "->".join(pair)
        role = self.roles[receiver]
        heard = deployment.roles.machine(receiver).costs is not None
        held = deployment.held(*pair, unscheduled=unscheduled)
        until_delivered = deployment.wiring.central_transfers and not unscheduled
        ports = Ports(self._ports[sender].sender, self._ports[receiver].receiver)
        return self.clock.kind(SimulatedLink)(
            self.clock,
            deployment.link_for(*pair, unscheduled=unscheduled),
            partial(role.hear, sender) if heard else role.deliver,
            rng,
            Claim(traffic, held, until_delivered) if held else None,
            partial(self._note_transfer, name) if self.records else None,
            name,
            None if deployment.roles.is_local(*pair) else ports,
        )
