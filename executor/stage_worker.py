"""A stage process: its layers, its caches, and the rules of ``treepipe.stage``."""

from __future__ import annotations

import torch

from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.role import Desk
from treepipe.executor.stage_model import StageModel
from treepipe.executor.transport import Close, Received
from treepipe.plan import message_bytes
from treepipe.protocol import Segment
from treepipe.stage import Action, Pass, Prune, Run, StageSession


class StageWorker:
    """Serves segments and words until the controller ends it."""

    def __init__(self, desk: Desk, successor: str) -> None:
        settings = desk.settings
        self._desk, self._successor = desk, successor
        checkpoint = Checkpoint.open(settings.target)
        self._model = StageModel(checkpoint, settings.placed.layers, settings.capacity)
        self._model.check_causality = settings.check_causality
        self._sessions: dict[int, StageSession] = {}
        self._hidden: dict[tuple[int, int], torch.Tensor] = {}
        self._closed = -1

    def serve(self) -> None:
        """Handle messages as they become due; returns when the controller calls."""
        while True:
            received = self._desk.inbox.get()
            if received is None:
                return
            self._receive(received)
            while self._act():
                # What has arrived meanwhile may prune what would be computed next.
                while (more := self._desk.inbox.get_due()) is not None:
                    self._receive(more)

    def _receive(self, received: Received) -> None:
        self._desk.note_transfer(received)
        body = received.envelope.body
        if body.session <= self._closed:
            return
        if isinstance(body, Close):
            self._close(body.session)
            return
        if body.session not in self._sessions:
            stages, number = self._desk.settings.stages, self._desk.settings.number
            self._sessions[body.session] = StageSession(number, stages)
            self._model.open(body.session)
        if isinstance(body, Segment) and received.hidden is not None:
            self._hidden[body.session, body.ticket] = received.hidden
        self._sessions[body.session].receive(body)

    def _close(self, session: int) -> None:
        """Sessions are numbered upwards and end in order, so older ones are closed, too."""
        self._closed = session
        self._sessions.pop(session, None)
        self._model.close(session)
        self._hidden = {key: value for key, value in self._hidden.items() if key[0] > session}

    def _act(self) -> bool:
        """Do the next action of any session; False if all have to wait."""
        for session, state in self._sessions.items():
            action = state.next_action()
            if action is not None:
                self._perform(session, action)
                return True
        return False

    def _perform(self, session: int, action: Action) -> None:
        times = self._desk.settings.placed.times
        if isinstance(action, Prune):
            with self._desk.work("prune", session, len(action.keep), times.prune):
                self._model.cache(session).prune(action.keep, action.accepted)
        elif isinstance(action, Run):
            rows = len(action.segment.tokens)
            with self._desk.work("compute", session, rows, times.stage(rows)):
                hidden = self._compute(session, action)
            self._send(action.segment, hidden)
        else:
            assert isinstance(action, Pass)
            self._hidden.pop((session, action.segment.ticket), None)
            self._send(action.segment, None)

    def _compute(self, session: int, action: Run) -> torch.Tensor:
        segment = action.segment
        hidden = self._hidden.pop((session, segment.ticket))
        if action.rows is not None:
            hidden = hidden[list(action.rows)]
        parents = None if segment.committed else segment.parents
        return self._model.forward(session, hidden, segment.positions, parents)

    def _send(self, segment: Segment, hidden: torch.Tensor | None) -> None:
        size = message_bytes(segment, self._desk.settings.row_bytes)
        self._desk.outboxes[self._successor].send(segment, size, hidden)
