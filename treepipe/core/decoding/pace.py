"""A draft server's measurements while it serves: durations, and the share of accepted tokens.

``schedules/starsd.py`` chooses its depth by them. All of them come from the draft desk, so they are
the same in both worlds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treepipe.core.draft_work import Begin, Draft
from treepipe.core.messages import Flight, record
from treepipe.core.protocol import Command, Feed, Gauge, Judged

MEMORY = 50
"""Number of durations over which older ones fade."""
LEVEL_MEMORY = 500
"""Number of verified tokens of a depth over which older ones fade."""


@record
class Pace:
    """A draft server's load, durations and acceptance when a segment came back.

    Attributes:
        targets: number of its open requests.
        first_ms: time of a turn until the end of its first draft pass; None: not timed yet.
        pass_ms: time of each further draft pass of a turn.
        back_ms, back_row_ms: time from a turn's end to the return of its segment, and per row of
            it.
        levels: (accepted, tried) of the drafted levels, the root's children first.
    """

    targets: int = 1
    first_ms: float | None = None
    pass_ms: float = 0.0
    back_ms: float = 0.0
    back_row_ms: float = 0.0
    levels: tuple[tuple[float, float], ...] = ()


UNKNOWN = Pace()


@dataclass(slots=True)
class _Line:
    """Durations by rows: a least-squares line, never falling, level if counts hardly differ."""

    _weight: float = 0.0
    _rows: float = 0.0
    _ms: float = 0.0
    _spread: float = 0.0
    _product: float = 0.0

    def note(self, rows: int, ms: float) -> None:
        self._weight = self._weight * (1 - 1 / MEMORY) + 1
        share = 1 / self._weight
        apart, late = rows - self._rows, ms - self._ms
        self._rows += share * apart
        self._ms += share * late
        self._spread = (1 - share) * (self._spread + share * apart * apart)
        self._product = (1 - share) * (self._product + share * apart * late)

    @property
    def known(self) -> bool:
        return self._weight > 0

    @property
    def per_row_ms(self) -> float:
        return max(0.0, self._product / (self._spread + 1.0))

    @property
    def base_ms(self) -> float:
        """Intercept: the time at zero rows."""
        return self._ms - self.per_row_ms * self._rows

    @property
    def mean_ms(self) -> float:
        return self._ms


@dataclass(slots=True)
class PaceBook(Gauge):
    """The notes of a draft server's turns, its draft passes and its segments under way.

    Times are read at requests for the desk's next work: then the last work is over, and its
    segments are on their way. The pass that reads a prompt belongs to no round; a prompt's own way
    back counts until a tree's is known.
    """

    levels: tuple[tuple[float, float], ...] = ()
    _first: _Line = field(default_factory=_Line)
    _further: _Line = field(default_factory=_Line)
    _back: _Line = field(default_factory=_Line)
    _prompt_back: _Line = field(default_factory=_Line)
    _turn_ms: float | None = None
    _drafting: tuple[float, _Line] | None = None
    _fed: dict[int, tuple[int, _Line]] = field(default_factory=dict)
    _under_way: dict[int, tuple[int, _Line, float]] = field(default_factory=dict)
    _reading: set[int] = field(default_factory=set)  # sessions whose draft has read no token

    def given(self, work: object, now_ms: float) -> None:
        if self._drafting is not None:
            since_ms, line = self._drafting
            line.note(0, now_ms - since_ms)
            self._drafting = None
        for session, (rows, line) in self._fed.items():
            self._under_way[session] = rows, line, now_ms
        self._fed.clear()
        if isinstance(work, Draft):
            self._draft([session for session, _ in work.passes], now_ms)
        elif work is not None:
            self._turn_ms = now_ms
            if isinstance(work, Begin):
                self._reading.add(work.session)

    def _draft(self, sessions: list[int], now_ms: float) -> None:
        since_ms, self._turn_ms = self._turn_ms, None
        if not self._reading.isdisjoint(sessions):
            self._reading.difference_update(sessions)
        elif since_ms is None:
            self._drafting = now_ms, self._further
        else:
            self._drafting = since_ms, self._first

    def arrived(self, flight: Flight, now_ms: float) -> None:
        for segment in flight.segments:
            if segment.session in self._under_way:
                rows, line, since_ms = self._under_way.pop(segment.session)
                line.note(rows, now_ms - since_ms)

    def commanded(self, session: int, command: Command) -> None:
        if isinstance(command, Feed):
            segment = command.segment
            line = self._prompt_back if segment.committed else self._back
            self._fed[session] = len(segment.tokens), line
        elif isinstance(command, Judged):
            self._judge(command.accepted, command.drafted)

    def _judge(self, accepted: int, drafted: int) -> None:
        """Count a verified round; its first rejected level is the last one that was tried."""
        levels = [*self.levels, *[(0.0, 0.0)] * (drafted - len(self.levels))]
        keep = 1 - 1 / LEVEL_MEMORY
        for level in range(min(accepted + 1, drafted)):
            hits, tried = levels[level]
            levels[level] = keep * hits + (level < accepted), keep * tried + 1
        self.levels = tuple(levels)

    def left(self, session: int) -> None:
        self._reading.discard(session)
        self._fed.pop(session, None)
        self._under_way.pop(session, None)

    def seen(self, requests: int) -> Pace:
        back = self._back if self._back.known else self._prompt_back
        row_ms = self._back.per_row_ms
        base_ms = back.mean_ms if back is self._prompt_back else back.base_ms
        first_ms = self._first.mean_ms if self._first.known else None
        pass_ms = self._further.mean_ms if self._further.known else self._first.mean_ms
        return Pace(requests, first_ms, pass_ms, base_ms, row_ms, self.levels)
