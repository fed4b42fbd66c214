"""A draft server's process: draft model, schedules, and the target's ends if they are here; and
that of a draft that drafts for another draft.

Each is strictly sequential; ``core/draft_desk.py`` and ``core/levels.py`` choose the next work, as
in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TypeAlias

import torch

from treepipe.core.draft_work import Begin, Draft, Evaluate, Orders, Turn, WarmUp
from treepipe.core.levels import Letters
from treepipe.core.messages import (
    Beat,
    Close,
    Flight,
    Segment,
    Text,
    Through,
    Verified,
    judged_rows,
)
from treepipe.core.protocol import DraftPass, Offer
from treepipe.core.recovery import CommitReporter, Committed, DraftBook
from treepipe.core.requests import RUN_ENDED, RequestTrace
from treepipe.core.words import NodeNotes
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.computing import DTYPES, DeviceTransfer
from treepipe.executor.models.draft_memory import RememberingDraft
from treepipe.executor.models.sources import open_source
from treepipe.executor.models.stage_model import TargetEnds
from treepipe.executor.models.verifier import Verifier, answered_states
from treepipe.executor.run.station import Station
from treepipe.executor.wire.mailbox import Received
from treepipe.executor.wire.records import Finished, Open
from treepipe.results.recording import RecordedRequest, Recorder
from treepipe.scenario.desks import draft_desk, level_desk

Observe: TypeAlias = Callable[[int, torch.Tensor], None]
"""Callback with a session and the target's states [n, captured hidden] of its next n committed
tokens."""
Features: TypeAlias = NodeNotes[torch.Tensor | None]
"""The captured states of one request's tree nodes; None if a state did not travel."""
NO_SESSION = 0
"""A session of no request."""
IN_VAIN = DraftPass(1, (0, 0), (), (), True, 1)
"""A pass without effect; it has a token before it, whose state an EAGLE head reads."""


