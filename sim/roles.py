"""Draft servers and stages as SimPy processes: what they do is given, here it takes its time."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import simpy

from treepipe.draft_work import Begin, Draft, Evaluate, Orders, Turn
from treepipe.messages import Flight, Message, Segment
from treepipe.plan import Plan
from treepipe.protocol import Schedule
from treepipe.schedules.shared_draft import Assignment
from treepipe.sim.acceptance import NEVER, AcceptanceSource, Oracle
from treepipe.sim.link import Mailbox
from treepipe.stage import Prune
from treepipe.stage_desk import StageWork
from treepipe.trace import Kind, RequestTrace, Trace

Process: TypeAlias = Generator[Any, Any, None]


class World(Protocol):
    """What the roles need of the world around them."""

    env: simpy.Environment
    trace: Trace

    def inbox(self, name: str) -> Mailbox[Message | None]: ...

    def send(self, sender: str, receiver: str, message: Message) -> None: ...

    def note(self, device: str, kind: Kind, start_ms: float, session: int, tokens: int) -> None: ...

    def finished(self, request: RequestTrace) -> None: ...


class Stage:
    """A pipeline stage."""

    def __init__(self, world: World, plan: Plan, pipeline: int, number: int) -> None:
        """Args: ``number``: 1.. along the pipeline."""
        stages = plan.pipelines[pipeline]
        self._world, self._placed = world, stages[number - 1]
        self._inbox = world.inbox(self._placed.name)
        self._desk = plan.stage_desk(pipeline, number)
        following = stages[number:]
        self._successor = following[0].name if following else None
        self._drafts = [draft.name for draft in plan.drafts]

    @property
    def state(self) -> str:
        """For the report of a deadlock."""
        return f"{self._placed.name} {self._desk.state}"

    def serve(self) -> Process:
        inbox, desk = self._inbox, self._desk
        while True:
            if not inbox.items:
                yield inbox.arrival()
            while True:
                while inbox.items:
                    message = inbox.items.popleft()
                    if message is not None:
                        desk.receive(message)
                action = desk.next_action()
                if action is None:
                    break
                yield from self._perform(action)

    def _perform(self, action: StageWork) -> Process:
        env, times, name = self._world.env, self._placed.times, self._placed.name
        start = env.now
        if isinstance(action, Prune):
            if times.prune:
                yield env.timeout(times.prune)
            self._world.note(name, "prune", start, action.session, len(action.keep))
            return
        flight, tokens = action.flight, action.tokens
        if tokens:
            yield env.timeout(times.stage(tokens))
            self._world.note(name, "compute", start, flight.segments[0].session, tokens)
        self._world.send(name, self._successor or self._drafts[flight.draft], flight)


@dataclass(slots=True)
class _Text:
    """One open request: its answers, and what it has emitted."""

    oracle: Oracle
    schedule: Schedule
    pipeline: int
    prompt_tokens: int
    started_ms: float
    never_misses: bool  # the rule takes a child wherever there is one (relaxed_best)
    emitted: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def answers(self, segment: Segment) -> tuple[int, ...]:
        """What the target says at each row: the text's next token on the true path."""
        truth, prompt = self.oracle.truth, self.prompt_tokens
        if segment.committed:
            index = segment.positions[-1] - prompt + 1
            return (truth(index) if index >= 0 else NEVER,)
        answers = []
        for offer in self.schedule.offers(segment, children=self.never_misses):
            answer = NEVER
            if offer is not None:
                index = offer.position - prompt + 1
                first = index - len(offer.path)
                if all(token == truth(first + i) for i, token in enumerate(offer.path)):
                    if offer.children and truth(index) not in offer.children:
                        self.oracle.rewrite(index, offer.children[0])
                    answer = truth(index)
            answers.append(answer)
        return tuple(answers)


