"""Draft servers and stages as processes in simulated time; their desks decide, roles take the time.

A role serves as a generator that yields how long each piece of work takes, in milliseconds. A busy
role decides nothing before its work is over; a message that wakes an idle role is handled together
with all messages delivered at the same moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from treepipe.core.draft_work import Begin, Draft, Evaluate, Orders, Turn
from treepipe.core.messages import (
    Beat,
    Close,
    Flight,
    Message,
    Segment,
    Text,
    Through,
    Verified,
    judged_rows,
)
from treepipe.core.recovery import CommitReporter, Committed, DraftBook, OpenRequestState
from treepipe.core.requests import OpenRequest, RequestTrace, numbered
from treepipe.core.stage import AcceptedRows, Prune
from treepipe.core.stage_desk import Send, StageWork
from treepipe.physics.timing import HostTimes, later
from treepipe.results.trace import Kind
from treepipe.scenario.deployment import Deployment, Placed
from treepipe.scenario.desks import draft_desk, level_desk, stage_desk
from treepipe.sim.acceptance import AcceptanceSource, AgreeingOracle, Oracle, next_tokens
from treepipe.sim.clock import Callback, Clock
from treepipe.sim.device import RolePlace, SharedPlace

Answers: TypeAlias = tuple[tuple[int, ...], ...]
"""The target's tokens per segment and row."""
Work: TypeAlias = Iterator[float]
"""Consecutive pieces of work (ms)."""
Letter: TypeAlias = tuple[Sequence[str], Message]
"""Receivers of a message, and the message."""


class World(Protocol):
    """The interface of the simulated world to its roles."""

    clock: Clock
    records: bool  # whether spans are noted

    def send(self, sender: str, receivers: Sequence[str], message: Message) -> None: ...

    def size(self, sender: str, message: Message) -> int: ...

    def note(self, device: str, kind: Kind, start_ms: float, session: int, tokens: int) -> None: ...

    def finished(self, draft: str, request: RequestTrace) -> None: ...

    def committed(self, draft: str, report: Committed) -> None: ...

    def verified(self, flight: Flight) -> Answers: ...


class Role:
    """A role on its device. On a host with measured costs its process also wakes up, unpacks
    messages that it receives, and packs those that it sends."""

    def __init__(self, world: World, placed: Placed, place: RolePlace) -> None:
        self._world, self._placed, self._place = world, placed, place
        self._unread: deque[tuple[Message, int]] = deque()
        self._clock, self._records = world.clock, world.records
        self._serving: Work | None = None  # None while idle

    @property
    def name(self) -> str:
        return self._placed.name

    @property
    def state(self) -> str:
        """Its current work or wait, for the report of a deadlock."""
        raise NotImplementedError

    def hear(self, sender: str, message: Message) -> None:
        """Take a message that has to be unpacked."""
        self._unread.append((message, self._world.size(sender, message)))
        self._wake()

    def deliver(self, message: Message) -> None:
        """Take a message; an idle role acts upon it at once."""
        raise NotImplementedError

    def _serve(self) -> Work:
        """Do all work that is due now."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Let an idle role go on; on a host with costs its process has to wake, whatever for."""
        if self._serving is not None:
            return
        costs, now = self._place.costs, self._clock.now
        if costs is None:
            self._begin(0.0, self._go_on)
        else:
            self._begin(costs.wake, partial(self._woken, now))

    def _begin(self, wake_ms: float, callback: Callback) -> None:
        self._serving, clock = self._serve(), self._clock
        still_ms = self._place.until_ms - clock.now if self._place.until_ms else 0.0
        clock.after(max(0.0, still_ms) + wake_ms, callback)

    def _woken(self, since_ms: float, event: object) -> None:
        self._world.note(self.name, "wake", since_ms, 0, 0)
        self._go_on(event)

    def _go_on(self, _: object) -> None:
        """Work until a piece of work takes time, or all is done."""
        assert self._serving is not None  # it was woken
        duration_ms = next(self._serving, None)
        if duration_ms is None:
            self._serving = None
        else:
            self._place.work(duration_ms, self._go_on)

    def _unpack(self) -> Work:
        """Unpack all received messages."""
        costs, first = self._place.costs, True
        while self._unread:
            assert costs is not None  # only roles with costs unpack
            message, size = self._unread.popleft()
            yield costs.receive(size) + (costs.look if first else 0.0)
            first = False
            self._spent("receive", message.session, 0)
            self.deliver(message)

    def _send(self, letters: Iterable[Letter]) -> Iterable[float]:
        if self._place.costs is not None:
            return self._pack(letters, self._place.costs)
        for receivers, message in letters:
            self._world.send(self.name, receivers, message)
        return ()

    def _pack(self, letters: Iterable[Letter], costs: HostTimes) -> Work:
        for receivers, message in letters:
            for receiver in receivers:
                yield costs.send(self._world.size(self.name, message))
                self._spent("send", message.session, 0)
                self._world.send(self.name, (receiver,), message)

    def _verify(self, flight: Flight, rows: int, answers: Answers) -> Work:
        """Take the target's tokens of ``rows`` rows, and decide."""
        times = self._placed.times
        judged = judged_rows(answers) if times.judge else 0
        evaluate, decide = times.verify(rows, judged), times.decide * flight.decisions
        if evaluate:
            yield evaluate
            self._spent("evaluate", flight.session, rows)
        if decide:
            yield decide
            self._spent("decide", flight.session, rows)

    def _spent(self, kind: Kind, session: int, tokens: int) -> None:
        """Record the piece of work that has just ended."""
        if self._records:
            self._world.note(self.name, kind, self._place.started_ms, session, tokens)


