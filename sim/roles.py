"""The draft and the stages as SimPy processes: what they do is given, here it takes its time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import simpy

from treepipe.plan import Placed, Plan, RequestSpec
from treepipe.protocol import (
    Announce,
    Command,
    DraftPass,
    Emit,
    Event,
    Feed,
    Finish,
    Returned,
    Schedule,
    Segment,
    Started,
    Word,
)
from treepipe.sim.acceptance import NEVER, AcceptanceSource, Oracle
from treepipe.sim.link import Mailbox
from treepipe.stage import Prune, Run, StageSession
from treepipe.trace import Kind, RequestTrace, Trace

Process: TypeAlias = Generator[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Close:
    """The session is over."""

    session: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message and, per row, what the target will answer: the stand-in for hidden states."""

    message: Segment | Word | Close
    answers: tuple[int, ...] = ()


class World(Protocol):
    """What the roles need of the world around them."""

    env: simpy.Environment
    trace: Trace

    def send(self, sender: str, receiver: str, parcel: Parcel) -> None: ...

    def note(self, device: str, kind: Kind, start_ms: float, session: int, tokens: int) -> None: ...


class Stage:
    """A pipeline stage."""

    def __init__(
        self,
        world: World,
        placed: Placed,
        number: int,
        stages: int,
        successor: str,
        inbox: Mailbox[Parcel],
    ) -> None:
        """Args: ``number``: 1..``stages`` along the pipeline."""
        self._world, self._placed, self._number = world, placed, number
        self._stages, self._successor, self._inbox = stages, successor, inbox
        self._session = StageSession(1, 1)
        self._current = -1
        self._closed = -1
        self._answers: dict[int, tuple[int, ...]] = {}

    @property
    def state(self) -> str:
        """For the report of a deadlock."""
        waiting = self._session.waiting if self._current > self._closed else ()
        if not waiting:
            return f"{self._placed.name} waits for a segment"
        return (
            f"{self._placed.name} holds {len(waiting)} segments of request {self._current} "
            f"and waits for word {self._session.version}"
        )

    def serve(self) -> Process:
        inbox = self._inbox
        while True:
            if not inbox.items:
                yield inbox.arrival()
            while True:
                while inbox.items:
                    self._receive(inbox.items.popleft())
                action = self._session.next_action() if self._current > self._closed else None
                if action is None:
                    break
                yield from self._perform(action)

    def _receive(self, parcel: Parcel) -> None:
        message = parcel.message
        # Over a slow direct link, words of an older request and its end may come after the first
        # segment of a newer one.
        if message.session <= self._closed or message.session < self._current:
            return
        if isinstance(message, Close):
            self._closed = message.session
            self._answers.clear()
            return
        if message.session != self._current:
            self._current = message.session
            self._session = StageSession(self._number, self._stages)
            self._answers.clear()
        if isinstance(message, Segment):
            self._answers[message.ticket] = parcel.answers
        self._session.receive(message)

    def _perform(self, action: Any) -> Process:
        env, times, name = self._world.env, self._placed.times, self._placed.name
        start = env.now
        if isinstance(action, Prune):
            if times.prune:
                yield env.timeout(times.prune)
            self._world.note(name, "prune", start, action.session, len(action.keep))
            return
        segment = action.segment
        answers = self._answers.pop(segment.ticket)
        if isinstance(action, Run):
            if action.rows is not None:
                answers = tuple([answers[row] for row in action.rows])
            rows = len(segment.tokens)
            yield env.timeout(times.stage(rows))
            self._world.note(name, "compute", start, segment.session, rows)
        else:
            answers = ()
        self._world.send(name, self._successor, Parcel(segment, answers))


