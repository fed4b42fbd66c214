"""The simulated world: the same schedules and desks as executed, with times from profiles.

Law of this file: it decides nothing. What is computed, pruned and fed follows from the schedules
and the desks; here messages move, and ``roles.py`` lets time pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from simpy.core import EmptySchedule

from treepipe.core.errors import RunError
from treepipe.core.messages import Flight, Message, Verified
from treepipe.core.requests import Assignment, RequestTrace, numbered
from treepipe.results.critical_path import ARRIVALS, edges
from treepipe.results.trace import Kind, Span, Trace
from treepipe.scenario.deployment import Deployment, message_bytes
from treepipe.sim.acceptance import AcceptanceSource
from treepipe.sim.causes import ListeningClock, critical_path
from treepipe.sim.clock import Clock
from treepipe.sim.device import places
from treepipe.sim.link import Claim, SimulatedLink, Traffic
from treepipe.sim.roles import Answers, DraftServer, StageRole, World


class Simulation(World):
    """One run of a deployment: a closed loop of requests, or requests that arrive."""

    def __init__(
        self,
        deployment: Deployment,
        source: AcceptanceSource,
        record_spans: bool,
        record_paths: bool = False,
    ) -> None:
        self.clock = ListeningClock() if record_paths else Clock()
        self.deployment = deployment
        self._front = deployment.front_desk()
        self.trace = Trace(
            deployment.devices,
            machines=deployment.machines,
            requests=self._front.over,
            paged=deployment.serving.cache == "paged",
            slo=deployment.serving.slo,
        )
        self.records = record_spans or record_paths  # paths are made of what is noted
        self._row_bytes = {name: deployment.sent_row_bytes(name) for name in deployment.devices}
        staged = {stage.name for stages in deployment.pipelines for stage in stages}
        machines = {name: deployment.machine(name) for name in deployment.devices}
        at = places(self.clock, machines, staged, deployment.seed)
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
        self._over = False

    def run(self) -> Trace:
        """Raises ``RunError`` if everything waits and nothing moves."""
        self._open(self._front.start(self.clock.now))
        self._await_arrival()
        try:
            while not self._over:
                self.clock.step()
        except EmptySchedule:
            waiting = [role.state for role in self._roles]
            now = self.clock.now
            raise RunError(f"deadlock at {now:.3f} ms: {'; '.join(waiting)}") from None
        if self.records:
            self.trace.turns += [turn for draft in self.drafts for turn in draft.turns]
        self.trace.requests.sort(key=lambda request: request.session)
        return self.trace

    @property
    def _roles(self) -> list[DraftServer | StageRole]:
        """All roles, in the order of the deployment's devices."""
        return [*self.drafts, *self.stages]

    @property
    def events(self) -> int:
        """Events of the clock so far."""
        return self.clock.events

    def send(self, sender: str, receivers: Sequence[str], message: Message) -> None:
        size, links = message_bytes(message, self._row_bytes[sender]), self._links
        for receiver in receivers:
            links[sender, receiver].send(message, size)

    def size(self, sender: str, message: Message) -> int:
        """Bytes, as links count them."""
        return message_bytes(message, self._row_bytes[sender])

    def note(self, device: str, kind: Kind, start_ms: float, session: int, tokens: int) -> None:
        self.clock.spent(device, kind, start_ms)
        if self.records:
            self._span(device, kind, start_ms, self.clock.now, session, tokens)

    def verified(self, flight: Flight) -> Answers:
        return self.drafts[flight.draft].answers(flight)

    def finished(self, request: RequestTrace) -> None:
        if isinstance(self.clock, ListeningClock):
            self.trace.paths += critical_path(self.clock.cause, request.session, edges(request))
        self._open(self._front.finished(request))

    def _await_arrival(self) -> None:
        at = self._front.next_arrival_ms
        if at is not None:
            now = self.clock.now
            self.clock.after(max(0.0, at - now), partial(self._arrive, now))

    def _arrive(self, since_ms: float, _: object) -> None:
        self.clock.spent(ARRIVALS, "wait", since_ms)
        self._open(self._front.arrive())
        self._await_arrival()

    def _open(self, assignments: Iterable[Assignment]) -> None:
        for assignment in assignments:
            assert assignment.draft is not None  # it is served
            self.drafts[assignment.draft].open(assignment)
        if self._front.done:
            self.clock.after(0, self._end)

    def _end(self, _: object) -> None:
        self._over = True

    def _note_transfer(self, device: str, message: Message, begin: float, due: float) -> None:
        rows = message.rows if isinstance(message, Flight | Verified) else 0
        self._span(device, "transfer", begin, due, message.session, rows)

    def _span(
        self, device: str, kind: Kind, start: float, end: float, session: int, tokens: int
    ) -> None:
        self.trace.spans.append(Span(device, kind, start, end, numbered(session)[1], tokens))

    def _connect(self) -> dict[tuple[str, str], SimulatedLink[Message]]:
        """One for each of the deployment's connections, with a stream of random numbers each."""
        deployment, pairs = self.deployment, self.deployment.connections
        roles = dict(zip(deployment.devices, self._roles, strict=True))
        seeds = np.random.SeedSequence(deployment.seed).spawn(len(pairs))
        traffic, links = Traffic(self.clock), dict[tuple[str, str], SimulatedLink[Message]]()
        for pair, seed in zip(pairs, seeds, strict=True):
            held, receiver = deployment.held(*pair), roles[pair[1]]
            links[pair] = SimulatedLink(
                self.clock,
                deployment.link(*pair),
                partial(receiver.hear, self._row_bytes[pair[0]])
                if deployment.machine(pair[1]).costs
                else receiver.deliver,
                np.random.default_rng(seed),
                Claim(traffic, held, deployment.central_transfers) if held else None,
                partial(self._note_transfer, "->".join(pair)) if self.records else None,
                "->".join(pair),
            )
        return links


def simulate(
    deployment: Deployment,
    source: AcceptanceSource,
    *,
    record_spans: bool = True,
    record_paths: bool = False,
) -> Trace:
    """Simulate a deployment once; the same deployment and source seed give an equal trace.

    Args:
        record_spans: False leaves the trace's spans empty (then no utilization is known).
        record_paths: whether the trace tells of each request's critical path.
    """
    return Simulation(deployment, source, record_spans, record_paths).run()
