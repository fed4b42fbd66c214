"""A stage process: its layers, its caches, and the rules of ``treepipe.core.stage_desk``.

If the pipeline has the target's ends, the first stage embeds, and the last one chooses the target's
tokens and sends them instead of hidden states.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from treepipe.core.messages import Beat, Close, Flight, Segment, Verified, judged_rows
from treepipe.core.stage import AcceptedRows, Prune
from treepipe.core.stage_desk import Move, Send, StageWork
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.computing import DTYPES, DeviceTransfer
from treepipe.executor.models.stage_model import OpenedPass, Part, StageModel, TargetEnds
from treepipe.executor.models.verifier import Verifier, answered_states
from treepipe.executor.run.station import Station
from treepipe.executor.wire.mailbox import Received
from treepipe.scenario.desks import stage_desk


class StageWorker:
    """The server of a stage's flights and beats."""

    def __init__(self, station: Station) -> None:
        settings = station.settings
        assert settings.pipeline is not None  # every stage has one
        self._station, self._deployment = station, settings.deployment
        stages = settings.deployment.roles.pipelines[settings.pipeline]
        following = stages[settings.number :]
        self._successor = following[0].name if following else None
        self._hands_on = settings.deployment.service.feedback == "ring"
        self._desk = stage_desk(settings.deployment, settings.pipeline, settings.number)
        checkpoint, compute = Checkpoint.open(settings.target), settings.placed.compute
        dtype, device = DTYPES[compute.dtype], compute.device
        self._transfer, capacity = DeviceTransfer(compute), settings.capacity
        layers, captured = settings.placed.layers, self._deployment.roles.captured
        graphs = compute.graphs and not self._deployment.service.cancels
        self._model = StageModel(checkpoint, layers, capacity, dtype, device, captured, graphs)
        self._width, self._captured = checkpoint.hidden_size, captured
        self._embeds = settings.number == 1 and self._deployment.roles.ends == "pipeline"
        verifies = self._deployment.roles.verifies(settings.pipeline, settings.number)
        ends = TargetEnds(checkpoint, dtype, device, embeds=self._embeds, projects=verifies)
        self._ends = ends
        sampling, seed = settings.source.sampling, self._deployment.seed
        self._verifier = Verifier(ends, sampling, seed, None) if verifies else None
        self._sends_all = bool(following) or self._deployment.roles.reads_states
        judges = self._verifier is not None and not self._verifier.greedy
        reads = verifies and self._deployment.roles.reads_states
        self._accepted = AcceptedRows() if judges or reads else None

    @property
    def open_sessions(self) -> int:
        return self._model.sessions

    def serve(self) -> None:
        """Serve messages as they become due, until the controller sends an order."""
        station, desk = self._station, self._desk
        while True:
            received = station.wait()
            if received is None:
                return
            self._receive(received)
            while (action := desk.next_action()) is not None:
                self._perform(action)
                # A message that has arrived meanwhile may prune the next rows.
                while (more := station.due()) is not None:
                    self._receive(more)

    def _receive(self, received: Received) -> None:
        body = received.message
        if isinstance(body, Beat) and self._successor and self._hands_on:
            self._station.send(self._successor, body)
        payloads: list[torch.Tensor | None] = []
        if isinstance(body, Flight):
            counts = [len(segment.tokens) for segment in body.segments]
            hidden = received.hidden
            payloads = [None] * len(counts) if hidden is None else list(hidden.split(counts))
        for session in self._desk.receive(body, payloads):
            self._station.enter("mask")
            self._model.open(session)
            if self._verifier is not None:
                self._verifier.open(session)
        if isinstance(body, Close):
            self._close(body.session)
        self._station.enter("desk")

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
            self._station.enter("mask")
            parts, before = self._parts(action)
            opened = self._model.begin(parts)
            session = flight.segments[0].session
            duration = times.stage.over(self._desk.parts(flight))
            if self._deployment.service.cancels:
                flight, hidden = self._looking(flight, opened, before, duration)
            else:
                with self._station.work("compute", session, tokens, duration):
                    hidden = _behind(before, self._model.run(opened))
                    self._transfer.wait()
        if self._verifier is not None:
            self._verify(self._verifier, flight, hidden)
            return
        said = self._desk.through(flight)
        if said is not None:
            states = None
            if said.state_rows and hidden is not None:
                own = hidden[-1:, -self._width :]  # without captured ones
                states = self._transfer.to_host(own.expand(said.state_rows, -1))
            self._station.send(self._deployment.roles.drafts[flight.draft].name, said, states)
        counts = [len(segment.tokens) for segment in flight.segments]
        if self._desk.computed(flight, () if hidden is None else hidden.split(counts)):
            self._send_on(flight, hidden)

    def _looking(
        self, flight: Flight, opened: OpenedPass, before: torch.Tensor, duration_ms: float
    ) -> tuple[Flight, torch.Tensor | None]:
        """Run a pass, and receive messages behind each of its layers. Return the flight and its
        states; if the messages leave no row of it, what is to go on of it without any."""
        station, layers = self._station, len(self._station.settings.placed.layers)
        session, rows, start = flight.session, flight.rows, station.clock.now_ms()
        done, given_up = 0, None

        @torch.inference_mode(mode=False)  # a message may open a cache, which passes write to
        def stops(behind: int) -> bool:
            nonlocal done, given_up
            self._transfer.wait()
            station.clock.spend(start, factor * duration_ms * behind / layers)
            while (more := station.due()) is not None:
                self._receive(more)
            station.enter("compute", session, rows)
            done, given_up = behind, self._desk.given_up(flight)
            return given_up is not None

        with station.work("compute", session, rows, lambda: duration_ms * done / layers) as factor:
            states = self._model.run(opened, stops)
        if given_up is None:
            return flight, _behind(before, states)
        if self._accepted is not None:
            self._accepted.skip(flight.segments)
        return given_up, None

    def _send_on(self, flight: Flight, hidden: torch.Tensor | None) -> None:
        receiver = self._successor or self._deployment.roles.drafts[flight.draft].name
        if not self._sends_all and hidden is not None:
            hidden = torch.cat(answered_states(flight, hidden)) if flight.answered_rows else None
            flight = flight.going_back
        sent = None if hidden is None else self._transfer.to_host(hidden)
        self._station.send(receiver, flight, sent)

    def _verify(self, verifier: Verifier, flight: Flight, hidden: torch.Tensor | None) -> None:
        """Send the target's tokens back, with accepted rows' states if the draft reads them."""
        times = self._station.settings.placed.times
        receiver = self._deployment.roles.drafts[flight.draft].name
        answers: list[tuple[int, ...]] = [() for _ in flight.segments]
        states, found = None, list[tuple[int, ...]]()
        if hidden is not None:
            split = hidden.split([len(segment.tokens) for segment in flight.segments])
            rows = flight.answered_rows
            evaluation = self._station.work(
                "evaluate", flight.session, rows, lambda: times.verify(rows, judged_rows(answers))
            )
            with evaluation if rows else nullcontext():
                pairs = zip(flight.segments, split, strict=True)
                judged = [self._judged(verifier, *pair) for pair in pairs]
                answers = [tokens for tokens, _ in judged]
            decide_ms = times.decide * flight.decisions
            with self._station.work("decide", flight.session, rows, decide_ms):
                if self._captured:
                    found = [rows for _, rows in judged]
                    picked = [own[list(rows)] for own, rows in zip(split, found, strict=True)]
                    states = self._ends.read_states(torch.cat(picked), self._captured)
        states = None if states is None or not len(states) else self._transfer.to_host(states)
        now = self._station.clock.now_ms()
        verified = Verified(flight, tuple(answers), tuple(found), now)
        self._station.send(receiver, verified if self._sends_all else verified.going_back, states)

    def _judged(
        self, verifier: Verifier, segment: Segment, hidden: torch.Tensor
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the target's tokens of a segment, and its accepted rows if they are needed."""
        token_at = verifier.tokens(segment.session, hidden[segment.answered.start :])
        if self._accepted is not None:
            return self._accepted.of(segment, token_at)
        return tuple([token_at(row) for row in range(len(segment.answered))]), ()

    def _parts(self, move: Move) -> tuple[list[Part], torch.Tensor]:
        """Return the rows of the flight that were not pruned, and the captured states [rows, ...]
        that came with them."""
        parts, before = list[Part](), list[torch.Tensor]()
        for segment, rows, hidden in zip(
            move.flight.segments, move.rows, move.payloads, strict=True
        ):
            if segment.tokens:
                if self._embeds:
                    states = self._ends.embed(segment.tokens)
                else:
                    left = hidden if rows is None else hidden[list(rows)]
                    whole = self._model.static is not None and not self._captured
                    states = left if whole else self._transfer.to_device(left)
                parents = None if segment.committed else segment.parents
                own = states[:, -self._width :]
                parts.append(Part(segment.session, own, segment.positions, parents))
                before.append(states[:, : -self._width])
        return parts, torch.cat(before)


def _behind(before: torch.Tensor, states: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return all parts' states behind the captured ones [rows, ...] that came with their rows."""
    after = torch.cat([*states])
    return torch.cat((before, after), -1) if before.shape[-1] else after
