"""Draft servers and stages: what they do is given, here it takes its time.

Law of this file: who is busy decides nothing before the time is over; a message that wakes an idle
role is looked at together with all that are delivered at the same moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from treepipe.core.draft_work import Begin, Draft, Orders, Turn
from treepipe.core.messages import Flight, Message, Segment
from treepipe.core.requests import Assignment, OpenRequest, OpenRequests, RequestTrace
from treepipe.core.stage import Prune
from treepipe.results.trace import Kind
from treepipe.scenario.deployment import Deployment
from treepipe.sim.acceptance import AcceptanceSource, Oracle, next_tokens
from treepipe.sim.clock import Clock
from treepipe.sim.device import RolePlace


class World(Protocol):
    """What the roles need of the world around them."""

    clock: Clock
    records: bool  # whether what happens is noted, and not only what comes of it

    def send(self, sender: str, receivers: Sequence[str], message: Message) -> None: ...

    def note(self, device: str, kind: Kind, start_ms: float, session: int, tokens: int) -> None: ...

    def finished(self, request: RequestTrace) -> None: ...


class StageRole:
    """A pipeline stage."""

    def __init__(
        self, world: World, deployment: Deployment, pipeline: int, number: int, place: RolePlace
    ) -> None:
        """Args: ``number``: 1.. along the pipeline; ``place``: where it works."""
        stages = deployment.pipelines[pipeline]
        self._world, self._placed, self._place = world, stages[number - 1], place
        self._desk = deployment.stage_desk(pipeline, number)
        drafts = [(draft.name,) for draft in deployment.drafts]
        self._successors = [(stages[number].name,)] * len(drafts) if stages[number:] else drafts
        self._by_context = self._placed.times.stage.last_context is not None
        self._idle = True

    @property
    def state(self) -> str:
        """What it is doing, for the report of a deadlock."""
        return f"{self._placed.name} {self._desk.state}"

    def deliver(self, message: Message) -> None:
        """Take a message; it is acted upon when the stage is idle."""
        self._desk.receive(message)
        if self._idle and self._desk.has_work:
            self._idle = False
            self._world.clock.after(0, self._go_on)

    def _go_on(self, _: object) -> None:
        """Do what is due until something takes time, or nothing is."""
        times, desk, place = self._placed.times, self._desk, self._place
        while (action := desk.next_action()) is not None:
            if isinstance(action, Prune):
                if times.prune:
                    place.work(times.prune, partial(self._pruned, action))
                    return
                now = self._world.clock.now
                self._world.note(self._placed.name, "prune", now, action.session, len(action.keep))
            elif tokens := action.tokens:
                duration = times.stage(tokens)
                if self._by_context:
                    duration = times.stage.over(desk.parts(action.flight))
                place.work(duration, partial(self._computed, action.flight, tokens))
                return
            else:
                self._send(action.flight)
        self._idle = True

    def _pruned(self, action: Prune, event: object) -> None:
        start, kept = self._place.started_ms, len(action.keep)
        self._world.note(self._placed.name, "prune", start, action.session, kept)
        self._go_on(event)

    def _computed(self, flight: Flight, tokens: int, event: object) -> None:
        start = self._place.started_ms
        self._world.note(self._placed.name, "compute", start, flight.session, tokens)
        self._send(flight)
        self._go_on(event)

    def _send(self, flight: Flight) -> None:
        self._world.send(self._placed.name, self._successors[flight.draft], flight)


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """A flight that came back and the target's tokens per segment and row."""

    flight: Flight
    answers: list[tuple[int, ...]]
    rows: int


