"""What every schedule of one request shares: tickets, the output so far, prefill, the end.

Rules of a particular schedule do not belong here.
"""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.errors import ProtocolError
from treepipe.protocol import Command, Emit, Feed, Finish, Segment, Started
from treepipe.tree import split


class Request:
    """One request's bookkeeping.

    Attributes:
        session: number that every message of the request carries.
        length: positions that the prompt and the output so far take, the root excluded: the
            position id of the root.
        wanted: new tokens that are still to come.
        finished: why the request is done, None while it is not.
    """

    def __init__(self, session: int, prefill_chunk: int) -> None:
        self.session = session
        self.finished: str | None = None
        self.length = 0
        self._prefill_chunk = prefill_chunk
        self._tickets = 0
        self.wanted = 0
        self._end_of_text: int | None = None
        self._started = False

    def ticket(self) -> int:
        """A ticket that was not used before in this request."""
        self._tickets += 1
        return self._tickets

    def start(self, event: Started) -> tuple[list[Segment], list[Command]]:
        """The prompt as committed segments (FlowSpec, section 3.1: long prompts in chunks)."""
        if self._started:
            raise ProtocolError("the request has been started before")
        self._started = True
        self.wanted = event.max_new_tokens
        self._end_of_text = event.end_of_text
        self.length = len(event.prompt)
        parts = -(-len(event.prompt) // self._prefill_chunk)
        segments, first = [], 0
        for count in split(len(event.prompt), parts, self._prefill_chunk):
            segments.append(self.committed_segment(event.prompt[first : first + count], first))
            first += count
        return segments, [Feed(segment) for segment in segments]

    def committed_segment(self, tokens: tuple[int, ...], position: int) -> Segment:
        """Rows that every later row may attend to: prompt chunks, or plain decoding."""
        positions = tuple(range(position, position + len(tokens)))
        return Segment(self.session, self.ticket(), 0, 0, 0, tokens, positions)

    def emit(self, tokens: Sequence[int]) -> list[Command]:
        """Emit what is still wanted of the tokens; ``Finish`` behind it if that was the end."""
        wanted = tuple(tokens[: self.wanted])
        if self._end_of_text in wanted:
            wanted = wanted[: wanted.index(self._end_of_text) + 1]
            self.finished = "end of text"
        self.wanted -= len(wanted)
        if self.wanted == 0 and self.finished is None:
            self.finished = "length"
        commands: list[Command] = [Emit(wanted)]
        if self.finished is not None:
            commands.append(Finish(self.finished))
        return commands

    def lose(self) -> list[Command]:
        """A worker was lost: what was emitted stays."""
        self.finished = "worker lost"
        return [Finish(self.finished)]