class Host:
    """A draft server: draft passes, evaluation, and the schedules; strictly sequential."""

    def __init__(self, world: World, plan: Plan, draft: int, source: AcceptanceSource) -> None:
        self._world, self._plan, self._source = world, plan, source
        self._placed = plan.drafts[draft]
        self._inbox = world.inbox(self._placed.name)
        self._desk = plan.draft_desk(draft)
        self._stages = [[stage.name for stage in stages] for stages in plan.pipelines]
        self._texts: dict[int, _Text] = {}

    @property
    def state(self) -> str:
        """For the report of a deadlock."""
        return f"{self._placed.name} waits for segments of requests {sorted(self._texts)}"

    @property
    def turns(self) -> list[Turn]:
        return self._desk.turns

    def open(self, session: int, assignment: Assignment) -> None:
        """Take a request into the queue."""
        spec, now = self._plan.requests[assignment.request], self._world.env.now
        stages = len(self._plan.pipelines[assignment.pipeline])
        schedule = self._plan.new_schedule(session, stages, lambda: self._desk.waiting)
        oracle = self._source.open(session, len(spec.prompt))
        self._texts[session] = _Text(
            oracle,
            schedule,
            assignment.pipeline,
            len(spec.prompt),
            assignment.asked_ms,
            self._plan.never_misses,
        )
        self._desk.open(session, assignment.pipeline, schedule, spec.started, now)
        self._inbox.put(None)

    def serve(self) -> Process:
        inbox, desk, env = self._inbox, self._desk, self._world.env
        while True:
            while inbox.items:
                message = inbox.items.popleft()
                if message is not None:
                    assert isinstance(message, Flight)
                    desk.arrive(message, None, env.now)
            work = desk.next(env.now)
            if work is None:
                yield inbox.arrival()
            elif isinstance(work, Begin):
                self._carry_out(desk.began(work))
            elif isinstance(work, Draft):
                yield from self._draft(work)
            else:
                yield from self._evaluate(work)

    def _draft(self, work: Draft) -> Process:
        env, name = self._world.env, self._placed.name
        start, rows = env.now, work.rows
        yield env.timeout(self._placed.times.draft(rows))
        self._world.note(name, "draft", start, work.passes[0][0], rows)
        answers = [
            (session, self._texts[session].oracle.draft(order)) for session, order in work.passes
        ]
        self._carry_out(self._desk.drafted(answers))

    def _evaluate(self, work: Evaluate) -> Process:
        env, name, times = self._world.env, self._placed.name, self._placed.times
        start, flight = env.now, work.flight
        answers = [
            self._texts[segment.session].answers(segment) if segment.session in self._texts else ()
            for segment in flight.segments
        ]
        rows = sum([len(each) for each in answers])
        session = flight.segments[0].session if flight.segments else 0
        cost = times.evaluate(rows)
        if cost:
            yield env.timeout(cost)
            self._world.note(name, "evaluate", start, session, rows)
        start = env.now
        if times.decide:
            yield env.timeout(times.decide)
            self._world.note(name, "decide", start, session, rows)
        self._carry_out(self._desk.returned(flight, answers))

    def _carry_out(self, orders: Orders) -> None:
        now, texts = self._world.env.now, self._texts
        for pipeline, message in orders.messages:
            stages = self._stages[pipeline]
            for stage in stages[:1] if isinstance(message, Flight) else stages:
                self._world.send(self._placed.name, stage, message)
        for session, tokens in orders.emitted:
            texts[session].emitted.append((now, len(tokens)))
            texts[session].tokens += tokens
        for session, reason in orders.finished:
            self._finish(session, reason)

    def _finish(self, session: int, reason: str) -> None:
        text = self._texts.pop(session)
        self._world.finished(
            RequestTrace(
                session,
                text.prompt_tokens,
                text.started_ms,
                self._world.env.now,
                tuple(text.emitted),
                tuple(text.tokens),
                tuple(text.schedule.rounds),
                reason,
                text.pipeline,
            )
        )
