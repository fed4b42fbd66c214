"""The draft process (D0): draft model, the target's two ends, and the schedule itself.

It is strictly sequential: its own draft passes are handled before the next message, as in the
authors' code and as in the simulator.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.clock import now_ms
from treepipe.executor.draft_model import LanguageModelDraft
from treepipe.executor.role import Desk
from treepipe.executor.stage_model import TargetEnds
from treepipe.executor.transport import Close, Received
from treepipe.plan import HEADER_BYTES, RequestSpec, message_bytes
from treepipe.protocol import (
    Announce,
    Command,
    Drafted,
    DraftPass,
    Emit,
    Event,
    Feed,
    Returned,
    Schedule,
    Segment,
    Started,
    Word,
)
from treepipe.recording import Recorder
from treepipe.trace import RequestTrace


@dataclass(slots=True)
class _Progress:
    """What a request has emitted so far."""

    started_ms: float
    emitted: list[tuple[float, int]]
    tokens: list[int]
    reason: str = ""


class DraftWorker:
    """Runs one request at a time through the pipeline."""

    def __init__(self, desk: Desk, stages: list[str]) -> None:
        """Args: ``stages``: names of the stages along the pipeline."""
        self._desk, self._stages = desk, stages
        settings = desk.settings
        self._ends = TargetEnds(Checkpoint.open(settings.target))
        self._draft = LanguageModelDraft(Checkpoint.open(settings.draft), settings.capacity)

    def run(
        self, session: int, schedule: Schedule, request: RequestSpec, recorder: Recorder
    ) -> RequestTrace:
        """Decode one request; raises ``InterruptedError`` if the controller calls meanwhile."""
        self._draft.open(session)
        progress = _Progress(now_ms(), [], [])
        events: deque[Event] = deque(
            [Started(request.prompt, request.max_new_tokens, request.end_of_text)]
        )
        try:
            while not schedule.done:
                event = events.popleft() if events else self._next_returned(session)
                for command in self._decide(session, schedule, event):
                    answer = self._execute(session, command, progress, recorder)
                    if answer is not None:
                        events.append(answer)
        finally:
            self._close(session)
        return RequestTrace(
            session,
            len(request.prompt),
            progress.started_ms,
            now_ms(),
            tuple(progress.emitted),
            tuple(progress.tokens),
            tuple(schedule.rounds),
            progress.reason,
        )

    def _decide(self, session: int, schedule: Schedule, event: Event) -> list[Command]:
        if not isinstance(event, Returned):
            return list(schedule.handle(event))
        decide_ms = self._desk.settings.placed.times.decide
        with self._desk.work("decide", session, len(event.next_tokens), decide_ms):
            return list(schedule.handle(event))

    def _next_returned(self, session: int) -> Returned:
        """Wait for the last stage, and read the target's tokens off its states."""
        while True:
            received = self._desk.inbox.get()
            if received is None:
                raise InterruptedError
            self._desk.note_transfer(received)
            segment = received.envelope.body
            if isinstance(segment, Segment) and segment.session == session:
                tokens = self._evaluate(segment, received)
                return Returned(segment.ticket, segment.version, segment.start, tokens)

    def _evaluate(self, segment: Segment, received: Received) -> tuple[int, ...]:
        hidden = received.hidden
        if hidden is None:
            return ()
        if segment.committed:
            hidden = hidden[-1:]
        evaluate_ms = self._desk.settings.placed.times.evaluate(len(hidden))
        with self._desk.work("evaluate", segment.session, len(hidden), evaluate_ms):
            return self._ends.next_tokens(hidden)

    def _execute(
        self, session: int, command: Command, progress: _Progress, recorder: Recorder
    ) -> Drafted | None:
        if isinstance(command, DraftPass):
            draft_ms = self._desk.settings.placed.times.draft(command.rows)
            with self._desk.work("draft", session, command.rows, draft_ms):
                drafted = self._draft.draft(session, command)
            recorder.drafted(session, command, drafted)
            return drafted
        if isinstance(command, Feed):
            segment = command.segment
            hidden = self._ends.embed(segment.tokens) if segment.tokens else None
            size = message_bytes(segment, self._desk.settings.row_bytes)
            self._desk.outboxes[self._stages[0]].send(segment, size, hidden)
        elif isinstance(command, Announce):
            self._broadcast(command.word, message_bytes(command.word, 0))
        elif isinstance(command, Emit):
            progress.emitted.append((now_ms(), len(command.tokens)))
            progress.tokens += command.tokens
        else:
            progress.reason = command.reason
        return None

    def _close(self, session: int) -> None:
        self._draft.close(session)
        self._broadcast(Close(session), HEADER_BYTES)

    def _broadcast(self, body: Word | Close, size_bytes: int) -> None:
        for stage in self._stages:
            self._desk.outboxes[stage].send(body, size_bytes)