class DraftWorker:
    """The server of the requests that the controller opens."""

    def __init__(self, station: Station) -> None:
        settings = station.settings
        self._station, self._deployment = station, settings.deployment
        self._desk = draft_desk(settings.deployment, settings.number)
        self._feedback = self._deployment.service.feedback
        self._stages = [
            [stage.name for stage in stages] for stages in settings.deployment.roles.pipelines
        ]
        self._below = self._deployment.roles.beside(settings.placed.name)
        self._stages.append(self._below)
        target = Checkpoint.open(settings.target) if settings.reads_target else None
        compute = settings.placed.compute
        sizes = settings.vocabulary, settings.capacity
        self._source = open_source(settings.source, target, *sizes, compute)
        self._transfer, self._ends = DeviceTransfer(compute), None
        if target is not None and settings.deployment.roles.ends == "draft":
            dtype = DTYPES[settings.deployment.roles.dtype]
            self._ends = TargetEnds(target, dtype, compute.device)
        self._verifier = None
        if self._ends is not None:
            remembers = self._source if isinstance(self._source, RememberingDraft) else None
            section, seed = settings.source.sampling, settings.deployment.seed
            self._verifier = Verifier(self._ends, section, seed, remembers)
        observe: Observe | None = getattr(self._source, "observe", None)
        self._observe = observe
        self._recorder, self._reporter = Recorder(), CommitReporter()
        self._book = DraftBook[Features](self._desk, self._reporter, self._finish, self._say)

    @property
    def open_sessions(self) -> int:
        return len(self._book.by_session)

    def open(self, order: Open) -> None:
        self._station.clock.wake(order.now_ms)
        stages = len(self._stages[order.held.assignment.pipeline])
        asked, make = order.spec.started, order.new_schedule
        self._book.open(order.held, asked, make, stages, order.now_ms)

    def lose(self, pipeline: int, worker: str) -> None:
        """End the requests of a lost pipeline with their committed texts."""
        self._carry_out(self._desk.lose(pipeline, worker))

    def take_turns(self) -> list[Turn]:
        turns, self._desk.turns = self._desk.turns, []
        return turns

    def texts(self) -> list[Finished]:
        """Return the open requests' committed texts and stop reporting them."""
        self._reporter.end()
        heard, now = self._recorder.recording.requests, self._station.clock.now_ms()
        found = []
        for request in self._book.by_session.values():
            trace = request.trace(now, RUN_ENDED)
            answers = heard[trace.session].answers if trace.session in heard else []
            recorded = RecordedRequest(trace.prompt_tokens, trace.tokens, answers)
            found.append(Finished(trace, recorded))
        return found

    def serve(self) -> None:
        """Serve turns until the controller sends an order."""
        station, desk = self._station, self._desk
        while not station.called:
            self._take_in()
            work = desk.next(station.clock.now_ms())
            if isinstance(work, (Begin, Evaluate, WarmUp)):
                station.fresh = True  # a turn begins
            if isinstance(work, Begin):
                self._begin(work)
            elif isinstance(work, Draft):
                self._draft(work)
            elif isinstance(work, Evaluate):
                self._evaluate(work)
            elif isinstance(work, WarmUp):
                self._warm_up()
            else:
                received = station.wait(desk.wake_ms)
                if received is not None:
                    self._arrive(received)
                elif not station.woken(desk.wake_ms):
                    return

    def _begin(self, work: Begin) -> None:
        """Begin a request, or resume one with its emitted text."""
        request = self._book.begin(work.session)
        request.own = NodeNotes()
        self._source.open(work.session)
        if self._verifier is not None:
            self._verifier.open(work.session, request.started.prompt)
        self._carry_out(self._desk.began(work))

    def _take_in(self) -> None:
        while (received := self._station.due()) is not None:
            self._arrive(received)

    def _arrive(self, received: Received) -> None:
        message = received.message
        assert isinstance(message, Flight | Verified | Through | Text)
        self._desk.receive(message, received, received.envelope.due_ms)

    def _warm_up(self) -> None:
        """Run the draft on a text that belongs to no request."""
        times = self._station.settings.placed.times
        with self._station.work("draft", NO_SESSION, 1, times.draft(1)):
            self._source.open(NO_SESSION)
            if self._observe is not None:
                roles = self._deployment.roles
                self._observe(NO_SESSION, torch.zeros(1, roles.width * len(roles.captured)))
            self._source.draft_batch([(NO_SESSION, IN_VAIN)])
            self._source.close(NO_SESSION)

    def _draft(self, work: Draft) -> None:
        session, rows = work.passes[0][0], work.rows
        parts = work.parts(self._book.by_session)
        duration = self._station.settings.placed.draft_ms(work, parts)
        with self._station.work("draft", session, rows, duration):
            drafts = self._source.draft_batch(work.passes)
        answers = []
        for (each, order), drafted in zip(work.passes, drafts, strict=True):
            self._recorder.drafted(each, order, drafted)
            answers.append((each, drafted))
        if self._below:
            self._take_in()  # what the draft below has drafted meanwhile
        self._carry_out(self._desk.drafted(answers))

    def _evaluate(self, work: Evaluate) -> None:
        """Serve an answer of the pipeline; choose the target's tokens unless it holds them."""
        received: Received = work.payload
        flight, body = work.flight, received.message
        if isinstance(body, Verified):
            if self._observe is not None and received.hidden is not None:
                self._note_accepted(body, received.hidden, self._observe)
            emits = self._deployment.service.target_emits
            orders = self._desk.returned(flight, body.answers)
            self._carry_out(orders, body.decided_ms if emits else inf)
            return
        times, session = self._station.settings.placed.times, flight.session
        hidden = None if received.hidden is None else self._transfer.to_device(received.hidden)
        assert self._verifier is not None  # a pipeline without the ends sends flights back
        if self._observe is not None and hidden is not None:
            self._note_features(flight, hidden, self._observe)
        empty = [torch.empty(0, 0)] * len(flight.segments)
        split = empty if hidden is None else answered_states(flight, hidden)
        segments = [*zip(flight.segments, split, strict=True)]
        open_ = self._book.by_session
        rows = sum(len(states) for segment, states in segments if segment.session in open_)
        answers: list[tuple[int, ...]] = [() for _ in segments]
        if rows:
            with self._station.work(
                "evaluate", session, rows, lambda: times.verify(rows, judged_rows(answers))
            ):
                answers = [self._answers(self._verifier, *segment) for segment in segments]
        with self._station.work("decide", session, rows, times.decide * flight.decisions):
            orders = self._desk.returned(flight, answers)
        self._carry_out(orders)

    def _note_features(self, flight: Flight, hidden: torch.Tensor, observe: Observe) -> None:
        """Pass states to a draft that reads them; tree nodes' states wait for their word."""
        assert self._ends is not None  # only called with the target's ends
        states = self._ends.read_states(hidden, self._deployment.roles.captured)
        split = states.split([len(each.tokens) for each in flight.segments])
        for segment, features in zip(flight.segments, split, strict=True):
            self._note(segment, list(features), observe)

    def _note_accepted(self, body: Verified, features: torch.Tensor, observe: Observe) -> None:
        """Pass on the accepted rows that the pipeline's end sends, in the same way."""
        split = features.split([len(rows) for rows in body.states])
        for segment, rows, own in zip(body.flight.segments, body.states, split, strict=True):
            known = dict(zip(rows, own, strict=True))
            self._note(segment, [known.get(row) for row in range(len(segment.tokens))], observe)

    def _note(
        self, segment: Segment, features: Sequence[torch.Tensor | None], observe: Observe
    ) -> None:
        request = self._book.by_session.get(segment.session)
        if request is None or not features:
            return
        if segment.committed:
            observe(segment.session, torch.stack([each for each in features if each is not None]))
        else:
            request.own.write(segment, features)

    def _announced(self, beat: Beat, observe: Observe) -> None:
        """Pass the states of the nodes that the words accept to the draft."""
        for word in beat.words:
            request = self._book.by_session.get(word.session)
            accepted = request.own.announce(word) if request is not None else []
            if accepted:
                states = [each for each in accepted if each is not None]
                assert len(states) == len(accepted)  # accepted rows travel with their states
                observe(word.session, torch.stack(states))

    def _answers(
        self, verifier: Verifier, segment: Segment, hidden: torch.Tensor
    ) -> tuple[int, ...]:
        request = self._book.by_session.get(segment.session)
        if request is None or not len(hidden):
            return ()
        offers: list[Offer | None] = []
        if not verifier.greedy:
            if segment.committed:
                offers = [Offer((), segment.positions[-1], ())]
            else:
                offers = list(request.schedule.offers(segment, children=True))
        return verifier.next_tokens(segment.session, hidden, offers)

    def _carry_out(self, orders: Orders, emitted_ms: float = inf) -> None:
        """Send, emit and end as ordered; the tokens may have been out before."""
        station, now = self._station, self._station.clock.now_ms()
        for receivers, message in orders.letters(self._stages, self._feedback):
            hidden = self._embedded(message) if isinstance(message, Flight) else None
            if self._observe is not None and isinstance(message, Beat):
                self._announced(message, self._observe)
            for stage in receivers:
                station.send(stage, message, hidden)
        if self._verifier is not None:
            for session, text in orders.emitted:
                self._verifier.emitted(session, text)
        for session in orders.closed:
            self._source.close(session)
            if self._verifier is not None:
                self._verifier.close(session)
        # Another host's clock is known only roughly, but no token is out after it is known here.
        self._book.carry_out(orders, now, min(emitted_ms, now))

    def _embedded(self, flight: Flight) -> torch.Tensor | None:
        """Input of the first stage, if the target's ends are here."""
        tokens = [token for segment in flight.segments for token in segment.tokens]
        if self._ends is None or not tokens:
            return None
        return self._transfer.to_host(self._ends.embed(tokens))

    def _finish(self, trace: RequestTrace) -> None:
        self._recorder.finished(trace.session, trace.prompt_tokens, trace.tokens)
        recorded = self._recorder.recording.requests.pop(trace.session)
        self._say(Finished(trace, recorded))

    def _say(self, answer: Committed | Finished) -> None:
        self._station.enter("control")
        self._station.line.say(answer)
        self._station.enter("desk")


