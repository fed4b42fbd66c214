"""All sessions of one draft server: whose turn it is, and what the schedules want of the world.

Law of this file: the draft server does one thing at a time. A turn (a request begins, or a flight
came back) is served to its end, draft passes included, before the next one in the queue; only
schedules that listen are told of segments between the passes of a draft. Both worlds ask ``next``
what to do, do it, report it, and carry out the orders; they decide nothing.

A pipeline in lock-step (PipeDec, SpecPipe) always holds one flight per group of stages. Each one
that comes back ends a step for all requests that take part: their words form the beat, their
segments the next flight, their draft passes one batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from treepipe.core.draft_work import Begin, Draft, Evaluate, Orders, Turn, Work
from treepipe.core.front_desk import ArrivalQueue
from treepipe.core.messages import Beat, Close, Flight, Segment, Word
from treepipe.core.protocol import (
    Announce,
    Command,
    Drafted,
    DraftPass,
    Emit,
    Event,
    Feed,
    Returned,
    Schedule,
    Started,
    Stepped,
    WorkerLost,
)


@dataclass(slots=True)
class _Session:
    pipeline: int
    schedule: Schedule
    started: Started


@dataclass(slots=True)
class _Lane:
    """The lock-step of one pipeline: who takes part, and how many flights it holds."""

    sessions: list[int] = field(default_factory=list)
    flying: int = 0
    next_beat: int = 0


class DraftDesk:
    """What one draft server does next, over all its sessions."""

    def __init__(self, draft: int, groups: Sequence[int], queue: ArrivalQueue) -> None:
        """Args: ``draft``: number of this server; ``groups``: groups of stages per pipeline."""
        self._draft, self._groups, self._queue = draft, groups, queue
        self.turns: list[Turn] = []
        self._turn: tuple[int | None, float, float] | None = None
        self._sessions: dict[int, _Session] = {}
        self._lanes = [_Lane() for _ in groups]
        self._passes: deque[tuple[tuple[int, DraftPass], ...]] = deque()
        self._lost: set[int] = set()

    @property
    def sessions(self) -> frozenset[int]:
        """Sessions that are open."""
        return frozenset(self._sessions)

    @property
    def has_work(self) -> bool:
        """Whether ``next`` may find something."""
        return bool(self._passes) or len(self._queue) > 0

    def schedule(self, session: int) -> Schedule:
        return self._sessions[session].schedule

    # --- what arrives ----------------------------------------------------------------------------

    def open(
        self, session: int, pipeline: int, schedule: Schedule, started: Started, now_ms: float
    ) -> None:
        """A request is waiting to begin."""
        self._sessions[session] = _Session(pipeline, schedule, started)
        self._queue.put(pipeline, (now_ms, Begin(session)), now_ms)

    def arrive(self, flight: Flight, payload: Any, now_ms: float) -> None:
        """A flight came back; ``payload`` is handed out with it."""
        self._queue.put(flight.pipeline, (now_ms, Evaluate(flight, payload)), now_ms)

    def next(self, now_ms: float) -> Work | None:
        """The next thing to do, None if there is nothing before something arrives."""
        if not all(map(self._listens, self._passes)):
            return Draft(self._passes.popleft())
        while len(self._queue):
            queued: tuple[float, Begin | Evaluate] = self._queue.pop()
            arrived_ms, work = queued
            if self._is_open(work):
                self._end_turn(now_ms)
                pipeline = work.flight.pipeline if isinstance(work, Evaluate) else None
                self._turn = pipeline, arrived_ms, now_ms
                return work
        if self._passes:
            return Draft(self._passes.popleft())
        self._end_turn(now_ms)
        return None

    def _is_open(self, work: Begin | Evaluate) -> bool:
        if isinstance(work, Begin):
            return work.session in self._sessions
        flight = work.flight
        if flight.pipeline in self._lost:
            return False
        return flight.beat is not None or flight.segments[0].session in self._sessions

    def _end_turn(self, now_ms: float) -> None:
        if self._turn is not None:
            self.turns.append(Turn(self._draft, *self._turn, now_ms))
            self._turn = None

    def _listens(self, passes: tuple[tuple[int, DraftPass], ...]) -> bool:
        return all(self._sessions[session].schedule.listens for session, _ in passes)

    # --- what was done ---------------------------------------------------------------------------

    def began(self, work: Begin) -> Orders:
        return self._tell(work.session, self._sessions[work.session].started)

    def returned(self, flight: Flight, answers: Sequence[tuple[int, ...]]) -> Orders:
        """A flight was evaluated; ``answers`` are the target's tokens per segment and row."""
        events = {
            segment.session: Returned(
                segment.ticket, segment.version, segment.start, tokens, len(self._queue)
            )
            for segment, tokens in zip(flight.segments, answers, strict=True)
            if segment.session in self._sessions
        }
        if flight.beat is not None and flight.pipeline not in self._lost:
            return self._step(flight, events)
        orders = Orders()
        for session, event in events.items():
            self._serve(orders, session, event)
        return orders

    def drafted(self, answers: Sequence[tuple[int, Drafted]]) -> Orders:
        """A batch of draft passes was run."""
        orders, passes = Orders(), []
        for session, drafted in answers:
            if session in self._sessions:
                passes += self._absorb(orders, session, self._handle(session, drafted))
        self._queue_passes(passes)
        return orders

    def lose(self, pipeline: int, worker: str) -> Orders:
        """A pipeline is gone with one of its workers: its requests end with what they have."""
        orders = Orders()
        for session in [s for s, state in self._sessions.items() if state.pipeline == pipeline]:
            self._serve(orders, session, WorkerLost(worker))
        self._lost.add(pipeline)
        return orders

    # --- telling schedules -----------------------------------------------------------------------

    def _tell(self, session: int, event: Event) -> Orders:
        orders = Orders()
        self._serve(orders, session, event)
        return orders

    def _serve(self, orders: Orders, session: int, event: Event) -> None:
        state = self._sessions[session]
        self._queue_passes(self._absorb(orders, session, self._handle(session, event)))
        if state.schedule.in_step and session not in self._lanes[state.pipeline].sessions:
            self._join(orders, session)

    def _handle(self, session: int, event: Event) -> Sequence[Command]:
        return self._sessions[session].schedule.handle(event)

    def _absorb(
        self, orders: Orders, session: int, commands: Sequence[Command]
    ) -> list[tuple[int, DraftPass]]:
        """Commands as orders, one message each; returns the draft passes among them."""
        passes, pipeline = [], self._sessions[session].pipeline
        for command in commands:
            if isinstance(command, DraftPass):
                passes.append((session, command))
            elif isinstance(command, Feed):
                orders.messages.append(
                    (pipeline, Flight(self._draft, pipeline, (command.segment,)))
                )
            elif isinstance(command, Announce):
                orders.messages.append((pipeline, Beat(self._draft, (command.word,))))
            elif isinstance(command, Emit):
                orders.emitted.append((session, command.tokens))
            else:
                self._close(orders, session, command.reason)
        return passes

    def _queue_passes(self, passes: list[tuple[int, DraftPass]]) -> None:
        if passes:
            self._passes.append(tuple(passes))

    def _close(self, orders: Orders, session: int, reason: str) -> None:
        state = self._sessions.pop(session)
        lane = self._lanes[state.pipeline]
        if session in lane.sessions:
            lane.sessions.remove(session)
        kept = [tuple([p for p in group if p[0] != session]) for group in self._passes]
        self._passes = deque([group for group in kept if group])
        orders.messages.append((state.pipeline, Close(session)))
        orders.finished.append((session, reason))

    # --- lock-step of a pipeline -----------------------------------------------------------------

    def _join(self, orders: Orders, session: int) -> None:
        """A request takes part from now on; a pipeline that stood still starts to step again."""
        pipeline = self._sessions[session].pipeline
        lane = self._lanes[pipeline]
        lane.sessions.append(session)
        if lane.flying == self._groups[pipeline]:
            return
        while lane.flying < self._groups[pipeline] - 1:
            self._fly(orders, pipeline, [])
        _, feeds, passes = self._step_session(orders, session, None)
        self._fly(orders, pipeline, feeds)
        self._queue_passes(passes)

    def _step(self, flight: Flight, events: dict[int, Returned]) -> Orders:
        """A step is over: tell all who take part, and send beat and flight of the next one."""
        orders = Orders()
        lane = self._lanes[flight.pipeline]
        lane.flying -= 1
        words: list[Word] = []
        feeds: list[Segment] = []
        passes: list[tuple[int, DraftPass]] = []
        for session in [*lane.sessions]:
            said = self._step_session(orders, session, events.get(session))
            words += said[0]
            feeds += said[1]
            passes += said[2]
        beat = Beat(self._draft, tuple(words), flight.beat)
        orders.messages.insert(0, (flight.pipeline, beat))
        if lane.sessions:
            self._fly(orders, flight.pipeline, feeds)
        self._queue_passes(passes)
        return orders

    def _step_session(
        self, orders: Orders, session: int, returned: Returned | None
    ) -> tuple[list[Word], list[Segment], list[tuple[int, DraftPass]]]:
        """Words, segments and draft passes of one request's step."""
        words, feeds, passes = [], [], []
        for command in self._handle(session, Stepped(returned)):
            if isinstance(command, Announce):
                words.append(command.word)
            elif isinstance(command, Feed):
                feeds.append(command.segment)
            else:
                passes += self._absorb(orders, session, [command])
        return words, feeds, passes

    def _fly(self, orders: Orders, pipeline: int, segments: list[Segment]) -> None:
        lane = self._lanes[pipeline]
        flight = Flight(self._draft, pipeline, tuple(segments), lane.next_beat)
        lane.next_beat += 1
        lane.flying += 1
        orders.messages.append((pipeline, flight))
