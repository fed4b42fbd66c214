"""Draft servers and stages: what they do is given, here it takes its time.

Law of this file: who is busy decides nothing before the time is over; a message that wakes an idle
role is looked at together with all that are delivered at the same moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from treepipe.core.accepted_rows import AcceptedRows
from treepipe.core.draft_book import DraftBook
from treepipe.core.draft_work import Begin, Draft, Orders, Turn, WarmUp
from treepipe.core.messages import Close, Flight, Message, Segment, Through, Verified
from treepipe.core.recovery import Committed, Held, Teller
from treepipe.core.requests import OpenRequest, RequestTrace
from treepipe.core.stage import Prune
from treepipe.core.stage_desk import Send
from treepipe.physics.host import HostTimes
from treepipe.results.trace import Kind
from treepipe.scenario.deployment import Deployment, Placed
from treepipe.sim.acceptance import AcceptanceSource, Oracle, next_tokens
from treepipe.sim.clock import Callback, Clock
from treepipe.sim.device import RolePlace


class World(Protocol):
    """What the roles need of the world around them."""

    clock: Clock
    records: bool  # whether what happens is noted, and not only what comes of it

    def send(self, sender: str, receivers: Sequence[str], message: Message) -> None: ...

    def size(self, sender: str, message: Message) -> int: ...

    def note(self, device: str, kind: Kind, start_ms: float, session: int, tokens: int) -> None: ...

    def finished(self, draft: str, request: RequestTrace) -> None: ...

    def told(self, draft: str, said: Committed) -> None: ...

    def verified(self, flight: Flight) -> Answers: ...


Answers: TypeAlias = tuple[tuple[int, ...], ...]
"""The target's tokens per segment and row."""


@dataclass(slots=True)
class Verification:
    """Taking the target's tokens of a flight, and the decision, where a role does both.

    Attributes:
        rows: whose tokens are taken.
        done: called when the time for it is over.
    """

    world: World
    placed: Placed
    place: RolePlace
    flight: Flight
    rows: int
    done: Callback

    def begin(self) -> bool:
        """Returns whether it takes time; nothing is called if it does not."""
        times, rows = self.placed.times, self.rows
        evaluate = times.evaluate(rows)
        decide = times.decide * len(self.flight.segments)
        if not (evaluate or decide):
            return False
        costs: list[tuple[Kind, float]] = [("evaluate", evaluate), ("decide", decide)]
        parts = [(kind, cost) for kind, cost in costs if cost]
        self.place.work(parts[0][1], partial(self._spent, rows, parts))
        return True

    def _spent(self, rows: int, parts: list[tuple[Kind, float]], event: object) -> None:
        """A part of the time is over."""
        start = self.place.started_ms
        self.world.note(self.placed.name, parts[0][0], start, self.flight.session, rows)
        if parts[1:]:
            self.place.work(parts[1][1], partial(self._spent, rows, parts[1:]))
        else:
            self.done(event)


class Role:
    """What draft servers and stages have in common: a place to work at, and, on a host whose costs
    are known, a process that is woken, unpacks messages and packs them."""

    def __init__(self, world: World, placed: Placed, place: RolePlace) -> None:
        self._world, self._placed, self._place = world, placed, place
        self._unread: deque[tuple[Message, int]] = deque()
        self._idle, self._records = True, world.records

    def hear(self, row_bytes: int, message: Message) -> None:
        """Take a message that has to be unpacked. Args: ``row_bytes``: of its sender's rows."""
        self._unread.append((message, message.size_bytes(row_bytes)))
        costs = self._place.costs
        assert costs is not None  # as for all that is heard
        if self._idle:
            self._idle = False
            since_ms = self._world.clock.now
            after_ms = max(0.0, self._place.until_ms - since_ms)
            self._world.clock.after(after_ms + costs.wake, partial(self._woken, since_ms))

    def _wake(self) -> None:
        """Look at what is there, as soon as it may."""
        if self._idle:
            self._idle = False
            clock = self._world.clock
            clock.after(max(0.0, self._place.until_ms - clock.now), self._go_on)

    def deliver(self, message: Message) -> None:
        """Take a message; it is acted upon when the role is idle."""
        raise NotImplementedError

    def _go_on(self, event: object) -> None:
        """Do what is due until something takes time, or nothing is."""
        raise NotImplementedError

    def _woken(self, since_ms: float, event: object) -> None:
        self._world.note(self._placed.name, "wake", since_ms, 0, 0)
        self._go_on(event)

    def _unpack(self, costs: HostTimes) -> None:
        message, size = self._unread.popleft()
        self._place.work(costs.receive(size), partial(self._unpacked, message))

    def _unpacked(self, message: Message, event: object) -> None:
        self._spent("receive", message.session, 0)
        self.deliver(message)
        self._go_on(event)

    def _post(self, letters: deque[tuple[str, Message]], costs: HostTimes, event: object) -> None:
        """Pack and send one message after the other, then go on."""
        if not letters:
            self._go_on(event)
            return
        receiver, message = letters.popleft()
        packing = costs.send(self._world.size(self._placed.name, message))
        self._place.work(packing, partial(self._posted, receiver, message, letters, costs))

    def _posted(
        self,
        receiver: str,
        message: Message,
        letters: deque[tuple[str, Message]],
        costs: HostTimes,
        event: object,
    ) -> None:
        self._spent("send", message.session, 0)
        self._world.send(self._placed.name, [receiver], message)
        self._post(letters, costs, event)

    def _spent(self, kind: Kind, session: int, tokens: int) -> None:
        """Note the piece of work that has just ended."""
        if self._records:
            self._world.note(self._placed.name, kind, self._place.started_ms, session, tokens)


