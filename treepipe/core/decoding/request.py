"""The request state of every schedule: tickets, the output so far, prefill, the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from treepipe.core.errors import ProtocolError
from treepipe.core.messages import Segment
from treepipe.core.protocol import Command, Emit, Feed, Finish, Returned, Started
from treepipe.core.tree import split


class RequestState:
    """One request's bookkeeping.

    Attributes:
        session: number that every message of the request carries.
        length: positions of the prompt and the output so far, and so the root's position id.
        wanted: number of new tokens still to come.
        finished: why the request is done, None while it is not.
        prefill: tickets of the prompt's segments that have not come back.
    """

    def __init__(self, session: int, prefill_chunk: int) -> None:
        self.session = session
        self.finished: str | None = None
        self.length = 0
        self.prefill: deque[int] = deque()
        self._prefill_chunk = prefill_chunk
        self._tickets = 0
        self.wanted = 0
        self._end_tokens: frozenset[int] = frozenset()
        self._started = False

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def start(self, event: Started) -> list[Command]:
        """Feed the prompt as committed segments (FlowSpec, section 3.1: long ones in chunks)."""
        if self._started:
            raise ProtocolError("the request has been started before")
        self._started = True
        self.wanted = event.max_new_tokens
        self._end_tokens = event.end_tokens
        self.length = len(event.prompt)
        unknown = self.length - event.known
        parts = -(-unknown // self._prefill_chunk)
        segments, first = [], event.known
        for count in split(unknown, parts, self._prefill_chunk):
            end = first + count
            last = end == len(event.prompt)
            segments.append(self.committed_segment(event.prompt[first:end], first, asked=last))
            first = end
        self.prefill.extend(segment.ticket for segment in segments)
        return [Feed(segment) for segment in segments]

    def prefilled(self, event: Returned) -> int | None:
        """Take a segment of the prompt; return the first token when it was the last one. Raise
        ``ProtocolError`` if it is not the next one to come back."""
        if event.ticket != self.prefill[0]:
            raise ProtocolError(f"no segment with ticket {event.ticket} is next to come back")
        if len(self.prefill) > 1:
            self.prefill.popleft()
            return None
        if not event.next_tokens:
            raise ProtocolError("a prompt comes back with the target's next token")
        self.prefill.popleft()
        return event.next_tokens[-1]

    def committed_segment(
        self, tokens: tuple[int, ...], position: int, *, asked: bool = True
    ) -> Segment:
        """Make a segment of rows that all later rows see: prompt chunks, or plain decoding."""
        positions = tuple(range(position, position + len(tokens)))
        return Segment(self.session, self.ticket(), 0, 0, 0, tokens, positions, asked=asked)

    def emit(self, tokens: Sequence[int]) -> list[Command]:
        """Emit the tokens up to the wanted length, and ``Finish`` if that was the end."""
        wanted = tuple(tokens[: self.wanted])
        end = next((i for i, token in enumerate(wanted) if token in self._end_tokens), None)
        if end is not None:
            wanted = wanted[: end + 1]
            self.finished = "end of text"
        self.wanted -= len(wanted)
        if self.wanted == 0 and self.finished is None:
            self.finished = "length"
        commands: list[Command] = [Emit(wanted)]
        if self.finished is not None:
            commands.append(Finish(self.finished))
        return commands

    def lose(self) -> list[Command]:
        self.finished = "worker lost"
        return [Finish(self.finished)]