class StageRole(Role):
    """A pipeline stage; the last one takes the target's tokens if the ends are the pipeline's."""

    def __init__(
        self, world: World, deployment: Deployment, pipeline: int, number: int, place: RolePlace
    ) -> None:
        stages = deployment.roles.pipelines[pipeline]
        super().__init__(world, stages[number - 1], place)
        self._desk = stage_desk(deployment, pipeline, number)
        self._drafts = [draft.name for draft in deployment.roles.drafts]
        self._successor = stages[number].name if stages[number:] else None
        self._hands_on = deployment.service.feedback == "ring" and self._successor is not None
        self._by_parts = self._placed.times.stage.by_parts
        self._cancels = deployment.service.cancels
        self._layers = max(1, len(self._placed.layers))
        self._cuts = place if self._cancels and isinstance(place, SharedPlace) else None
        self._pieces = self._layers if self._cancels and self._cuts is None else 1  # of a pass
        self._pass: tuple[Flight, float] | None = None  # to be cut, with ms per layer
        self._verifies = deployment.roles.verifies(pipeline, number)
        self._sends_all = number < len(stages) or deployment.roles.reads_states
        self._accepted = (
            AcceptedRows() if self._verifies and deployment.roles.reads_states else None
        )

    @property
    def state(self) -> str:
        return f"{self.name} {self._desk.state}"

    def deliver(self, message: Message) -> None:
        segments = message.segments if isinstance(message, Flight) else ()
        self._desk.receive(message, (self._clock.now,) * len(segments))
        if self._cuts and self._pass and self._desk.given_up(self._pass[0]) is not None:
            self._cuts.cut(self._pass[1])
            self._pass = None
        if self._hands_on and isinstance(message, Beat):  # costs a host no time
            self._world.send(self.name, (self._successor or "",), message)
        if self._accepted is not None and isinstance(message, Close):
            self._accepted.close(message.session)
        if self._desk.has_work:
            self._wake()

    def _next_action(self) -> StageWork | None:
        return self._desk.next_action()

    def _serve(self) -> Work:
        while True:
            if self._unread:
                yield from self._unpack()
            action = self._next_action()
            if action is None:
                return
            if isinstance(action, Prune):
                yield from self._prune(action)
                continue
            if action.payloads:  # times at which segments were ready
                self._clock.waited(self.name, "compute", max(action.payloads))
            if isinstance(action, Send):
                yield from self._send(self._onwards(action.flight, action.flight))
            else:
                yield from self._compute(action.flight)

    def _prune(self, action: Prune) -> Work:
        if self._accepted is not None:
            self._accepted.prune(action)
        if self._placed.times.prune:
            yield self._placed.times.prune
            self._spent("prune", action.session, len(action.keep))
        elif self._records:
            now, kept = self._clock.now, len(action.keep)
            self._world.note(self.name, "prune", now, action.session, kept)

    def _compute(self, flight: Flight) -> Work:
        """Compute a flight and send it on; one without rows takes no time."""
        tokens, stage = flight.rows, self._placed.times.stage
        if tokens:
            whole = stage.over(self._desk.parts(flight)) if self._by_parts else stage(tokens)
            for _ in range(self._pieces):
                self._pass = (flight, whole / self._layers) if self._cuts else None
                yield whole / self._pieces
                self._pass = None
                self._spent("compute", flight.session, tokens)
                if self._cancels:
                    yield from self._unpack()
                    given_up = self._desk.given_up(flight)
                    if given_up is not None:
                        if self._accepted is not None:
                            self._accepted.skip(flight.segments)
                        flight, tokens = given_up, 0
                        break
        if not self._verifies:
            yield from self._send(self._passed_on(flight))
            return
        verified = Verified(flight, ((),) * len(flight.segments))
        if tokens:
            answers = self._world.verified(flight)
            yield from self._verify(flight, flight.answered_rows, answers)
            now = self._clock.now
            verified = Verified(flight, answers, self._states(flight, answers), now)
        yield from self._send(self._onwards(flight, verified))

    def _states(self, flight: Flight, answers: Answers) -> Answers:
        """Rows of each segment whose states travel with the target's tokens; empty for a request
        that was over before its segment was computed."""
        if self._accepted is None:
            return ()
        of = self._accepted.of
        return tuple(
            [
                of(segment, known.__getitem__)[1] if len(known) == len(segment.answered) else ()
                for segment, known in zip(flight.segments, answers, strict=True)
            ]
        )

    def _passed_on(self, flight: Flight) -> list[Letter]:
        """Return the messages that follow a computed flight, with their receivers."""
        report, letters = self._desk.through(flight), list[Letter]()
        if report is not None:
            letters.append(((self._drafts[flight.draft],), report))
        if self._desk.computed(flight, (self._clock.now,) * len(flight.segments)):
            letters += self._onwards(flight, flight)
        return letters

    def _onwards(self, flight: Flight, message: Flight | Verified) -> list[Letter]:
        going = message if self._sends_all else message.going_back
        return [((self._successor or self._drafts[flight.draft],), going)]


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
        super().__init__(world, deployment.roles.drafts[draft], place)
        self._deployment, self._source = deployment, source
        self._desk, self._new_schedule = (
            draft_desk(deployment, draft),
            deployment.service.new_schedule,
        )
        self._feedback = deployment.service.feedback
        self._target_emits = deployment.service.target_emits
        self._stages = [[stage.name for stage in stages] for stages in deployment.roles.pipelines]
        self._below = deployment.roles.beside(self.name)
        self._stages.append(self._below)
        self._by_parts = self._placed.times.draft.by_parts
        self._inbox: deque[tuple[Flight | Verified | Through, float]] = deque()
        self._losses: deque[tuple[int, str]] = deque()
        self._alarm = False
        reporter = CommitReporter() if deployment.faults.injected else None
        listeners = partial(world.finished, self.name), partial(world.committed, self.name)
        self._book = DraftBook[Oracle](self._desk, reporter, *listeners)

    @property
    def state(self) -> str:
        return f"{self.name} waits for segments of requests {sorted(self._book.by_session)}"

    @property
    def turns(self) -> list[Turn]:
        return self._desk.turns

    @property
    def requests(self) -> Iterable[OpenRequest[Oracle]]:
        return self._book.by_session.values()

    def open(self, held: OpenRequestState) -> None:
        """Take a request into the queue."""
        asked = self._deployment.requests[held.assignment.request].started
        stages = len(self._stages[held.assignment.pipeline])
        self._book.open(held, asked, self._new_schedule, stages, self._clock.now)
        self._wake()

    def lose(self, pipeline: int, worker: str) -> None:
        """Note a lost pipeline, whose requests end at the end of the current work."""
        self._losses.append((pipeline, worker))
        self._wake()

    def deliver(self, message: Message) -> None:
        """Take a message, which joins the queue later, with its time of arrival; the text of the
        draft below is there for the next pass."""
        if isinstance(message, Text):
            self._desk.receive(message, None, self._clock.now)
            return
        assert isinstance(message, Flight | Verified | Through)
        self._inbox.append((message, self._clock.now))
        self._wake()

    def answers(self, flight: Flight) -> Answers:
        """Return the target's tokens at a flight's rows; empty for requests that are over."""
        return tuple([self._answers(segment) for segment in flight.segments])

    def _serve(self) -> Work:
        desk, clock = self._desk, self._clock
        while True:
            if self._unread:
                yield from self._unpack()
            if self._losses:
                yield from self._carry_out(desk.lose(*self._losses.popleft()), 1)
                continue
            while self._inbox:
                message, arrived_ms = self._inbox.popleft()
                verified = message if isinstance(message, Verified) else None
                desk.receive(message, verified, arrived_ms)
            work = desk.next(clock.now)
            if not self._records:
                desk.turns.clear()
            if work is None:
                self._set_alarm()
                return
            if isinstance(work, Draft):
                yield from self._draft(work)
                continue
            self._place.fresh = True  # a turn begins
            if desk.turn_asked_ms is not None:
                clock.waited(self.name, "draft", desk.turn_asked_ms)
            if isinstance(work, Begin):
                request = self._book.begin(work.session)
                levels = max(0, self._placed.block - 1)
                request.own = self._source.open(work.session, request.prompt_tokens, levels)
                yield from self._carry_out(desk.began(work), 1)
            elif isinstance(work, Evaluate):
                yield from self._evaluate(work)
            else:
                yield from self._warm_up()

    def _draft(self, work: Draft) -> Work:
        rows = work.rows
        parts = work.parts(self._book.by_session) if self._by_parts else None
        duration_ms = self._placed.draft_ms(work, parts)
        yield duration_ms * self._place.next_cold()
        self._spent("draft", work.passes[0][0], rows)
        if self._below:
            yield from self._unpack()
        requests = self._book.by_session
        answers = [(session, requests[session].own.draft(order)) for session, order in work.passes]
        yield from self._carry_out(self._desk.drafted(answers), rows)

    def _evaluate(self, work: Evaluate) -> Work:
        """Evaluate a returned flight, and take its tokens unless its pipeline has."""
        flight, verified, emitted_ms = work.flight, work.payload, None
        if verified is None:
            answers = self.answers(flight)
            yield from self._verify(flight, sum(map(len, answers)), answers)
        else:
            answers = verified.answers
            emitted_ms = verified.decided_ms if self._target_emits else None
        orders = self._desk.returned(flight, answers)
        yield from self._carry_out(orders, max(1, flight.rows), emitted_ms)

    def _warm_up(self) -> Work:
        yield self._placed.times.draft(1)
        self._spent("draft", 0, 1)

    def _answers(self, segment: Segment) -> tuple[int, ...]:
        request = self._book.by_session.get(segment.session)
        if request is None:
            return ()
        never_misses, prompt = self._deployment.service.never_misses, request.prompt_tokens
        return next_tokens(request.own, request.schedule, segment, prompt, never_misses)

    def _carry_out(
        self, orders: Orders, rows: int, emitted_ms: float | None = None
    ) -> Iterable[float]:
        """Send, emit and end as ordered; the decision was on ``rows`` rows."""
        if self._place.costs is not None:
            return self._decide(orders, rows, emitted_ms, self._place.costs)
        if not orders.nothing:
            self._send(orders.letters(self._stages, self._feedback))
            self._book.carry_out(orders, self._clock.now, emitted_ms)
        return ()

    def _decide(
        self, orders: Orders, rows: int, emitted_ms: float | None, costs: HostTimes
    ) -> Work:
        yield costs.desk(rows)
        self._spent("desk", 0, 0)
        self._book.carry_out(orders, self._clock.now, emitted_ms)
        yield from self._pack(orders.letters(self._stages, self._feedback), costs)

    def _set_alarm(self) -> None:
        """Set an alarm for the desk's next wake-up; one that fires too early is set anew."""
        wake_ms = self._desk.wake_ms
        if wake_ms is not None and not self._alarm:
            self._alarm = True
            clock = self._clock
            clock.after(later(wake_ms - clock.now, 0.0), self._ring)

    def _ring(self, _: object) -> None:
        self._alarm = False
        self._wake()