class Host:
    """The draft device: draft passes, evaluation, and the schedule; strictly sequential."""

    def __init__(
        self, world: World, placed: Placed, source: AcceptanceSource, inbox: Mailbox[Parcel]
    ) -> None:
        self._world, self._placed, self._inbox = world, placed, inbox
        self._source = source
        self._stages: list[str] = []
        self._prompt_tokens = 0
        self._on_path: list[bool] = []
        self._emitted: list[tuple[float, int]] = []
        self._tokens: list[int] = []
        self._reason = ""
        self.state = "draft0 has not started"

    def serve(self, plan: Plan) -> Process:
        """All requests of the plan, one after another."""
        self._stages = [stage.name for stage in plan.stages]
        for session, request in enumerate(plan.requests, start=1):
            schedule = plan.new_schedule(session)
            oracle = self._source.open(session, len(request.prompt))
            started = self._world.env.now
            self._prompt_tokens = len(request.prompt)
            self._emitted, self._tokens, self._on_path = [], [], []
            yield from self._decode(session, schedule, oracle, request)
            self._broadcast(Close(session))
            self._world.trace.requests.append(
                RequestTrace(
                    session,
                    len(request.prompt),
                    started,
                    self._world.env.now,
                    tuple(self._emitted),
                    tuple(self._tokens),
                    tuple(schedule.rounds),
                    self._reason,
                )
            )

    def _decode(
        self, session: int, schedule: Schedule, oracle: Oracle, request: RequestSpec
    ) -> Process:
        env, name, times = self._world.env, self._placed.name, self._placed.times
        events: deque[Event] = deque(
            [Started(request.prompt, request.max_new_tokens, request.end_of_text)]
        )
        while not schedule.done:
            if events:
                event = events.popleft()
            else:
                parcel = yield from self._next_returned(session)
                segment = parcel.message
                event = Returned(segment.ticket, segment.version, segment.start, parcel.answers)
                start = env.now
                if times.decide:
                    yield env.timeout(times.decide)
                self._world.note(name, "decide", start, session, len(parcel.answers))
            for command in schedule.handle(event):
                if isinstance(command, DraftPass):
                    start = env.now
                    yield env.timeout(times.draft(command.rows))
                    self._world.note(name, "draft", start, session, command.rows)
                    events.append(oracle.draft(command))
                else:
                    self._execute(session, command, oracle)

    def _next_returned(self, session: int) -> Generator[Any, Any, Any]:
        """The next segment of the session, after its evaluation."""
        self.state = f"{self._placed.name} waits for a segment of request {session}"
        while True:
            if not self._inbox.items:
                yield self._inbox.arrival()
            parcel = self._inbox.items.popleft()
            if parcel.message.session == session:
                break
        start, rows = self._world.env.now, len(parcel.answers)
        if rows:
            cost = self._placed.times.evaluate(rows)
            if cost:
                yield self._world.env.timeout(cost)
            self._world.note(self._placed.name, "evaluate", start, session, rows)
        return parcel

    def _execute(self, session: int, command: Command, oracle: Oracle) -> None:
        if isinstance(command, Feed):
            parcel = Parcel(command.segment, self._answers(command.segment, oracle))
            self._world.send(self._placed.name, self._stages[0], parcel)
        elif isinstance(command, Announce):
            word = command.word
            if word.retained is not None:
                kept = word.retained[word.accepted :]
                self._on_path = [self._on_path[i] for i in kept if i < len(self._on_path)]
            self._broadcast(word)
        elif isinstance(command, Emit):
            self._emitted.append((self._world.env.now, len(command.tokens)))
            self._tokens += command.tokens
        elif isinstance(command, Finish):
            self._reason = command.reason

    def _answers(self, segment: Segment, oracle: Oracle) -> tuple[int, ...]:
        """What the target says at each row: the text's next token on the true path."""
        if segment.committed:
            index = segment.positions[-1] - self._prompt_tokens + 1
            return (oracle.truth(index) if index >= 0 else NEVER,)
        answers = []
        flags = self._on_path
        for token, position, parent in zip(
            segment.tokens, segment.positions, segment.parents, strict=True
        ):
            index = position - self._prompt_tokens
            on_path = (parent < 0 or flags[parent]) and token == oracle.truth(index)
            flags.append(on_path)
            answers.append(oracle.truth(index + 1) if on_path else NEVER)
        return tuple(answers)

    def _broadcast(self, message: Word | Close) -> None:
        for stage in self._stages:
            self._world.send(self._placed.name, stage, Parcel(message))
