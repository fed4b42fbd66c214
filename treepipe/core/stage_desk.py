"""The queue of one pipeline stage: the message that is due, and the flights computed together.

A flight is computed when every segment of it is due in its own session (``stage.py``) and, if its
pipeline runs in lock-step, its step is due: group g of G computes the first G + 1 - g flights at
once; then beats and flights alternate, and an early message waits (PipeDec, section 3.1). Each
group reports each computed flight, so that a step ends for all together (section 3.4.3;
``draft_desk.py`` waits for the reports). Where a step has phases, a group's result leaves when the
step's words are applied (section 3.4: compute, prune everywhere, transfer). Sessions take turns in
order of arrival of their messages; in lock-step prompts come before all steps, or behind those that
are due.

With a batch, waiting flights are computed and sent on as one: of one draft server, of different
sessions, at most ``batch`` segments with rows. Prunes come first, so that no pass waits for one;
prompts come after all others where a pass has no room for all, or before them.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from treepipe.core.barrier import Barrier, Groups, group_sizes
from treepipe.core.errors import ProtocolError
from treepipe.core.messages import Beat, Close, Flight, Message, Segment, Through, record
from treepipe.core.stage import Prune, Run, StageSession


@record
class Move:
    """Compute the remaining rows of a flight in one pass and send it on; no rows cost nothing.

    Attributes:
        flight: the flight with up-to-date segments.
        rows: per segment the positions of the remaining rows in the segment as it arrived; None
            means all of them.
        payloads: per segment the payload that the world gave with it.
    """

    flight: Flight
    rows: tuple[tuple[int, ...] | None, ...]
    payloads: tuple[Any, ...]

    @property
    def tokens(self) -> int:
        return self.flight.rows


@record
class Send:
    """Send on the part of a computed flight that later words have left.

    Attributes:
        flight: the flight with up-to-date segments.
        rows, payloads: as in ``Move``, of the computed segments.
    """

    flight: Flight
    rows: tuple[tuple[int, ...] | None, ...]
    payloads: tuple[Any, ...]


StageWork: TypeAlias = Prune | Move | Send
Place: TypeAlias = Literal["first", "last"]
"""Place of prompts that do not fit into a pass with the other segments."""


def together(moves: Sequence[Move]) -> Move:
    """Join moves of different sessions into one along the first one's way."""
    first, *others = moves
    if not others:
        return first
    return Move(
        first.flight.holding(tuple([s for move in moves for s in move.flight.segments])),
        tuple([rows for move in moves for rows in move.rows]),
        tuple([payload for move in moves for payload in move.payloads]),
    )


@dataclass(slots=True)
class _Gathering:
    """A flight whose segments become due one by one."""

    flight: Flight
    payloads: dict[int, Any]
    due: dict[int, tuple[Segment, tuple[int, ...] | None]] = field(default_factory=dict)

    @property
    def is_prompt(self) -> bool:
        """Whether it holds only chunks of prompts (a chunk of one row costs no more than text)."""
        return all(each.committed and len(each.tokens) > 1 for each in self.flight.segments)

    @property
    def is_complete(self) -> bool:
        return len(self.due) == len(self.flight.segments)

    @property
    def is_over(self) -> bool:
        return self.flight.beat is None and not self.flight.segments

    def leave(self, session: int) -> None:
        segments = tuple([s for s in self.flight.segments if s.session != session])
        self.flight = self.flight.holding(segments)
        self.payloads.pop(session, None)
        self.due.pop(session, None)

    def move(self) -> Move:
        segments = [self.due[each.session] for each in self.flight.segments]
        return Move(
            self.flight.holding(tuple([segment for segment, _ in segments])),
            tuple([rows for _, rows in segments]),
            tuple([self.payloads[segment.session] for segment, _ in segments]),
        )


@dataclass(slots=True)
class _Lane:
    """The lock-step of one draft server's flights."""

    barrier: Barrier
    beats: deque[Beat] = field(default_factory=deque)
    flights: deque[tuple[int, Flight, Sequence[Any]]] = field(default_factory=deque)


KEPT_CLOSED = 1 << 14
"""Number of closed sessions remembered; fewer requests end while one message is on its way."""