class LevelRole(Role):
    """A draft of a draft: its passes, and the messages between the two."""

    def __init__(
        self,
        world: World,
        deployment: Deployment,
        draft: int,
        source: AcceptanceSource,
        place: RolePlace,
    ) -> None:
        roles = deployment.roles
        super().__init__(world, roles.drafts[draft], place)
        self._requests, self._source, self._seed = deployment.requests, source, deployment.seed
        # From the draft below the target's to this one.
        between = range(draft % len(roles.heads), draft + 1, len(roles.heads))[1:]
        self._agreements = [roles.drafts[each].agreement or 0.0 for each in between]
        self._desk = level_desk(deployment, draft)
        self._by_parts = self._placed.times.draft.by_parts
        self._inbox: deque[Text | Close] = deque()
        self._oracles: dict[int, Oracle | AgreeingOracle] = {}

    @property
    def state(self) -> str:
        return f"{self.name} waits for texts of requests {sorted(self._desk.levels)}"

    def deliver(self, message: Message) -> None:
        assert isinstance(message, Text | Close)
        self._inbox.append(message)
        self._wake()

    def _serve(self) -> Work:
        self._place.fresh = True
        while True:
            if self._unread:
                yield from self._unpack()
            while self._inbox:
                yield from self._send(self._desk.hear(self._inbox.popleft()))
            work = self._desk.next()
            if work is None:
                return
            ((session, order),) = work.passes
            parts = work.parts(self._desk.levels) if self._by_parts else None
            yield self._placed.draft_ms(work, parts) * self._place.next_cold()
            self._spent("draft", session, work.rows)
            answer = self._oracle(session).draft(order)
            yield from self._send(self._desk.drafted(work, answer))

    def _oracle(self, session: int) -> Oracle | AgreeingOracle:
        """Return the request's oracle; those of requests that are over are forgotten."""
        if session not in self._oracles:
            for over in self._oracles.keys() - self._desk.levels.keys():
                del self._oracles[over]
            request = numbered(session)[1]
            prompt = len(self._requests[request - 1].prompt)
            made: Oracle | AgreeingOracle = self._source.open(session, prompt)
            for level, share in enumerate(self._agreements):
                made = AgreeingOracle(made, share, prompt, (self._seed, request, level))
            self._oracles[session] = made
        return self._oracles[session]
