"""A stage process: its layers, its caches, and the rules of ``treepipe.core.stage_desk``.

Where the target's ends are the pipeline's, the first stage embeds, and the last one takes the
target's tokens and sends them instead of hidden states.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch

from treepipe.core.accepted_rows import AcceptedRows
from treepipe.core.messages import Close, Flight, Segment, Verified
from treepipe.core.stage import Prune
from treepipe.core.stage_desk import Move, Send, StageWork
from treepipe.executor.computing import DTYPES, Ferry
from treepipe.executor.stage_model import Part, StageModel, TargetEnds
from treepipe.executor.station import Station
from treepipe.executor.transport import Received
from treepipe.executor.verifier import Verifier


class StageWorker:
    """Serves flights and beats until the controller calls."""

    def __init__(self, station: Station) -> None:
        settings = station.settings
        assert settings.pipeline is not None  # as every stage's
        self._station, self._deployment = station, settings.deployment
        stages = settings.deployment.pipelines[settings.pipeline]
        following = stages[settings.number :]
        self._successor = following[0].name if following else None
        self._desk = settings.deployment.stage_desk(settings.pipeline, settings.number)
        checkpoint, compute = settings.target.open(), settings.placed.compute
        dtype, device = DTYPES[compute.dtype], compute.device
        self._ferry, capacity = Ferry(compute), settings.capacity
        self._model = StageModel(checkpoint, settings.placed.layers, capacity, dtype, device)
        self._model.check_causality = settings.check_causality
        self._embeds = settings.number == 1 and self._deployment.ends == "pipeline"
        verifies = self._deployment.verifies(settings.pipeline, settings.number)
        ends = TargetEnds(checkpoint, dtype, device, embeds=self._embeds, projects=verifies)
        self._ends = ends
        sampling, seed = settings.source.sampling, self._deployment.seed
        self._verifier = Verifier(ends, sampling, seed, None) if verifies else None
        self._sends_all = bool(following) or self._deployment.reads_states
        judges = self._verifier is not None and not self._verifier.greedy
        reads = verifies and self._deployment.reads_states
        self._accepted = AcceptedRows() if judges or reads else None

    @property
    def open_sessions(self) -> int:
        """Sessions that hold a cache here."""
        return self._model.sessions

    def serve(self) -> None:
        """Handle messages as they become due; returns when the controller calls."""
        station, desk = self._station, self._desk
        while True:
            received = station.wait()
            if received is None:
                return
            self._receive(received)
            while (action := desk.next_action()) is not None:
                self._perform(action)
                # What has arrived meanwhile may prune what would be computed next.
                while (more := station.due()) is not None:
                    self._receive(more)

    def _receive(self, received: Received) -> None:
        body = received.message
        payloads: list[torch.Tensor | None] = []
        if isinstance(body, Flight):
            counts = [len(segment.tokens) for segment in body.segments]
            hidden = received.hidden
            payloads = [None] * len(counts) if hidden is None else list(hidden.split(counts))
        for session in self._desk.receive(body, payloads):
            self._station.turn_to("mask")
            self._model.open(session)
            if self._verifier is not None:
                self._verifier.open(session)
        if isinstance(body, Close):
            self._close(body.session)
        self._station.turn_to("desk")

    def _close(self, session: int) -> None:
        self._model.close(session)
        if self._verifier is not None:
            self._verifier.close(session)
        if self._accepted is not None:
            self._accepted.close(session)

    def _perform(self, action: StageWork) -> None:
        times = self._station.settings.placed.times
        if isinstance(action, Prune):
            with self._station.work("prune", action.session, len(action.keep), times.prune):
                self._model.cache(action.session).prune(action.keep, action.accepted)
            if self._accepted is not None:
                self._accepted.prune(action)
            return
        if isinstance(action, Send):
            left = [
                states if rows is None else states[list(rows)]
                for states, rows in zip(action.payloads, action.rows, strict=True)
                if states is not None
            ]
            hidden = torch.cat(left) if action.flight.rows else None
            self._send_on(action.flight, hidden)
            return
        flight, tokens = action.flight, action.tokens
        hidden = None
        if tokens:
            self._station.turn_to("mask")
            opened = self._model.begin(self._parts(action))
            session = flight.segments[0].session
            duration = times.stage.over(self._desk.parts(flight))
            with self._station.work("compute", session, tokens, duration):
                hidden = torch.cat(self._model.run(opened))
                self._ferry.wait()
        if self._verifier is not None:
            self._verify(self._verifier, flight, hidden)
            return
        said = self._desk.through(flight)
        if said is not None:
            self._station.send(self._deployment.drafts[flight.draft].name, said)
        counts = [len(segment.tokens) for segment in flight.segments]
        if self._desk.computed(flight, () if hidden is None else hidden.split(counts)):
            self._send_on(flight, hidden)

    def _send_on(self, flight: Flight, hidden: torch.Tensor | None) -> None:
        receiver = self._successor or self._deployment.drafts[flight.draft].name
        if not self._sends_all and hidden is not None:
            hidden = torch.cat(_answered(flight, hidden)) if flight.answered_rows else None
            flight = flight.going_back
        self._station.send(receiver, flight, None if hidden is None else self._ferry.ashore(hidden))

    def _verify(self, verifier: Verifier, flight: Flight, hidden: torch.Tensor | None) -> None:
        """Send the target's tokens back, and the states of accepted rows to a draft that reads
        them."""
        times = self._station.settings.placed.times
        receiver = self._deployment.drafts[flight.draft].name
        answers: list[tuple[int, ...]] = [() for _ in flight.segments]
        states, found = None, list[tuple[int, ...]]()
        if hidden is not None:
            split = hidden.split([len(segment.tokens) for segment in flight.segments])
            rows = flight.answered_rows
            cost = times.evaluate(rows)
            evaluation = self._station.work("evaluate", flight.session, rows, cost)
            with evaluation if rows else nullcontext():
                pairs = zip(flight.segments, split, strict=True)
                judged = [self._judged(verifier, *pair) for pair in pairs]
                answers = [tokens for tokens, _ in judged]
            decide_ms = times.decide * len(flight.segments)
            with self._station.work("decide", flight.session, rows, decide_ms):
                if self._deployment.reads_states:
                    found = [rows for _, rows in judged]
                    picked = [own[list(rows)] for own, rows in zip(split, found, strict=True)]
                    states = self._ends.features(torch.cat(picked))
        states = None if states is None or not len(states) else self._ferry.ashore(states)
        verified = Verified(flight, tuple(answers), tuple(found))
        self._station.send(receiver, verified if self._sends_all else verified.going_back, states)

    def _judged(
        self, verifier: Verifier, segment: Segment, hidden: torch.Tensor
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The target's tokens of a segment, and its accepted rows where anybody asks for them."""
        token_at = verifier.tokens(segment.session, hidden[segment.answered.start :])
        if self._accepted is not None:
            return self._accepted.of(segment, token_at)
        return tuple([token_at(row) for row in range(len(segment.answered))]), ()

    def _parts(self, move: Move) -> list[Part]:
        """All rows of the flight that are left."""
        parts = []
        for segment, rows, hidden in zip(
            move.flight.segments, move.rows, move.payloads, strict=True
        ):
            if segment.tokens:
                if self._embeds:
                    states = self._ends.embed(segment.tokens)
                else:
                    states = self._ferry.aboard(hidden if rows is None else hidden[list(rows)])
                parents = None if segment.committed else segment.parents
                parts.append(Part(segment.session, states, segment.positions, parents))
        return parts


def _answered(flight: Flight, hidden: torch.Tensor) -> list[torch.Tensor]:
    """Pick, segment by segment, the states of the rows at which the target's token is taken."""
    split = hidden.split([len(segment.tokens) for segment in flight.segments])
    pairs = zip(flight.segments, split, strict=True)
    return [states[segment.answered.start :] for segment, states in pairs]