class DraftServer:
    """A draft server: draft passes, evaluation, and the schedules; strictly sequential."""

    def __init__(
        self,
        world: World,
        deployment: Deployment,
        draft: int,
        source: AcceptanceSource,
        place: RolePlace,
    ) -> None:
        """Args: ``draft``: its number; ``place``: where it works."""
        self._world, self._deployment, self._source, self._place = world, deployment, source, place
        self._placed = deployment.drafts[draft]
        self._desk = deployment.draft_desk(draft)
        self._stages = [[stage.name for stage in stages] for stages in deployment.pipelines]
        self._by_context = self._placed.times.draft.last_context is not None
        self._open = OpenRequests[Oracle]()
        self._inbox: deque[tuple[Flight, float]] = deque()
        self._idle = True

    @property
    def state(self) -> str:
        """What this server waits for, as the report of a deadlock says it."""
        return f"{self._placed.name} waits for segments of requests {sorted(self._open.by_session)}"

    @property
    def turns(self) -> list[Turn]:
        return self._desk.turns

    def open(self, assignment: Assignment) -> None:
        """Take a request into the queue."""
        session, now = assignment.session, self._world.clock.now
        spec = self._deployment.requests[assignment.request]
        prompt_tokens = len(spec.prompt)
        stages = len(self._deployment.pipelines[assignment.pipeline])
        schedule = self._deployment.new_schedule(session, stages)
        oracle = self._source.open(session, prompt_tokens)
        self._open.open(OpenRequest(session, schedule, assignment, prompt_tokens, oracle))
        self._desk.open(session, assignment.pipeline, schedule, spec.started, now)
        self._wake()

    def deliver(self, message: Message) -> None:
        """Take a flight that came back; it joins the queue when the server looks up, as one that
        has waited there since."""
        assert isinstance(message, Flight)
        self._inbox.append((message, self._world.clock.now))
        self._wake()

    def _wake(self) -> None:
        if self._idle:
            self._idle = False
            self._world.clock.after(0, self._go_on)

    def _go_on(self, _: object) -> None:
        """Do what is due until something takes time, or nothing is."""
        inbox, desk, clock = self._inbox, self._desk, self._world.clock
        while True:
            while inbox:
                flight, arrived_ms = inbox.popleft()
                desk.arrive(flight, None, arrived_ms)
            work = desk.next(clock.now)
            if not self._world.records:
                desk.turns.clear()
            if work is None:
                self._idle = True
                return
            if isinstance(work, Draft):
                rows = work.rows
                duration = self._placed.times.draft(rows)
                if self._by_context:
                    duration = self._placed.times.draft.over(self._open.parts(work))
                self._place.work(duration, partial(self._drafted, work, rows))
                return
            self._place.fresh = True  # a turn begins
            if isinstance(work, Begin):
                self._carry_out(desk.began(work))
            elif self._evaluate(work.flight):
                return

    def _drafted(self, work: Draft, rows: int, event: object) -> None:
        session, start = work.passes[0][0], self._place.started_ms
        self._world.note(self._placed.name, "draft", start, session, rows)
        requests = self._open.by_session
        answers = [(session, requests[session].own.draft(order)) for session, order in work.passes]
        self._carry_out(self._desk.drafted(answers))
        self._go_on(event)

    def _evaluate(self, flight: Flight) -> bool:
        """Read off the target's tokens and serve the flight; returns whether that takes time."""
        times = self._placed.times
        answers = [self._answers(segment) for segment in flight.segments]
        rows = sum([len(each) for each in answers])
        costs: list[tuple[Kind, float]] = [
            ("evaluate", times.evaluate(rows)),
            ("decide", times.decide),
        ]
        parts = [(kind, cost) for kind, cost in costs if cost]
        if parts:
            self._spend(parts, _Evaluation(flight, answers, rows))
        else:
            self._carry_out(self._desk.returned(flight, answers))
        return bool(parts)

    def _answers(self, segment: Segment) -> tuple[int, ...]:
        """The target's tokens at a segment's rows."""
        request = self._open.by_session.get(segment.session)
        if request is None:
            return ()
        never_misses, prompt = self._deployment.never_misses, request.prompt_tokens
        return next_tokens(request.own, request.schedule, segment, prompt, never_misses)

    def _spend(self, parts: list[tuple[Kind, float]], evaluation: _Evaluation) -> None:
        self._place.work(parts[0][1], partial(self._spent, parts, evaluation))

    def _spent(
        self, parts: list[tuple[Kind, float]], evaluation: _Evaluation, event: object
    ) -> None:
        """A part of the time for a flight is over."""
        flight, (kind, _), start = evaluation.flight, parts[0], self._place.started_ms
        self._world.note(self._placed.name, kind, start, flight.session, evaluation.rows)
        if parts[1:]:
            self._spend(parts[1:], evaluation)
            return
        self._carry_out(self._desk.returned(flight, evaluation.answers))
        self._go_on(event)

    def _carry_out(self, orders: Orders) -> None:
        for pipeline, message in orders.messages:
            stages = self._stages[pipeline]
            receivers = stages[:1] if isinstance(message, Flight) else stages
            self._world.send(self._placed.name, receivers, message)
        for finished in self._open.carry_out(orders, self._world.clock.now):
            self._world.finished(finished)
