"""A stage process: its layers, its caches, and the rules of ``treepipe.core.stage_desk``."""

from __future__ import annotations

import torch

from treepipe.core.messages import Close, Flight
from treepipe.core.stage import Prune
from treepipe.core.stage_desk import Move, StageWork
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.stage_model import Part, StageModel
from treepipe.executor.station import Station
from treepipe.executor.transport import Received


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
        checkpoint = Checkpoint.open(settings.target)
        self._model = StageModel(checkpoint, settings.placed.layers, settings.capacity)
        self._model.check_causality = settings.check_causality

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
            self._model.open(session)
        if isinstance(body, Close):
            self._model.close(body.session)

    def _perform(self, action: StageWork) -> None:
        times = self._station.settings.placed.times
        if isinstance(action, Prune):
            with self._station.work("prune", action.session, len(action.keep), times.prune):
                self._model.cache(action.session).prune(action.keep, action.accepted)
            return
        flight, tokens = action.flight, action.tokens
        hidden = None
        if tokens:
            session = flight.segments[0].session
            duration = times.stage.over(self._desk.parts(flight))
            with self._station.work("compute", session, tokens, duration):
                hidden = self._compute(action)
        receiver = self._successor or self._deployment.drafts[flight.draft].name
        self._station.send(receiver, flight, hidden)

    def _compute(self, move: Move) -> torch.Tensor:
        """All rows of the flight in one pass."""
        parts = []
        for segment, rows, hidden in zip(
            move.flight.segments, move.rows, move.payloads, strict=True
        ):
            if segment.tokens:
                states = hidden if rows is None else hidden[list(rows)]
                parents = None if segment.committed else segment.parents
                parts.append(Part(segment.session, states, segment.positions, parents))
        return torch.cat(self._model.forward_batch(parts))
