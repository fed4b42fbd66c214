"""The rule of recovery: what is committed when a worker is lost, and what is computed again.

A draft server tells now and then what it committed; whoever hears that knows all open requests
without it. When a worker is lost, draft servers that are left tell the rest, all workers of the
deployment start anew (as ``failover.py`` decides), and every open request is opened again as a
preempted one is: its prompt and its committed text are fed first. Requests that are asked for
meanwhile wait at the front desk. When a draft server that was away is back, the same is done again.

Law of this file: what a draft server has told is committed, whatever becomes of it; what it has
not told, nobody has seen. So no token is lost, and none comes twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treepipe.core.requests import (
    LIVES,
    RUN_ENDED,
    Assignment,
    OpenRequest,
    Own,
    RequestTrace,
    numbered,
)

MOST_LIVES = 2**10
"""A request is preempted less often than this between two losses."""
TELL_MS = 100.0
"""A draft server tells what it committed at most so often."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens of a request that became final since the last time; ``emitted`` as in
    ``RequestTrace``."""

    session: int
    emitted: tuple[tuple[float, int], ...]
    tokens: tuple[int, ...]


class Teller:
    """A draft server's side: gathers what is committed until it is to be told."""

    def __init__(self) -> None:
        self._untold: dict[int, tuple[list[tuple[float, int]], list[int]]] = {}
        self._next_ms = 0.0
        self._over = False

    def emitted(self, now_ms: float, emitted: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        """Args: ``emitted``: sessions, and their tokens that are final."""
        for session, tokens in emitted:
            times, text = self._untold.setdefault(session, ([], []))
            times.append((now_ms, len(tokens)))
            text += tokens

    def over(self, session: int) -> None:
        """A request (by its own number) is finished, which is told by itself."""
        for each in [each for each in self._untold if numbered(each)[1] == session]:
            del self._untold[each]

    def end(self) -> None:
        """The whole texts were asked for: who has them is told nothing twice, since all workers are
        about to end."""
        self._over = True

    def due(self, now_ms: float) -> list[Committed]:
        """What is to be told now."""
        if self._over or not self._untold or now_ms < self._next_ms:
            return []
        told = [Committed(s, tuple(t), tuple(text)) for s, (t, text) in self._untold.items()]
        self._untold.clear()
        self._next_ms = now_ms + TELL_MS
        return told


@dataclass(frozen=True, slots=True)
class Held:
    """An open request: where it is served, and what is committed of it.

    Attributes:
        assignment: it was given so.
        trace: as it is if it ends now.
        lost: how often the worker of a process that it needs was lost.
    """

    assignment: Assignment
    trace: RequestTrace
    lost: int = 0

    @property
    def session(self) -> int:
        """The number that it is opened under: beyond all that it had before."""
        return self.trace.session + self.lost * MOST_LIVES * LIVES

    def opened(self, request: OpenRequest[Own]) -> OpenRequest[Own]:
        """The request, just made under ``session``, as it is taken up: with its committed text."""
        held = self.trace
        request.emitted, request.tokens = [*held.emitted], [*held.tokens]
        request.rounds, request.preemptions = [*held.rounds], held.preemptions
        request.recomputed_tokens = held.recomputed_tokens
        return request


class Journal:
    """The other side: all open requests of a run, with what is committed of them."""

    def __init__(self) -> None:
        self._open: dict[int, Held] = {}

    def open(self, session: int, prompt_tokens: int, assignment: Assignment) -> Held:
        """A request was given to a draft server. Args: ``session``: the request's own number."""
        asked_ms = assignment.asked_ms
        trace = RequestTrace(
            session, prompt_tokens, asked_ms, asked_ms, (), (), (), RUN_ENDED, assignment.pipeline
        )
        self._open[session] = Held(assignment, trace)
        return self._open[session]

    def told(self, said: Committed) -> None:
        """A draft server tells; of a request that is over already it is no news."""
        if (known := self._open.get(numbered(said.session)[1])) is not None:
            trace = known.trace
            emitted, tokens = (*trace.emitted, *said.emitted), (*trace.tokens, *said.tokens)
            self._note(replace(trace, emitted=emitted, tokens=tokens))

    def known(self, trace: RequestTrace) -> None:
        """All that a draft server knows of an open request."""
        if trace.session in self._open:
            self._note(trace)

    def closed(self, session: int) -> None:
        """A request is over."""
        self._open.pop(session, None)

    def texts(self, now_ms: float) -> list[RequestTrace]:
        """The open requests, as they are if they end now."""
        return [replace(each.trace, finished_ms=now_ms) for each in self._open.values()]

    def take_up(self) -> list[Held]:
        """Whoever served them starts anew: all that is to be opened again, as it came first."""
        self._open = {
            each.trace.session: replace(each, lost=each.lost + 1) for each in self._open.values()
        }
        return [*self._open.values()]

    def _note(self, trace: RequestTrace) -> None:
        self._open[trace.session] = replace(self._open[trace.session], trace=trace)