class StageRole(Role):
    """A pipeline stage; the last one takes the target's tokens if the ends are the pipeline's."""

    def __init__(
        self, world: World, deployment: Deployment, pipeline: int, number: int, place: RolePlace
    ) -> None:
        """Args: ``number``: 1.. along the pipeline; ``place``: where it works."""
        stages = deployment.pipelines[pipeline]
        super().__init__(world, stages[number - 1], place)
        self._desk = deployment.stage_desk(pipeline, number)
        self._drafts = [draft.name for draft in deployment.drafts]
        self._successor = stages[number].name if stages[number:] else None
        self._by_context = self._placed.times.stage.last_context is not None
        self._verifies = deployment.verifies(pipeline, number)
        self._sends_all = number < len(stages) or deployment.reads_states
        self._accepted = AcceptedRows() if self._verifies and deployment.reads_states else None

    @property
    def state(self) -> str:
        """What it is doing, for the report of a deadlock."""
        return f"{self._placed.name} {self._desk.state}"

    def deliver(self, message: Message) -> None:
        """Take a message; it is acted upon when the stage is idle."""
        self._world.clock.ready(self._placed.name, message)
        self._desk.receive(message)
        if self._accepted is not None and isinstance(message, Close):
            self._accepted.close(message.session)
        if self._desk.has_work:
            self._wake()

    def _go_on(self, _: object) -> None:
        """Do what is due until something takes time, or nothing is."""
        times, desk, place = self._placed.times, self._desk, self._place
        if self._unread and place.costs is not None:
            self._unpack(place.costs)
            return
        while (action := desk.next_action()) is not None:
            if isinstance(action, Prune):
                if self._accepted is not None:
                    self._accepted.prune(action)
                if times.prune:
                    place.work(times.prune, partial(self._pruned, action))
                    return
                if self._records:
                    now, kept = self._world.clock.now, len(action.keep)
                    self._world.note(self._placed.name, "prune", now, action.session, kept)
                continue
            self._world.clock.taken(self._placed.name, action.flight)
            if isinstance(action, Send):
                if self._post_all(self._onwards(action.flight, action.flight)):
                    return
            elif tokens := action.tokens:
                duration = times.stage(tokens)
                if self._by_context:
                    duration = times.stage.over(desk.parts(action.flight))
                place.work(duration, partial(self._computed, action.flight, tokens))
                return
            elif self._verifies:
                nothing = ((),) * len(action.flight.segments)
                if self._post_all(self._onwards(action.flight, Verified(action.flight, nothing))):
                    return
            elif self._pass_on(action.flight):
                return
        self._idle = True

    def _pruned(self, action: Prune, event: object) -> None:
        self._spent("prune", action.session, len(action.keep))
        self._go_on(event)

    def _computed(self, flight: Flight, tokens: int, event: object) -> None:
        self._spent("compute", flight.session, tokens)
        if self._verifies:
            answers = self._world.verified(flight)
            done = partial(self._verified, flight, answers)
            rows = flight.answered_rows  # nobody has told it which requests are over
            if Verification(self._world, self._placed, self._place, flight, rows, done).begin():
                return
            done(event)
        elif not self._pass_on(flight):
            self._go_on(event)

    def _pass_on(self, flight: Flight) -> bool:
        """Tell of what is computed, and send it on or hold it; returns whether that takes time of
        the stage."""
        said, letters = self._desk.through(flight), list[tuple[str, Message]]()
        if said is not None:
            letters.append((self._drafts[flight.draft], said))
        if self._desk.computed(flight):
            letters += self._onwards(flight, flight)
        else:
            self._world.clock.ready(self._placed.name, flight)
        return bool(letters) and self._post_all(letters)

    def _verified(self, flight: Flight, answers: Answers, event: object) -> None:
        """The target's tokens travel back, with the states that a draft reads."""
        states: Answers = ()
        if self._accepted is not None:
            of = self._accepted.of
            states = tuple(
                [  # nobody reads those of a request that was over before its segment was computed
                    of(segment, known.__getitem__)[1] if len(known) == len(segment.answered) else ()
                    for segment, known in zip(flight.segments, answers, strict=True)
                ]
            )
        if not self._post_all(self._onwards(flight, Verified(flight, answers, states))):
            self._go_on(event)

    def _onwards(self, flight: Flight, message: Flight | Verified) -> list[tuple[str, Message]]:
        """What becomes of a flight, to the next stage or to its draft server."""
        going = message if self._sends_all else message.going_back
        return [(self._successor or self._drafts[flight.draft], going)]

    def _post_all(self, letters: list[tuple[str, Message]]) -> bool:
        """Send; returns whether that takes time of the stage, which then goes on by itself."""
        costs = self._place.costs
        if costs is None:
            for receiver, message in letters:
                self._world.send(self._placed.name, (receiver,), message)
        else:
            self._post(deque(letters), costs, None)
        return costs is not None


