"""The simulated world: the same schedules and stage rules as executed, with times from profiles.

Law of this file: it decides nothing. What is computed, pruned and fed follows from the schedule
and from ``StageSession``; here messages move, and ``roles.py`` lets time pass.
"""

from __future__ import annotations

import numpy as np
import simpy

from treepipe.errors import RunError
from treepipe.plan import HEADER_BYTES, Plan, message_bytes
from treepipe.sim.acceptance import AcceptanceSource
from treepipe.sim.link import Link, Mailbox
from treepipe.sim.roles import Close, Host, Parcel, Stage, World
from treepipe.trace import Kind, Span, Trace


class Simulation(World):
    """One run of a plan: requests one after another on one pipeline."""

    def __init__(self, plan: Plan, source: AcceptanceSource, record_spans: bool) -> None:
        self.env = simpy.Environment()
        self.plan = plan
        self.trace = Trace(plan.devices)
        self._record_spans = record_spans
        self._row_bytes = plan.row_bytes
        self._mailboxes: dict[str, Mailbox[Parcel]] = {
            name: Mailbox(self.env) for name in plan.devices
        }
        self._links = self._connect()
        self.host = Host(self, plan.draft, source, self._mailboxes[plan.draft.name])
        names = [*plan.devices[1:], plan.draft.name]
        self.stages = [
            Stage(
                self, placed, number, len(plan.stages), names[number], self._mailboxes[placed.name]
            )
            for number, placed in enumerate(plan.stages, start=1)
        ]

    def run(self) -> Trace:
        """Raises ``RunError`` if everything waits and nothing moves."""
        for stage in self.stages:
            self.env.process(stage.serve())
        done = self.env.process(self.host.serve(self.plan))
        try:
            self.env.run(until=done)
        except RuntimeError:
            if done.triggered or self.env.peek() != float("inf"):
                raise  # not SimPy's complaint that the queue ran empty before the event
            waiting = [self.host.state, *(stage.state for stage in self.stages)]
            raise RunError(f"deadlock at {self.env.now:.3f} ms: {'; '.join(waiting)}") from None
        return self.trace

    @property
    def events(self) -> int:
        """Events processed so far (SimPy numbers each one it schedules)."""
        number: int = next(self.env._eid)
        return number

    def send(self, sender: str, receiver: str, parcel: Parcel) -> None:
        message = parcel.message
        if isinstance(message, Close):
            size = HEADER_BYTES
        else:
            size = message_bytes(message, self._row_bytes)
        sent, due = self._links[sender, receiver].send(parcel, size)
        if self._record_spans:
            rows = len(parcel.answers)
            self._span(f"{sender}->{receiver}", "transfer", sent, due, message.session, rows)

    def note(self, device: str, kind: Kind, start_ms: float, session: int, tokens: int) -> None:
        if self._record_spans:
            self._span(device, kind, start_ms, self.env.now, session, tokens)

    def _span(
        self, device: str, kind: Kind, start: float, end: float, session: int, tokens: int
    ) -> None:
        self.trace.spans.append(Span(device, kind, start, end, session, tokens))

    def _connect(self) -> dict[tuple[str, str], Link[Parcel]]:
        """Draft to every stage, each stage to the next, the last one back; one stream each."""
        draft, *stages = self.plan.devices
        pairs = [(draft, stage) for stage in stages]
        pairs += list(zip(stages, [*stages[1:], draft], strict=True))
        seeds = np.random.SeedSequence(self.plan.seed).spawn(len(pairs))
        return {
            pair: Link(
                self.env,
                self.plan.link(*pair),
                self._mailboxes[pair[1]].put,
                np.random.default_rng(seed),
            )
            for pair, seed in zip(pairs, seeds, strict=True)
        }


def simulate(plan: Plan, source: AcceptanceSource, *, record_spans: bool = True) -> Trace:
    """Simulate a plan once; the same plan and source seed give an equal trace.

    Args:
        record_spans: False leaves the trace's spans empty (then no utilization is known).
    """
    return Simulation(plan, source, record_spans).run()
