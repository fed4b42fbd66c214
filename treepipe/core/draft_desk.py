"""The queue of one draft server: the order of its work, and the orders that follow from it.

The draft server does one thing at a time. A turn (a request begins, or a flight came back) is
served to its end, draft passes included, before the next one in the queue; only schedules that
listen receive segments between the passes of a draft. Both worlds ask ``next`` for work, do it,
report it, and carry out the orders.

A pipeline in lock-step (PipeDec, SpecPipe) always holds one flight per group of stages. A returned
flight ends a step for all requests that take part, as soon as all groups have computed theirs ("all
nodes must complete", PipeDec, section 3.4.3): their words form the beat, their segments the next
flight, their draft passes one batch.

A pipeline may take a bounded number of flights. Flights beyond it wait at the dock, where segments
of other requests join them.

A request begins when the caches have room for it (``cache_room.py``); waiting requests begin in
order of arrival, preempted ones first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from treepipe.core.cache_room import DRAFT, CacheBook, CacheRoom
from treepipe.core.dock import Dock, board
from treepipe.core.draft_work import Begin, Draft, Evaluate, Orders, Turn, WarmUp, Work
from treepipe.core.front_desk import ArrivalQueue
from treepipe.core.messages import (
    Beat,
    Close,
    Flight,
    Message,
    Segment,
    Through,
    Verified,
    Word,
    require,
)
from treepipe.core.protocol import (
    Announce,
    Command,
    Drafted,
    DraftPass,
    Emit,
    Event,
    Feed,
    Gauge,
    Judged,
    Returned,
    Schedule,
    Started,
    Stepped,
    Withdraw,
    WorkerLost,
)
from treepipe.core.verify_length import RoundMs, shortened

ROUNDING_MS = 1e-6
"""Tolerance of times that clocks compute by adding differences."""
MOST_IN_VAIN = 1000
"""Number of warm-up passes in a row, after which the server stops them to expose deadlocks."""


@dataclass(slots=True)
class _Session:
    pipeline: int
    schedule: Schedule
    started: Started


@dataclass(slots=True)
class _Lane:
    """The lock-step of one pipeline.

    Attributes:
        through: number of flights that each group but the last has computed.
        sessions: sessions that take part.
        flying: number of flights in the pipeline.
        back: returned flights whose step goes on in other groups, with their payloads.
    """

    through: list[int]
    sessions: list[int] = field(default_factory=list)
    flying: int = 0
    next_beat: int = 0
    back: deque[tuple[Flight, Any]] = field(default_factory=deque)

    @property
    def is_over(self) -> bool:
        """Whether the oldest returned flight ends its step: while the last group computed it, the
        group n before had the n-th flight behind it, if there is one."""
        if not self.back:
            return False
        beat, before = self.back[0][0].beat, reversed(self.through)
        assert beat is not None  # others are not held up
        return all(n >= min(beat + 1 + g, self.next_beat) for g, n in enumerate(before, start=1))


class DraftDesk:
    """The work and the orders of one draft server, over all its sessions."""

    def __init__(
        self,
        draft: int,
        groups: Sequence[int],
        queue: ArrivalQueue,
        batch: int = 1,
        warm_up_ms: float | None = None,
        room: CacheRoom | None = None,
        least_log_prob: float = -inf,
        flights: Sequence[int | None] = (),
        rounds_ms: Sequence[RoundMs] = (),
    ) -> None:
        """Make the desk of one draft server.

        Args:
            draft: number of this server.
            groups: number of groups of stages, per pipeline.
            batch: maximum number of requests served together whose segments leave as one flight.
            warm_up_ms: idle gap after which a warm-up pass runs while requests are open; None:
                never.
            room: bound on its requests' keys and values; None: no bound.
            least_log_prob: least log probability of a candidate; less probable ones are dropped.
            flights: maximum number of flights, per pipeline; None or empty: no bound.
            rounds_ms: what a round takes, per pipeline, by which chains are cut; empty: none is.
        """
        self._warm_up_ms, self._idle_ms, self._in_vain = warm_up_ms, inf, 0
        self._draft, self._groups, self._queue, self._batch = draft, groups, queue, batch
        self.turns: list[Turn] = []
        self._turn: tuple[int | None, float, float] | None = None
        self._drafting = False  # a pass was run in this turn
        self._fed = set[int]()  # sessions that have fed a segment in it
        self._held: list[tuple[int, Message]] = []  # segments that wait for others of the turn
        self._sessions: dict[int, _Session] = {}
        self._lanes = [_Lane([0] * (count - 1)) for count in groups]
        self._passes: deque[tuple[tuple[int, DraftPass], ...]] = deque()
        self._lost: set[int] = set()
        self._gauge = Gauge()
        self._least_log_prob = least_log_prob
        self._dock = Dock(flights, batch)
        self._rounds_ms, self._chances = rounds_ms, dict[int, Sequence[float]]()
        self._caches, self._waiting = CacheBook(room or CacheRoom()), deque[int]()

    @property
    def turn_asked_ms(self) -> float | None:
        """Arrival time of the event that the current turn serves; None between turns."""
        return None if self._turn is None else self._turn[1]

    # --- arrivals --------------------------------------------------------------------------------

    def open(
        self, session: int, pipeline: int, schedule: Schedule, started: Started, now_ms: float
    ) -> None:
        self._enter(session, pipeline, schedule, started)
        self._waiting.append(session)
        self.admit(now_ms)

    def reopen(self, session: int, pipeline: int, schedule: Schedule, started: Started) -> None:
        """Put a preempted request back first, as a new session; ``admit`` follows the last one."""
        self._enter(session, pipeline, schedule, started)
        self._waiting.appendleft(session)

    def admit(self, now_ms: float) -> None:
        """Start waiting requests as far as there is room. A request without room blocks those
        behind it from the pipeline, or the draft, that it lacks."""
        if not self._waiting:
            return
        lacking = set[int]()
        for session in [*self._waiting]:
            state = self._sessions[session]
            if not lacking.isdisjoint((state.pipeline, DRAFT)):
                continue
            lacking.update(self._caches.lacking(state.pipeline, state.started))
            if lacking.isdisjoint((state.pipeline, DRAFT)):
                self._waiting.remove(session)
                self._caches.admit(session, state.pipeline, state.started)
                self._queue.put(state.pipeline, (now_ms, Begin(session)), now_ms)

    def _enter(self, session: int, pipeline: int, schedule: Schedule, started: Started) -> None:
        self._sessions[session] = _Session(pipeline, schedule, started)
        if type(self._gauge) is Gauge:  # else another request has chosen it
            self._gauge = schedule.gauge()

    def receive(self, message: Flight | Verified | Through, payload: Any, now_ms: float) -> None:
        if isinstance(message, Through):
            self.through(message, now_ms)
        else:
            flight = message if isinstance(message, Flight) else message.flight
            self.arrive(flight, payload, now_ms)

    def arrive(self, flight: Flight, payload: Any, now_ms: float) -> None:
        """Take a returned flight; the work that evaluates it carries ``payload``."""
        if flight.beat is None:
            self._queue_flight(flight, payload, now_ms)
        else:
            lane = self._lanes[flight.pipeline]
            lane.back.append((flight, payload))
            self._end_steps(lane, now_ms)

    def through(self, said: Through, now_ms: float) -> None:
        """Note that a group of stages has computed its next flight.

        Raises:
            ProtocolError: there is no such group, or it is not this flight's turn there.
        """
        lane = self._lanes[said.pipeline]
        in_turn = said.group < len(lane.through) and said.beat == lane.through[said.group]
        require(in_turn, f"group {said.group} is through with flight {said.beat} out of turn")
        lane.through[said.group] += 1
        self._end_steps(lane, now_ms)

    def _end_steps(self, lane: _Lane, now_ms: float) -> None:
        while lane.is_over:
            self._queue_flight(*lane.back.popleft(), now_ms)

    def _queue_flight(self, flight: Flight, payload: Any, now_ms: float) -> None:
        self._gauge.arrived(flight, now_ms)
        self._queue.put(flight.pipeline, (now_ms, Evaluate(flight, payload)), now_ms)

    @property
    def wake_ms(self) -> float | None:
        """Time at which to ask for work again if nothing arrives before; None: never."""
        if self._warm_up_ms is None or not self._sessions or self._in_vain == MOST_IN_VAIN:
            return None
        return self._idle_ms + self._warm_up_ms if self._idle_ms < inf else None

    def next(self, now_ms: float) -> Work | None:
        """Return the next work, or None until a message arrives (or ``wake_ms``)."""
        work = self._next(now_ms)
        self._gauge.given(work, now_ms)
        if work is not None:
            self._idle_ms, self._in_vain = inf, 0
            return work
        self._idle_ms = min(self._idle_ms, now_ms)
        wake_ms = self.wake_ms
        if wake_ms is None or now_ms < wake_ms - ROUNDING_MS:
            return None
        self._idle_ms, self._in_vain = inf, self._in_vain + 1
        return WarmUp()

    def _next(self, now_ms: float) -> Work | None:
        for passes in self._passes:
            if not self._listens(passes):
                return self._draft_next(now_ms)
        while len(self._queue):
            queued: tuple[float, Begin | Evaluate] = self._queue.pop()
            arrived_ms, work = queued
            if self._is_open(work):
                self._end_turn(now_ms)
                pipeline = work.flight.pipeline if isinstance(work, Evaluate) else None
                self._turn = pipeline, arrived_ms, now_ms
                self._drafting = False
                self._fed.clear()
                return work
        if self._passes:
            return self._draft_next(now_ms)
        self._end_turn(now_ms)
        return None

    def _draft_next(self, now_ms: float) -> Draft:
        passes = self._passes.popleft()
        later, self._drafting = self._drafting, True
        return Draft(passes, later)

    def _is_open(self, work: Begin | Evaluate) -> bool:
        if isinstance(work, Begin):
            return work.session in self._sessions
        flight = work.flight
        if flight.pipeline in self._lost:
            return False
        return flight.beat is not None or any(s.session in self._sessions for s in flight.segments)

    def _end_turn(self, now_ms: float) -> None:
        if self._turn is not None:
            self.turns.append(Turn(self._draft, *self._turn, now_ms))
            self._turn = None

    def _listens(self, passes: tuple[tuple[int, DraftPass], ...]) -> bool:
        sessions = self._sessions
        return not [each for each, _ in passes if not sessions[each].schedule.listens]

    # --- completed work --------------------------------------------------------------------------

    def began(self, work: Begin) -> Orders:
        orders, started = Orders(), self._sessions[work.session].started
        self._queue_passes(self._serve(orders, work.session, started))
        return self._leave_dock(orders)

    def returned(self, flight: Flight, answers: Sequence[tuple[int, ...]]) -> Orders:
        """Take the target's tokens at an evaluated flight, per segment and row; return orders."""
        seen = self._gauge.seen(len(self._caches))
        events = {
            segment.session: Returned(segment.ticket, segment.version, segment.start, tokens, seen)
            for segment, tokens in zip(flight.segments, answers, strict=True)
            if segment.session in self._sessions
        }
        if flight.beat is not None and flight.pipeline not in self._lost:
            return self._with_room(self._step(flight, events))
        orders, passes = Orders(), list[tuple[int, DraftPass]]()
        for session, event in events.items():
            passes += self._serve(orders, session, event)
        self._queue_passes(passes)
        self._dock.landed(flight)
        self._hold(orders)
        return self._together(self._with_room(orders))

    def drafted(self, answers: Sequence[tuple[int, Drafted]]) -> Orders:
        """Take the answers of a batch of draft passes."""
        orders, passes = Orders(), []
        for session, drafted in answers:
            if session in self._sessions:
                if self._least_log_prob > -inf and len(drafted.tokens):
                    drafted = drafted.least(self._least_log_prob)
                passes += self._absorb(orders, session, self._handle(session, drafted))
        self._queue_passes(passes)
        self._hold(orders)
        return self._together(self._with_room(orders))

    def _hold(self, orders: Orders) -> None:
        """Keep segments back: drafts of one turn may differ in length, and a request that is ready
        waits for those that have not fed yet, so that those that came back together leave so."""
        if self._batch > 1:
            messages, orders.messages = orders.messages, []
            for each in messages:
                (self._held if isinstance(each[1], Flight) else orders.messages).append(each)

    def _together(self, orders: Orders) -> Orders:
        """Add what was held back, if nothing is awaited any more."""
        if self._held and not self._awaited:
            orders.messages, self._held = [*orders.messages, *self._held], []
        return self._leave_dock(self._gathered(orders))

    def _leave_dock(self, orders: Orders) -> Orders:
        """Add the flights that may leave, and cut the chains in them."""
        orders = self._dock.release(orders)
        if self._chances:
            orders.messages = [
                (pipeline, self._cut(each) if isinstance(each, Flight) else each)
                for pipeline, each in orders.messages
            ]
        return orders

    def _cut(self, flight: Flight) -> Flight:
        own = [s.session for s in flight.segments if s.session in self._chances]
        chances = {session: self._chances.pop(session) for session in own}
        return shortened(flight, chances, self._rounds_ms[flight.pipeline])

    @property
    def _awaited(self) -> bool:
        """Whether a request still drafts for its first segment of this turn."""
        waiting = {session for passes in self._passes for session, _ in passes} - self._fed
        return any(not self._sessions[session].schedule.listens for session in waiting)

    def lose(self, pipeline: int, worker: str) -> Orders:
        """End the requests of a lost pipeline with the tokens that they have."""
        orders = Orders()
        for session in [s for s, state in self._sessions.items() if state.pipeline == pipeline]:
            self._queue_passes(self._serve(orders, session, WorkerLost(worker)))
        self._lost.add(pipeline)
        orders.messages.clear()  # the pipeline is gone
        return orders

    # --- events to schedules ---------------------------------------------------------------------

    def _serve(self, orders: Orders, session: int, event: Event) -> list[tuple[int, DraftPass]]:
        """Pass an event to a request; return its draft passes that are not yet queued."""
        state = self._sessions[session]
        passes = self._absorb(orders, session, self._handle(session, event))
        if state.schedule.in_step and session not in self._lanes[state.pipeline].sessions:
            self._queue_passes(passes)
            self._join(orders, session)
            return []
        return passes

    def _handle(self, session: int, event: Event) -> Sequence[Command]:
        return self._sessions[session].schedule.handle(event)

    def _absorb(
        self, orders: Orders, session: int, commands: Sequence[Command]
    ) -> list[tuple[int, DraftPass]]:
        """Turn commands into orders; return the draft passes among them."""
        passes, pipeline = [], self._sessions[session].pipeline
        for command in commands:
            self._gauge.commanded(session, command)
            if isinstance(command, DraftPass):
                passes.append((session, command))
            elif isinstance(command, Withdraw):
                waiting = {
                    order.ticket for group in self._passes for s, order in group if s == session
                }
                require(command.ticket in waiting, f"no draft pass {command.ticket} waits to begin")
                self._unqueue(session, command.ticket)
            elif isinstance(command, Feed):
                flight = Flight(self._draft, pipeline, (command.segment,))
                orders.messages.append((pipeline, flight))
                self._fed.add(session)
                if command.chances and self._rounds_ms:
                    self._chances[session] = command.chances
            elif isinstance(command, Announce):
                orders.messages.append((pipeline, Beat(self._draft, (command.word,))))
            elif isinstance(command, Emit):
                orders.emitted.append((session, command.tokens))
            elif not isinstance(command, Judged):  # only the gauge reads it
                self._close(orders, session, command.reason)
        return passes

    def _gathered(self, orders: Orders) -> Orders:
        """Join segments that were fed together into one flight, behind all words."""
        if self._batch == 1:
            return orders
        others, flights = list[tuple[int, Message]](), list[Flight]()
        for pipeline, message in orders.messages:
            if isinstance(message, Flight) and message.beat is None:
                board(flights, message, self._batch)
            else:
                others.append((pipeline, message))
        orders.messages = [*others, *((flight.pipeline, flight) for flight in flights)]
        return orders

    def _queue_passes(self, passes: list[tuple[int, DraftPass]]) -> None:
        if passes:
            self._passes.append(tuple(passes))

    def _unqueue(self, session: int, ticket: int | None = None) -> None:
        """Drop a session's passes that have not begun, or the one with this ticket."""
        kept = [
            tuple([p for p in group if p[0] != session or ticket not in (None, p[1].ticket)])
            for group in self._passes
        ]
        self._passes = deque([group for group in kept if group])

    def _with_room(self, orders: Orders) -> Orders:
        """Reserve cache room for emitted tokens, and preempt requests for which none is left.

        This runs after everything else that the event caused: the tokens emitted by then are final,
        so a preempted request repeats no draw for them.
        """
        if orders.emitted:
            for session in self._caches.grow(orders.emitted):
                self._leave(orders, session)
                orders.preempted.append(session)
        return orders

    def _close(self, orders: Orders, session: int, reason: str) -> None:
        self._leave(orders, session)
        orders.finished.append((session, reason))

    def _leave(self, orders: Orders, session: int) -> None:
        """Forget a session, and close it on the stages."""
        state = self._sessions.pop(session)
        self._gauge.left(session)
        self._caches.free(session)
        if session in self._waiting:
            self._waiting.remove(session)
        lane = self._lanes[state.pipeline]
        if session in lane.sessions:
            lane.sessions.remove(session)
        self._unqueue(session)
        self._held = [each for each in self._held if each[1].session != session]
        self._dock.left(session)
        self._chances.pop(session, None)
        orders.messages.append((state.pipeline, Close(session)))

    # --- lock-step of a pipeline -----------------------------------------------------------------

    def _join(self, orders: Orders, session: int) -> None:
        """Let a request take part from now on, and start the steps of a pipeline at rest."""
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
        """End a step of all requests that take part, and send the next beat and flight."""
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