class DraftServer(Role):
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
        super().__init__(world, deployment.drafts[draft], place)
        self._deployment, self._source = deployment, source
        self._desk, self._new_schedule = deployment.draft_desk(draft), deployment.schedule_of(draft)
        self._stages = [[stage.name for stage in stages] for stages in deployment.pipelines]
        self._by_context = self._placed.times.draft.last_context is not None
        self._inbox: deque[tuple[Flight | Verified | Through, float]] = deque()
        self._losses: deque[tuple[int, str]] = deque()
        self._alarm = False
        name, teller = self._placed.name, Teller() if deployment.faults.injected else None
        said = partial(world.finished, name), partial(world.told, name)
        self._book = DraftBook[Oracle](self._desk, teller, *said)

    @property
    def state(self) -> str:
        """What this server waits for, as the report of a deadlock says it."""
        return f"{self._placed.name} waits for segments of requests {sorted(self._book.by_session)}"

    @property
    def turns(self) -> list[Turn]:
        return self._desk.turns

    @property
    def name(self) -> str:
        return self._placed.name

    @property
    def requests(self) -> Iterable[OpenRequest[Oracle]]:
        """The open ones."""
        return self._book.by_session.values()

    def open(self, held: Held) -> None:
        """Take a request into the queue."""
        asked = self._deployment.requests[held.assignment.request].started
        stages = len(self._stages[held.assignment.pipeline])
        self._book.open(held, asked, self._new_schedule, stages, self._world.clock.now)
        self._wake()

    def lose(self, pipeline: int, worker: str) -> None:
        """A pipeline is gone: its requests end with what they have when the server looks up."""
        self._losses.append((pipeline, worker))
        self._wake()

    def deliver(self, message: Message) -> None:
        """Take a flight that came back; it joins the queue when the server looks up, as one that
        has waited there since."""
        assert isinstance(message, Flight | Verified | Through)
        self._inbox.append((message, self._world.clock.now))
        self._wake()

    def _go_on(self, _: object) -> None:
        """Do what is due until something takes time, or nothing is."""
        inbox, desk, clock, costs = self._inbox, self._desk, self._world.clock, self._place.costs
        if self._unread and costs is not None:
            self._unpack(costs)
            return
        while True:
            while self._losses:
                if self._carry_out(desk.lose(*self._losses.popleft()), 1):
                    return
            while inbox:
                back, arrived_ms = inbox.popleft()
                if isinstance(back, Verified):
                    desk.arrive(back.flight, back.answers, arrived_ms)
                elif isinstance(back, Through):
                    desk.through(back, arrived_ms)
                else:
                    desk.arrive(back, None, arrived_ms)
            work = desk.next(clock.now)
            if not self._records:
                desk.turns.clear()
            if work is None:
                self._idle = True
                self._set_alarm()
                return
            if isinstance(work, Draft):
                rows = work.rows
                parts = self._book.parts(work) if self._by_context else None
                duration = self._placed.draft_ms(work, parts)
                duration *= self._place.next_cold()
                self._place.work(duration, partial(self._drafted, work, rows))
                return
            self._place.fresh = True  # a turn begins
            if desk.turn_asked_ms is not None:
                clock.waited(self._placed.name, "draft", desk.turn_asked_ms)
            if isinstance(work, WarmUp):
                self._place.work(self._placed.times.draft(1), self._warmed)
                return
            if isinstance(work, Begin):
                request = self._book.begin(work.session)
                request.own = self._source.open(work.session, request.prompt_tokens)
                if self._carry_out(desk.began(work), 1):
                    return
            elif work.payload is not None:
                rows = max(1, work.flight.rows)
                if self._carry_out(desk.returned(work.flight, work.payload), rows):
                    return
            elif self._evaluate(work.flight):
                return

    def _set_alarm(self) -> None:
        """Look up when the desk wants it; an alarm that comes too early is set anew."""
        wake_ms = self._desk.wake_ms
        if wake_ms is not None and not self._alarm:
            self._alarm = True
            self._world.clock.after(max(0.0, wake_ms - self._world.clock.now), self._ring)

    def _ring(self, _: object) -> None:
        self._alarm = False
        self._wake()

    def _warmed(self, event: object) -> None:
        self._spent("draft", 0, 1)
        self._go_on(event)

    def _drafted(self, work: Draft, rows: int, event: object) -> None:
        self._spent("draft", work.passes[0][0], rows)
        requests = self._book.by_session
        answers = [(session, requests[session].own.draft(order)) for session, order in work.passes]
        if not self._carry_out(self._desk.drafted(answers), rows):
            self._go_on(event)

    def _evaluate(self, flight: Flight) -> bool:
        """Take the target's tokens and serve the flight; returns whether that takes time."""
        answers = self.answers(flight)
        done, rows = partial(self._evaluated, flight, answers), sum(map(len, answers))
        if Verification(self._world, self._placed, self._place, flight, rows, done).begin():
            return True
        return self._carry_out(self._desk.returned(flight, answers), 1)

    def _evaluated(self, flight: Flight, answers: Answers, event: object) -> None:
        if not self._carry_out(self._desk.returned(flight, answers), max(1, flight.rows)):
            self._go_on(event)

    def answers(self, flight: Flight) -> Answers:
        """The target's tokens at a flight's rows, none for requests that are over."""
        return tuple([self._answers(segment) for segment in flight.segments])

    def _answers(self, segment: Segment) -> tuple[int, ...]:
        request = self._book.by_session.get(segment.session)
        if request is None:
            return ()
        never_misses, prompt = self._deployment.never_misses, request.prompt_tokens
        return next_tokens(request.own, request.schedule, segment, prompt, never_misses)

    def _carry_out(self, orders: Orders, rows: int) -> bool:
        """Send, emit and end what is ordered; returns whether that takes time of the server, which
        then goes on by itself. Args: ``rows``: that the decision was on."""
        costs = self._place.costs
        if costs is None:
            if not orders.nothing:
                for receivers, message in self._letters(orders):
                    self._world.send(self._placed.name, receivers, message)
                self._book.carry_out(orders, self._world.clock.now)
        else:
            self._place.work(costs.desk(rows), partial(self._decided, orders, costs))
        return costs is not None

    def _decided(self, orders: Orders, costs: HostTimes, event: object) -> None:
        self._spent("desk", 0, 0)
        self._book.carry_out(orders, self._world.clock.now)
        each = [(name, message) for names, message in self._letters(orders) for name in names]
        self._post(deque(each), costs, event)

    def _letters(self, orders: Orders) -> Iterator[tuple[list[str], Message]]:
        """Receivers and message."""
        for pipeline, message in orders.messages:
            stages = self._stages[pipeline]
            yield stages[:1] if isinstance(message, Flight) else stages, message
