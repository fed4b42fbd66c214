"""The queue of one draft server: the order of its work, and the orders that follow from it.

The draft server does one thing at a time. A turn (a request begins, or a flight came back) is
served to its end, draft passes included, before the next one in the queue; only schedules that
listen receive segments between the passes of a draft. Both worlds ask ``next`` for work, do it,
report it, and carry out the orders.

When all schedules have answered an event, its orders go once through the server's room
(``cache_room.py``), which preempts requests, and its dock (``dock.py``), which says what leaves.
``barrier.py`` says when a step of a pipeline in lock-step is over; then all requests that take part
step together, and their draft passes form one batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

from treepipe.core.barrier import PipelineSteps
from treepipe.core.cache_room import CacheBook
from treepipe.core.dock import Dock
from treepipe.core.draft_work import Begin, Draft, Evaluate, Orders, Turn, WarmUp, Work
from treepipe.core.front_desk import ArrivalQueue
from treepipe.core.messages import (
    Beat,
    Close,
    Flight,
    Message,
    Segment,
    Text,
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

ROUNDING_MS = 1e-6
"""Tolerance of times that clocks compute by adding differences."""
MOST_IN_VAIN = 1000
"""Number of warm-up passes in a row, after which the server stops them to expose deadlocks."""


@dataclass(slots=True)
class _Session:
    pipeline: int
    schedule: Schedule
    started: Started


Batch: TypeAlias = tuple[tuple[int, DraftPass], ...]
"""Draft passes of sessions that run as one."""


class _Idleness:
    """The gap after which a draft server warms up its draft (StarSD, section 5.3)."""

    def __init__(self, warm_up_ms: float | None) -> None:
        self._warm_up_ms, self._since_ms, self._in_vain = warm_up_ms, inf, 0

    @property
    def wake_ms(self) -> float | None:
        if self._warm_up_ms is None or self._in_vain == MOST_IN_VAIN or self._since_ms == inf:
            return None
        return self._since_ms + self._warm_up_ms

    def worked(self) -> None:
        self._since_ms, self._in_vain = inf, 0

    def begin(self, now_ms: float) -> None:
        """Begin a gap, unless one is under way."""
        self._since_ms = min(self._since_ms, now_ms)

    def warm_up(self) -> None:
        """End the gap by a pass in vain."""
        self._since_ms, self._in_vain = inf, self._in_vain + 1


class DraftDesk:
    """The work and the orders of one draft server, over all its sessions."""

    def __init__(
        self,
        draft: int,
        groups: Sequence[int],
        queue: ArrivalQueue,
        room: CacheBook | None = None,
        dock: Dock | None = None,
        *,
        leads: bool = False,
        warm_up_ms: float | None = None,
        least_log_prob: float = -inf,
    ) -> None:
        """Make the desk of one draft server.

        Args:
            draft: number of this server.
            groups: number of groups of stages, per pipeline.
            room: keys and values of its requests; None: no bound.
            dock: its flights; None: one request each, and no bound.
            leads: another draft drafts for this one (``levels.py``); what it is sent stands in
                orders under the number behind the pipelines'.
            warm_up_ms: idle gap after which a warm-up pass runs while requests are open; None:
                never.
            least_log_prob: least log probability of a candidate; less probable ones are dropped.
        """
        self._draft, self._queue = draft, queue
        self._below = len(groups) if leads else None
        self.room = CacheBook() if room is None else room
        self._dock = Dock() if dock is None else dock
        self.steps = PipelineSteps(draft, groups)
        self._idle, self._least_log_prob = _Idleness(warm_up_ms), least_log_prob
        self.turns: list[Turn] = []
        self._turn: tuple[int | None, float, float] | None = None
        self._fed = set[int]()  # sessions that have fed a segment in it
        self._sessions: dict[int, _Session] = {}
        self._passes: deque[Batch] = deque()
        self._lost: set[int] = set()
        self._gauge = Gauge()

    @property
    def sessions(self) -> Collection[int]:
        """Numbers of the open sessions."""
        return self._sessions.keys()

    @property
    def has_work(self) -> bool:
        """Whether there may be a next work."""
        return bool(self._passes) or len(self._queue) > 0

    @property
    def at_rest(self) -> bool:
        """Whether nothing is open, waits or is under way."""
        return not (self._sessions or self.has_work) and self._dock.empty and self.steps.at_rest

    @property
    def turn_asked_ms(self) -> float | None:
        """Arrival time of the event that the current turn serves; None between turns."""
        return None if self._turn is None else self._turn[1]

    # --- arrivals --------------------------------------------------------------------------------

    def open(
        self,
        session: int,
        pipeline: int,
        schedule: Schedule,
        started: Started,
        now_ms: float,
        *,
        again: bool = False,
    ) -> None:
        """Let a request wait for room. Args: ``again``: it was preempted and comes back first, as a
        new session; ``admit`` follows the last one."""
        self._sessions[session] = _Session(pipeline, schedule, started)
        self.room.wait(session, pipeline, started, first=again)
        if type(self._gauge) is Gauge:  # else another request has chosen it
            self._gauge = schedule.gauge()
        if not again:
            self.admit(now_ms)

    def admit(self, now_ms: float) -> None:
        """Start waiting requests as far as there is room."""
        for session, pipeline in self.room.next():
            self._queue.put(pipeline, (now_ms, Begin(session)), now_ms)

    def receive(self, message: Message, payload: Any, now_ms: float) -> None:
        """Take a message; the work that evaluates a returned flight carries ``payload``."""
        if isinstance(message, Through):  # a group of stages has computed its next flight
            self.steps.through(message)
            self._end_steps(message.pipeline, now_ms)
        elif isinstance(message, Text):
            if message.session in self._sessions:
                self._handle(message.session, message)
        else:
            assert isinstance(message, Flight | Verified)
            flight = message if isinstance(message, Flight) else message.flight
            if flight.beat is None:
                self._queue_flight(flight, payload, now_ms)
            else:
                self.steps.arrive(flight, payload)
                self._end_steps(flight.pipeline, now_ms)

    def _end_steps(self, pipeline: int, now_ms: float) -> None:
        for flight, payload in self.steps.over(pipeline):
            self._queue_flight(flight, payload, now_ms)

    def _queue_flight(self, flight: Flight, payload: Any, now_ms: float) -> None:
        self._gauge.arrived(flight, now_ms)
        self._queue.put(flight.pipeline, (now_ms, Evaluate(flight, payload)), now_ms)

    @property
    def wake_ms(self) -> float | None:
        """Time at which to ask for work again if nothing arrives before; None: never."""
        return self._idle.wake_ms if self._sessions else None

    def next(self, now_ms: float) -> Work | None:
        """Return the next work, or None until a message arrives (or ``wake_ms``)."""
        work = self._next(now_ms)
        self._gauge.given(work, now_ms)
        if work is not None:
            self._idle.worked()
            return work
        self._idle.begin(now_ms)
        wake_ms = self.wake_ms
        if wake_ms is None or now_ms < wake_ms - ROUNDING_MS:
            return None
        self._idle.warm_up()
        return WarmUp()

    def _next(self, now_ms: float) -> Work | None:
        for passes in self._passes:
            if not self._listens(passes):
                return Draft(self._passes.popleft())
        while len(self._queue):
            queued: tuple[float, Begin | Evaluate] = self._queue.pop()
            arrived_ms, work = queued
            if self._is_open(work):
                self._end_turn(now_ms)
                pipeline = work.flight.pipeline if isinstance(work, Evaluate) else None
                self._turn = pipeline, arrived_ms, now_ms
                self._fed.clear()
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
        return flight.beat is not None or any(s.session in self._sessions for s in flight.segments)

    def _end_turn(self, now_ms: float) -> None:
        if self._turn is not None:
            self.turns.append(Turn(self._draft, *self._turn, now_ms))
            self._turn = None

    def _listens(self, passes: Batch) -> bool:
        sessions = self._sessions
        return not [each for each, _ in passes if not sessions[each].schedule.listens]

    # --- completed work --------------------------------------------------------------------------

    def began(self, work: Begin) -> Orders:
        orders, started = Orders(), self._sessions[work.session].started
        self._queue_passes(self._serve(orders, work.session, started))
        return self._settled(orders)

    def returned(self, flight: Flight, answers: Sequence[tuple[int, ...]]) -> Orders:
        """Take the target's tokens at an evaluated flight, per segment and row; return orders."""
        seen = self._gauge.seen(len(self.room))
        events = {
            segment.session: Returned(segment.ticket, segment.version, segment.start, tokens, seen)
            for segment, tokens in zip(flight.segments, answers, strict=True)
            if segment.session in self._sessions
        }
        if flight.beat is not None and flight.pipeline not in self._lost:
            return self._settled(self._step(flight, events), of_step=True)
        orders, passes = Orders(), list[tuple[int, DraftPass]]()
        for session, event in events.items():
            passes += self._serve(orders, session, event)
        self._queue_passes(passes)
        self._dock.landed(flight)
        return self._settled(orders)

    def drafted(self, answers: Sequence[tuple[int, Drafted]]) -> Orders:
        """Take the answers of a batch of draft passes."""
        orders, passes = Orders(), []
        for session, drafted in answers:
            if session in self._sessions:
                if self._least_log_prob > -inf and len(drafted.tokens):
                    drafted = drafted.least(self._least_log_prob)
                passes += self._absorb(orders, session, self._handle(session, drafted))
        self._queue_passes(passes)
        return self._settled(orders)

    def _settled(self, orders: Orders, *, of_step: bool = False) -> Orders:
        """Pass orders through the room and the dock, behind all that the event has caused."""
        self.room.take(orders)
        for session in orders.preempted:
            self._leave(orders, session)
        if not of_step:
            self._dock.take(orders, self._awaits)
        return orders

    def _awaits(self) -> bool:
        """Whether a request still drafts for its first segment of this turn."""
        waiting = {session for passes in self._passes for session, _ in passes} - self._fed
        return any(not self._sessions[session].schedule.listens for session in waiting)

    def lose(self, pipeline: int, worker: str) -> Orders:
        """End the requests of a lost pipeline with the tokens that they have."""
        orders = Orders()
        for session in [s for s, state in self._sessions.items() if state.pipeline == pipeline]:
            self._queue_passes(self._serve(orders, session, WorkerLost(worker)))
        self._lost.add(pipeline)
        below = [each for each in orders.messages if each[0] == self._below]
        orders.messages.clear()  # the pipeline is gone
        orders.messages += below
        return orders

    # --- events to schedules ---------------------------------------------------------------------

    def _serve(self, orders: Orders, session: int, event: Event) -> list[tuple[int, DraftPass]]:
        """Pass an event to a request; return its draft passes that are not yet queued."""
        state = self._sessions[session]
        passes = self._absorb(orders, session, self._handle(session, event))
        if state.schedule.in_step and session not in self.steps.sessions(state.pipeline):
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
                self._dock.may_cut(session, command.chances)
            elif isinstance(command, Announce):
                orders.messages.append((pipeline, Beat(self._draft, (command.word,))))
            elif isinstance(command, Text):
                assert self._below is not None  # else its schedule has nobody to tell
                orders.messages.append((self._below, command))
            elif isinstance(command, Emit):
                orders.emitted.append((session, command.tokens))
            elif not isinstance(command, Judged):  # only the gauge reads it
                self._close(orders, session, command.reason)
        return passes

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

    def _close(self, orders: Orders, session: int, reason: str) -> None:
        self._leave(orders, session)
        orders.finished.append((session, reason))

    def _leave(self, orders: Orders, session: int) -> None:
        """Forget a session, and close it on the stages."""
        state = self._sessions.pop(session)
        for each in (self._gauge, self.room, self.steps, self._dock):
            each.left(session)
        self._unqueue(session)
        orders.messages.append((state.pipeline, Close(session)))
        if self._below is not None:
            orders.messages.append((self._below, Close(session)))

    # --- lock-step of a pipeline -----------------------------------------------------------------

    def _join(self, orders: Orders, session: int) -> None:
        """Let a request take part from now on, and start the steps of a pipeline at rest."""
        pipeline = self._sessions[session].pipeline
        before = self.steps.join(pipeline, session)
        if before is None:
            return
        _, feeds, passes = self._step_session(orders, session, None)
        flights = [*before, self.steps.fly(pipeline, feeds)]
        orders.messages += [(pipeline, flight) for flight in flights]
        self._queue_passes(passes)

    def _step(self, flight: Flight, events: dict[int, Returned]) -> Orders:
        """End a step of all requests that take part, and send the next beat and flight."""
        orders, pipeline = Orders(), flight.pipeline
        self.steps.landed(pipeline)
        words: list[Word] = []
        feeds: list[Segment] = []
        passes: list[tuple[int, DraftPass]] = []
        for session in self.steps.sessions(pipeline):
            said = self._step_session(orders, session, events.get(session))
            words += said[0]
            feeds += said[1]
            passes += said[2]
        beat = Beat(self._draft, tuple(words), flight.beat)
        orders.messages.insert(0, (pipeline, beat))
        if self.steps.sessions(pipeline):
            orders.messages.append((pipeline, self.steps.fly(pipeline, feeds)))
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