class LevelWorker:
    """The server of the requests whose texts the draft above sends."""

    def __init__(self, station: Station) -> None:
        settings = station.settings
        self._station = station
        self._desk = level_desk(settings.deployment, settings.number)
        sizes = settings.vocabulary, settings.capacity
        self._source = open_source(settings.source, None, *sizes, settings.placed.compute)

    @property
    def open_sessions(self) -> int:
        return len(self._desk.levels)

    def serve(self) -> None:
        """Draft until the coordinator sends an order."""
        station = self._station
        while not station.called:
            while (received := station.due()) is not None:
                self._arrive(received)
            work = self._desk.next()
            if work is not None:
                self._draft(work)
                continue
            station.fresh = True  # its device idles
            if (received := station.wait()) is None:
                return
            self._arrive(received)

    def _arrive(self, received: Received) -> None:
        message, before = received.message, self.open_sessions
        assert isinstance(message, Text | Close)
        self._send(self._desk.hear(message))
        if self.open_sessions > before:
            self._source.open(message.session)
        elif self.open_sessions < before:
            self._source.close(message.session)

    def _draft(self, work: Draft) -> None:
        placed = self._station.settings.placed
        duration = placed.draft_ms(work, work.parts(self._desk.levels))
        with self._station.work("draft", work.passes[0][0], work.rows, duration):
            (drafted,) = self._source.draft_batch(work.passes)
        self._send(self._desk.drafted(work, drafted))

    def _send(self, letters: Letters) -> None:
        for receivers, message in letters:
            for each in receivers:
                self._station.send(each, message)