class StageDesk:
    """The work of one stage, over all its sessions."""

    def __init__(
        self,
        stage: int,
        stages: int,
        groups: Groups = 1,
        batch: int = 1,
        prompts: Place = "last",
        *,
        in_phases: bool = False,
        reported_states: int = 0,
    ) -> None:
        """Make the desk of one stage.

        Args:
            stage: number of this stage, from 1 to ``stages``.
            groups: stages in a row that work one after another within a step.
            batch: maximum number of requests in one pass.
            prompts: place of prompts among the segments that wait for a shared pass, or for a step.
            in_phases: a step's results leave their groups when its words are applied, instead of as
                soon as they are computed.
            reported_states: number of a flight's states that its report takes to the draft server.
        """
        self._stage, self._stages, self._reported = stage, stages, reported_states
        self._batch, self._prompts = batch, prompts
        ends = [*itertools.accumulate(group_sizes(groups, stages))]
        self._free_beats = sum(end >= stage for end in ends)
        self._group = ends.index(stage) if stage in ends[:-1] else None  # which it ends
        self._holds = in_phases and self._group is not None
        self._held: tuple[Flight, tuple[Any, ...]] | None = None
        self._sessions: dict[int, StageSession] = {}
        self._waiting: dict[int, dict[int, _Gathering]] = {}
        self._turns: dict[int, None] = {}
        self._gathered: set[int] = set()
        self._lanes: dict[int, _Lane] = {}
        self._ready: deque[_Gathering] = deque()
        self._closed: dict[int, None] = {}  # the newest ones
        self._idle = True

    @property
    def has_work(self) -> bool:
        return not self._idle

    @property
    def sessions(self) -> Mapping[int, StageSession]:
        """The open sessions; read-only."""
        return self._sessions

    @property
    def flights(self) -> list[Flight]:
        """The flights that it holds."""
        gathering = [each for waiting in self._waiting.values() for each in waiting.values()]
        flights = [each.flight for each in (*gathering, *self._ready)]
        flights += [flight for lane in self._lanes.values() for _, flight, _ in lane.flights]
        return flights if self._held is None else [*flights, self._held[0]]

    @property
    def at_rest(self) -> bool:
        """Whether nothing is open, waits or is under way; beats of the last flights in the groups
        below may be left."""
        work = self._sessions, self._waiting, self._turns, self._gathered, self.flights
        return not any(work) and all(
            len(lane.beats) < self._free_beats for lane in self._lanes.values()
        )

    def gathers(self, session: int) -> bool:
        """Whether the session has had its turn, and its segment waits for others of its flight."""
        return session in self._gathered

    @property
    def queue(self) -> tuple[int, bool, Any] | None:
        """Its only session, whether a word is due that waits for no segment, and the payload of the
        first waiting segment (None: none waits); None if there is not one session, or flights are
        in lock-step."""
        if self._lanes or len(self._sessions) != 1:
            return None
        ((number, state),) = self._sessions.items()
        first = state.first
        held = None if first is None else self._waiting[number][first.ticket].payloads[number]
        return number, state.word_is_due, held

    @property
    def state(self) -> str:
        """The messages that it waits for, for the report of a deadlock."""
        waiting = {session: len(found) for session, found in self._waiting.items() if found}
        if waiting:
            words = {session: self._sessions[session].version for session in waiting}
            return f"holds segments of requests {waiting} and waits for words {words}"
        held = sum(len(lane.flights) for lane in self._lanes.values())
        return f"holds {held} flights and waits for a beat" if held else "waits for a segment"

    def receive(self, message: Message, payloads: Sequence[Any] = ()) -> list[int]:
        """Queue a message, with a payload per segment of a flight for the ``Move``; return the
        sessions that are new with it."""
        known = len(self._sessions)
        if isinstance(message, Flight):
            payloads = payloads or (None,) * len(message.segments)
            if message.beat is None:
                self._release(message, payloads)
            else:
                lane = self._lane(message.draft)
                lane.flights.append((message.beat, message, payloads))
                self._advance(lane)
        elif isinstance(message, Beat):
            self._beat(message)
        elif isinstance(message, Close):
            self._close(message.session)
        else:
            raise ProtocolError("what is verified goes to a draft server, not to a stage")
        return [] if len(self._sessions) == known else list(self._sessions)[known:]

    def next_action(self) -> StageWork | None:
        if self._idle:
            return None
        leaving = None if self._held is None else self._released
        if leaving is not None:  # behind all prunes, and before the next flight is taken
            return self._next_prune() or self._send(*leaving)
        if self._ready:
            return self._take(self._leaving(self._ready.popleft()))
        ordered = self._batch > 1 or self._lanes
        action = self._next_together() if ordered else self._next_alone()
        if action is not None:
            return action
        if self._ready:
            return self.next_action()
        self._idle = True
        return None

    def _next_alone(self) -> Prune | Move | None:
        for session in self._free():
            action = self._act(session)
            if action is not None:
                return action if isinstance(action, Prune) else self._take(action)
        return None

    def _next_together(self) -> Prune | Move | None:
        """Return the first prune, else one move of all flights that may be computed together."""
        prune = self._next_prune()
        if prune is not None:
            return prune
        moves: list[Move] = []
        for session in self._order():
            if moves and not self._has_room(moves, session):
                continue
            action = self._act(session)
            if isinstance(action, Prune):
                return action
            if action is not None:
                moves.append(self._take(action))
                if action.flight.beat is not None:
                    break
        return together(moves) if moves else None

    def _free(self) -> list[int]:
        """Return the sessions with a turn whose segment does not wait for others of its flight."""
        gathered = self._gathered
        if not gathered:
            return [*self._turns]
        return [session for session in self._turns if session not in gathered]

    def _order(self) -> list[int]:
        """Return the free sessions in the order in which their segments are taken."""
        last = self._prompts == "last"
        return sorted(self._free(), key=lambda session: self._brings_prompt(session) == last)

    def _due(self, session: int) -> _Gathering | None:
        segment = self._sessions[session].due
        return None if segment is None else self._waiting[session][segment.ticket]

    def _brings_prompt(self, session: int) -> bool:
        gathering = self._due(session)
        return gathering is not None and gathering.is_prompt

    def _has_room(self, moves: Sequence[Move], session: int) -> bool:
        """Whether a session's next flight may join the gathered moves."""
        gathering = self._due(session)
        if gathering is None:
            return True  # no flight is due
        flight, first = gathering.flight, moves[0].flight
        taken = sum([bool(s.tokens) for move in moves for s in move.flight.segments])
        fits = taken + sum([bool(s.tokens) for s in flight.segments]) <= self._batch
        return fits and flight.draft == first.draft and flight.beat is None

    def _act(self, session: int) -> Prune | Move | None:
        """Return a session's next prune, or the move of a flight that it completes."""
        state = self._sessions[session]
        before = state.round
        action = state.next_action()
        if state.round > before:
            self._forget_ended_rounds(session)
        if action is None:
            if not self._waiting[session]:
                del self._turns[session]
            return None
        if isinstance(action, Prune):
            return action
        return self._gather(action.segment, action.rows if isinstance(action, Run) else ())

    def _next_prune(self) -> Prune | None:
        """Return the next prune, without taking a segment."""
        for session in self._free():
            state = self._sessions[session]
            before = state.round
            prune = state.next_prune()
            if state.round > before:
                self._forget_ended_rounds(session)
            if prune is not None:
                return prune
        return None

    def given_up(self, flight: Flight) -> Flight | None:
        """Return the flight under way without a row, if what has come since leaves none: its pass
        ends, and markers go on, each of which answers its ticket. What the pass has put into the
        caches is what the next prune drops. None: the pass goes on."""
        left = list[Segment]()
        for segment in flight.segments:
            state = self._sessions.get(segment.session)
            given_up = segment if state is None else state.given_up(segment)
            if given_up is None:
                return None
            if state is not None:
                left.append(given_up)
        return flight.holding(tuple(left))

    def computed(self, flight: Flight, payloads: Sequence[Any] = ()) -> bool:
        """Note that a flight is computed, with a payload per segment for the ``Send``; return
        whether to send it on at once. If not, ``next_action`` returns the ``Send`` when it is
        due."""
        if not self._holds or flight.beat is None:
            return True
        self._held = flight, tuple(payloads) or (None,) * len(flight.segments)
        self._idle = False
        return False

    def through(self, flight: Flight) -> Through | None:
        """Return the report of a computed flight to the draft server; None if it needs none."""
        if self._group is None or flight.beat is None:
            return None
        states = self._reported if flight.rows else 0
        return Through(flight.draft, flight.pipeline, self._group, flight.beat, states)

    @property
    def _released(self) -> tuple[Flight, tuple[Any, ...]] | None:
        """The held flight, once the next one may be taken, so that the words before it are due."""
        if self._held is None:
            return None
        flight = self._held[0]
        assert flight.beat is not None  # others are not held
        return self._held if self._lanes[flight.draft].barrier.lets(flight.beat + 1) else None

    def _send(self, flight: Flight, payloads: tuple[Any, ...]) -> Send:
        self._held = None
        alive = [
            (*self._sessions[segment.session].catch_up(segment), payload)
            for segment, payload in zip(flight.segments, payloads, strict=True)
            if segment.session in self._sessions
        ]
        segments = tuple([segment for segment, _, _ in alive])
        rows, left = tuple([rows for _, rows, _ in alive]), tuple([each for *_, each in alive])
        return Send(flight.holding(segments), rows, left)

    def parts(self, flight: Flight) -> list[tuple[int, int]]:
        """Return the rows of each segment of a move's flight, and the number of cached tokens
        before them (committed ones and the tree's)."""
        found = []
        for segment in flight.segments:
            if segment.committed:
                found.append((len(segment.tokens), segment.positions[0]))
            elif segment.tokens:
                committed = self._sessions[segment.session].committed
                found.append((len(segment.tokens), committed + segment.start))
        return found

    def _take(self, move: Move) -> Move:
        if move.flight.beat is not None:
            lane = self._lanes[move.flight.draft]
            lane.barrier.taken += 1
            self._advance(lane)
        return move

    def _gather(self, segment: Segment, rows: tuple[int, ...] | None) -> Move | None:
        session = segment.session
        gathering = self._waiting[session].pop(segment.ticket)
        flight = gathering.flight
        if len(flight.segments) > 1:
            gathering.due[session] = segment, rows
            self._gathered.add(session)
            return self._leaving(gathering) if gathering.is_complete else None
        self._to_the_back(session)
        if segment is not flight.segments[0]:
            flight = flight.holding((segment,))
        return Move(flight, (rows,), (gathering.payloads[session],))

    def _leaving(self, gathering: _Gathering) -> Move:
        """Return the move of a flight whose segments are all due; its sessions go to the back."""
        for session in gathering.due:
            self._gathered.discard(session)
            self._to_the_back(session)
        return gathering.move()

    def _to_the_back(self, session: int) -> None:
        del self._turns[session]
        self._turns[session] = None

    def _beat(self, beat: Beat) -> None:
        if beat.number is None:
            self._tell(beat)
            return
        lane = self._lane(beat.draft)
        if beat.number != lane.barrier.applied + len(lane.beats):
            raise ProtocolError(f"beat {beat.number} arrived out of turn")
        lane.beats.append(beat)
        self._advance(lane)

    def _tell(self, beat: Beat) -> None:
        self._idle = False
        for word in beat.words:
            if word.session not in self._closed:
                self._session(word.session).receive(word)
                self._turns.setdefault(word.session)

    def _forget_ended_rounds(self, session: int) -> None:
        """Drop segments of ended rounds; the others of their flights go on."""
        current = self._sessions[session].round
        for ticket, gathering in [*self._waiting[session].items()]:
            if any(s.session == session and s.round < current for s in gathering.flight.segments):
                del self._waiting[session][ticket]
                self._leave(gathering, session)

    def _advance(self, lane: _Lane) -> None:
        """Apply due beats and release due flights."""
        barrier, beats, flights = lane.barrier, lane.beats, lane.flights
        while True:
            if beats and barrier.word_is_due:
                self._tell(beats.popleft())
                barrier.applied += 1
            elif flights and barrier.lets(flights[0][0]):
                _, flight, payloads = flights.popleft()
                self._release(flight, payloads)
            else:
                return

    def _lane(self, draft: int) -> _Lane:
        lane = self._lanes.get(draft)
        if lane is None:
            lane = self._lanes[draft] = _Lane(Barrier(self._free_beats))
        return lane

    def _release(self, flight: Flight, payloads: Sequence[Any]) -> None:
        self._idle = False
        gathering, alive = _Gathering(flight, {}), list[Segment]()
        for segment, payload in zip(flight.segments, payloads, strict=True):
            session = segment.session
            if session not in self._closed and self._session(session).receive(segment):
                alive.append(segment)
                gathering.payloads[session] = payload
                self._waiting[session][segment.ticket] = gathering
                self._turns.setdefault(session)
        if len(alive) < len(flight.segments):
            gathering.flight = flight.holding(tuple(alive))
        if not alive and flight.beat is not None:
            self._ready.append(gathering)

    def _session(self, number: int) -> StageSession:
        state = self._sessions.get(number)
        if state is None:
            state = self._sessions[number] = StageSession(self._stage, self._stages)
            self._waiting[number] = {}
        return state

    def _close(self, session: int) -> None:
        self._idle = False
        self._closed[session] = None
        if len(self._closed) > KEPT_CLOSED:
            del self._closed[next(iter(self._closed))]
        self._sessions.pop(session, None)
        self._turns.pop(session, None)
        self._gathered.discard(session)
        for gathering in self._waiting.pop(session, {}).values():
            self._leave(gathering, session)
        # A flight may wait for others with this session's segment gathered already.
        for gathering in {id(g): g for w in self._waiting.values() for g in w.values()}.values():
            if session in gathering.due:
                self._leave(gathering, session)
        for gathering in self._ready:
            gathering.leave(session)
        self._ready = deque([gathering for gathering in self._ready if not gathering.is_over])

    def _leave(self, gathering: _Gathering, session: int) -> None:
        """Let the rest of a flight go on without a closed session or one whose round ended."""
        gathering.leave(session)
        if gathering.is_complete and not gathering.is_over:
            self._ready.append(gathering)
