"""The simulated world: the same schedules and desks as executed, with times from profiles.

Law of this file: it decides nothing. What is computed, pruned and fed follows from the schedules
and the desks; here messages move, and ``roles.py`` lets time pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import simpy

from treepipe.errors import RunError
from treepipe.messages import Flight, Message
from treepipe.plan import Plan, message_bytes
from treepipe.schedules.shared_draft import Assignment
from treepipe.sim.acceptance import AcceptanceSource
from treepipe.sim.link import CentralScheduler, Link, Mailbox
from treepipe.sim.roles import Host, Stage, World
from treepipe.trace import Kind, RequestTrace, Span, Trace


class Simulation(World):
    """One run of a plan: a closed loop of requests, or requests that arrive."""

    def __init__(self, plan: Plan, source: AcceptanceSource, record_spans: bool) -> None:
        self.env = simpy.Environment()
        self.plan = plan
        self.trace = Trace(plan.devices)
        self._record_spans = record_spans
        self._row_bytes = plan.row_bytes
        self._mailboxes: dict[str, Mailbox[Message | None]] = {
            name: Mailbox(self.env) for name in plan.devices
        }
        self._links = self._connect()
        self.hosts = [Host(self, plan, draft, source) for draft in range(len(plan.drafts))]
        self.stages = [
            Stage(self, plan, pipeline, number)
            for pipeline, stages in enumerate(plan.pipelines)
            for number in range(1, len(stages) + 1)
        ]
        self._dispatcher = plan.dispatcher()
        self._done = self.env.event()

    def run(self) -> Trace:
        """Raises ``RunError`` if everything waits and nothing moves."""
        roles: list[Stage | Host] = [*self.hosts, *self.stages]
        processes = [self.env.process(role.serve()) for role in roles]
        self._assign(self._dispatcher.start(self.env.now))
        self._await_arrival()
        try:
            self.env.run(until=self._done)
        except RuntimeError:
            if not all(process.is_alive for process in processes):
                raise  # a role's own, not SimPy's complaint that the queue ran empty
            waiting = [role.state for role in roles]
            raise RunError(f"deadlock at {self.env.now:.3f} ms: {'; '.join(waiting)}") from None
        if self._record_spans:
            self.trace.turns += [turn for host in self.hosts for turn in host.turns]
        self.trace.requests.sort(key=lambda request: request.session)
        return self.trace

    @property
    def events(self) -> int:
        """Events processed so far (SimPy numbers each one it schedules)."""
        number: int = next(self.env._eid)
        return number

    def inbox(self, name: str) -> Mailbox[Message | None]:
        return self._mailboxes[name]

    def send(self, sender: str, receiver: str, message: Message) -> None:
        size = message_bytes(message, self._row_bytes)
        sent, due = self._links[sender, receiver].send(message, size)
        if self._record_spans:
            rows = message.rows if isinstance(message, Flight) else 0
            self._span(f"{sender}->{receiver}", "transfer", sent, due, message.session, rows)

    def note(self, device: str, kind: Kind, start_ms: float, session: int, tokens: int) -> None:
        if self._record_spans:
            self._span(device, kind, start_ms, self.env.now, session, tokens)

    def finished(self, request: RequestTrace) -> None:
        self.trace.requests.append(request)
        self._assign(self._dispatcher.finished(request.session - 1, self.env.now))

    def _await_arrival(self) -> None:
        at = self._dispatcher.next_arrival_ms
        if at is not None:
            self.env.timeout(max(0.0, at - self.env.now)).callbacks.append(self._arrive)

    def _arrive(self, _: object) -> None:
        self._assign(self._dispatcher.arrive())
        self._await_arrival()

    def _assign(self, assignments: Iterable[Assignment]) -> None:
        for assignment in assignments:
            session = assignment.request + 1
            if assignment.draft is None:
                spec = self.plan.requests[assignment.request]
                refused = RequestTrace.refused(session, len(spec.prompt), assignment.asked_ms)
                self.trace.requests.append(refused)
            else:
                self.hosts[assignment.draft].open(session, assignment)
        if self._dispatcher.done and not self._done.triggered:
            self._done.succeed()

    def _span(
        self, device: str, kind: Kind, start: float, end: float, session: int, tokens: int
    ) -> None:
        self.trace.spans.append(Span(device, kind, start, end, session, tokens))

    def _connect(self) -> dict[tuple[str, str], Link[Message | None]]:
        """Drafts to every stage, each stage to the next, the last ones back; one stream each."""
        plan, pairs = self.plan, list[tuple[str, str]]()
        drafts = [draft.name for draft in plan.drafts]
        for placed in plan.pipelines:
            stages = [stage.name for stage in placed]
            pairs += [(draft, stage) for draft in drafts for stage in stages]
            pairs += itertools.pairwise(stages)
            pairs += [(stages[-1], draft) for draft in drafts]
        seeds = np.random.SeedSequence(plan.seed).spawn(len(pairs))
        central = CentralScheduler(self.env) if plan.central_transfers else None
        return {
            pair: Link(
                self.env,
                plan.link(*pair),
                self._mailboxes[pair[1]].put,
                np.random.default_rng(seed),
                (central, pair) if central is not None else None,
            )
            for pair, seed in zip(pairs, seeds, strict=True)
        }


def simulate(plan: Plan, source: AcceptanceSource, *, record_spans: bool = True) -> Trace:
    """Simulate a plan once; the same plan and source seed give an equal trace.

    Args:
        record_spans: False leaves the trace's spans empty (then no utilization is known).
    """
    return Simulation(plan, source, record_spans).run()
