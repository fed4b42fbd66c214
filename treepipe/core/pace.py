"""What a draft server learns while it serves: how long things take, and what is accepted.

Law of this file: all of it comes from the draft desk, so it is the same in both worlds; a schedule
sees of it only the ``Pace`` in an event that it is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treepipe.core.records import record

MEMORY = 50
"""So many of the last durations count; older ones fade away."""
LEVEL_MEMORY = 500
"""So many of the last verified tokens of a depth count."""


@record
class Pace:
    """A draft server's load, durations and acceptance when a segment came back.

    Attributes:
        targets: requests that are open at it.
        first_ms: a turn until its first draft pass is over; None: none was timed yet.
        pass_ms: each further draft pass of a turn.
        back_ms, back_row_ms: from a turn's end to the return of the segment fed in it: so much, and
            so much more per row.
        levels: (accepted, tried) of the drafted levels, the root's children first.
    """

    targets: int = 1
    first_ms: float | None = None
    pass_ms: float = 0.0
    back_ms: float = 0.0
    back_row_ms: float = 0.0
    levels: tuple[tuple[float, float], ...] = ()


UNKNOWN = Pace()
"""What is known before anything was done."""


@dataclass(slots=True)
class _Line:
    """Durations over a count of rows: a line by least squares that never falls, and is level
    while the counts hardly differ; the first values weigh as much as any until they fade."""

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
        """At no row."""
        return self._ms - self.per_row_ms * self._rows

    @property
    def mean_ms(self) -> float:
        return self._ms


@dataclass(slots=True)
class PaceBook:
    """What a draft server notes of its turns, its draft passes and its segments under way.

    Times are read where the desk is asked what to do next: then the last thing is over, and what it
    fed is on its way. The pass that reads a prompt is none of a round; a prompt's own way back
    counts until a tree's is known.
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
    _reading: set[int] = field(default_factory=set)

    def look(self, now_ms: float) -> None:
        """What was given out last is over."""
        if self._drafting is not None:
            since_ms, line = self._drafting
            line.note(0, now_ms - since_ms)
            self._drafting = None
        if self._fed:
            for session, (rows, line) in self._fed.items():
                self._under_way[session] = rows, line, now_ms
            self._fed.clear()

    def turn(self, now_ms: float) -> None:
        """A turn begins."""
        self._turn_ms = now_ms

    def drafting(self, sessions: list[int], now_ms: float) -> None:
        """Draft passes of these sessions begin."""
        since_ms, self._turn_ms = self._turn_ms, None
        if self._reading and not self._reading.isdisjoint(sessions):
            self._reading.difference_update(sessions)
        elif since_ms is None:
            self._drafting = now_ms, self._further
        else:
            self._drafting = since_ms, self._first

    def fed(self, session: int, rows: int, *, prompt: bool) -> None:
        """A segment goes out when the server looks up next."""
        self._fed[session] = rows, self._prompt_back if prompt else self._back

    def back(self, session: int, now_ms: float) -> None:
        """The session's newest segment came back."""
        if session in self._under_way:
            rows, line, since_ms = self._under_way.pop(session)
            line.note(rows, now_ms - since_ms)

    def open(self, session: int) -> None:
        """The draft has read nothing of a session yet."""
        self._reading.add(session)

    def close(self, session: int) -> None:
        """A session is over."""
        self._reading.discard(session)
        self._fed.pop(session, None)
        self._under_way.pop(session, None)

    def judged(self, accepted: int, drafted: int) -> None:
        """A round is verified; its first rejected level is the last one that was tried."""
        levels = [*self.levels, *[(0.0, 0.0)] * (drafted - len(self.levels))]
        keep = 1 - 1 / LEVEL_MEMORY
        for level in range(min(accepted + 1, drafted)):
            hits, tried = levels[level]
            levels[level] = keep * hits + (level < accepted), keep * tried + 1
        self.levels = tuple(levels)

    def pace(self, targets: int) -> Pace:
        """What a schedule is told."""
        back = self._back if self._back.known else self._prompt_back
        row_ms = self._back.per_row_ms
        base_ms = back.mean_ms if back is self._prompt_back else back.base_ms
        first_ms = self._first.mean_ms if self._first.known else None
        pass_ms = self._further.mean_ms if self._further.known else self._first.mean_ms
        return Pace(targets, first_ms, pass_ms, base_ms, row_ms, self.levels)
