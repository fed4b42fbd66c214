"""Plain decoding over a pipeline (PP): one token goes through all stages; no draft."""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.errors import ProtocolError
from treepipe.protocol import Command, Event, Feed, Returned, RoundRecord, Started, WorkerLost
from treepipe.schedules.request import Request


class Autoregressive:
    """Each token is fed as a committed row, so that no prune is ever announced."""

    def __init__(self, session: int, prefill_chunk: int) -> None:
        self._request = Request(session, prefill_chunk)
        self._outstanding: list[int] = []
        self._rounds: list[RoundRecord] = []

    @property
    def done(self) -> bool:
        return self._request.finished is not None

    @property
    def rounds(self) -> Sequence[RoundRecord]:
        return self._rounds

    def handle(self, event: Event) -> Sequence[Command]:
        if self.done:
            raise ProtocolError("the request is done")
        if isinstance(event, Started):
            segments, commands = self._request.start(event)
            self._outstanding = [segment.ticket for segment in segments]
            return commands
        if isinstance(event, Returned):
            return self._returned(event)
        if isinstance(event, WorkerLost):
            return self._request.lose()
        raise ProtocolError(f"plain decoding has no draft to answer {type(event).__name__}")

    def _returned(self, event: Returned) -> list[Command]:
        if not self._outstanding or event.ticket != self._outstanding[0]:
            raise ProtocolError(f"no segment with ticket {event.ticket} is next to come back")
        if self._outstanding[1:]:
            del self._outstanding[0]  # a chunk of the prompt, not the last one
            return []
        if not event.next_tokens:
            raise ProtocolError("a committed segment comes back with the target's next token")
        del self._outstanding[0]
        token = event.next_tokens[-1]
        self._rounds.append(RoundRecord(1, 1, (1,), 1, 1))
        commands = self._request.emit((token,))
        if not self.done:
            segment = self._request.committed_segment((token,), self._request.length)
            self._request.length += 1
            self._outstanding.append(segment.ticket)
            commands.append(Feed(segment))
        return commands
