"""Which points are measured in the time that there is: all of them, or a thinner grid.

Law of this file: what is measured stays a grid (the same token counts behind every context, both
ends of each as long as they fit), as a table with gaps would mislead between its points. Times are
guessed from a few short passes before anything is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from treepipe.executor.measure.timing import LEAST, VISIT_MS, Probe, WorkTimer
from treepipe.executor.measure.work import WorkKind, WorkPoint

LITTLE = 5.0
"""Seconds; what takes less is not thinned, however little time was asked for."""
SHORT = 16
"""Rows of the longest pass that is timed for a guess."""
FEWEST = 3
"""Token counts of a grid that spans all of them."""

Guess: TypeAlias = Callable[[WorkPoint], float]
"""Milliseconds of a pass."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is measured.

    Attributes:
        tokens, contexts: of the grid.
        seconds: that it takes at least; ``all_seconds``: that all points would.
    """

    probes: Sequence[Probe[WorkPoint]]
    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: float
    all_seconds: float

    @property
    def thinned(self) -> bool:
        return self.seconds < self.all_seconds

    def sentence(self, tokens: Sequence[int], contexts: Sequence[int]) -> str:
        """What is left out. Args: ``tokens``, ``contexts``: that were asked for."""
        return (
            f"thinned for lack of time to {len(self.tokens)} of {len(tokens)} token counts and "
            f"{len(self.contexts)} of {len(contexts)} contexts: all passes would have taken about "
            f"{self.all_seconds:.0f} s"
        )


def choose(
    probes: Sequence[Probe[WorkPoint]],
    tokens: tuple[int, ...],
    contexts: tuple[int, ...],
    seconds: float,
    guess: Guess,
) -> Choice:
    """The largest grid whose points can all be timed ``LEAST`` times in these seconds.

    Args: ``tokens``, ``contexts``: ascending, of ``probes``.
    """
    costs = {probe.key: _least_seconds(guess(probe.key)) for probe in probes}
    everything = sum(costs.values())
    for some, behind in _grids(tokens, contexts):
        chosen = [probe for probe in probes if _is_in(probe.key, some, behind)]
        cost = sum(costs[probe.key] for probe in chosen)
        if cost <= max(seconds, LITTLE):
            break
    return Choice(chosen, some, behind, cost, everything)


def idle_seconds(gaps_ms: Sequence[float], pass_ms: float) -> float:
    """The least time for the idle effect: ``LEAST`` turns and a first one, two passes a gap."""
    return (LEAST + 1) * sum(gap + 2 * pass_ms for gap in gaps_ms) / 1e3


def guess_times(
    probes: Sequence[Probe[WorkPoint]],
    clock: WorkTimer,
    now: Callable[[], float] = time.perf_counter,
) -> Guess:
    """Time the shortest passes of each kind; longer ones are on the plane through them.

    Of a kind's probes those over the fewest and over (at most) ``SHORT`` rows are timed, behind the
    shortest and the longest context.

    Args: ``now``: seconds; time that other processes had the processor is spent, too.
    """
    corners: dict[WorkKind, _Corners] = {}
    for kind in dict.fromkeys(probe.key[0] for probe in probes):
        own = {probe.key[1:]: probe for probe in probes if probe.key[0] == kind}
        rows, behind = ({key[place] for key in own} for place in (0, 1))
        low, high = min(rows), max([n for n in rows if n <= SHORT], default=min(rows))
        ends = min(behind), max(behind)
        times = {
            (n, context): _timed(own[n, context], clock, now)
            for n in dict.fromkeys((low, high))
            for context in dict.fromkeys(ends)
        }
        corners[kind] = _Corners((low, high), ends, times)
    return lambda key: corners[key[0]](*key[1:])


def thin(values: Sequence[int], count: int) -> tuple[int, ...]:
    """``count`` of them, evenly spaced, both ends among them; one: the first.

    >>> thin((1, 2, 4, 8, 16, 24, 32), 3), thin((0, 256, 1024), 1), thin((7,), 1)
    ((1, 8, 32), (0,), (7,))
    """
    steps = max(1, count - 1)
    return tuple(values[i * (len(values) - 1) // steps] for i in range(count))


@dataclass(frozen=True, slots=True)
class _Corners:
    """Milliseconds at two token counts behind two contexts (which may be the same)."""

    rows: tuple[int, int]
    contexts: tuple[int, int]
    times: dict[tuple[int, int], float]

    def __call__(self, rows: int, context: int) -> float:
        low, high = (self._behind(n, context) for n in self.rows)
        if self.rows[0] == self.rows[1]:
            return low
        slope = max(0.0, high - low) / (self.rows[1] - self.rows[0])
        return low + slope * (rows - self.rows[0])

    def _behind(self, rows: int, context: int) -> float:
        near, far = (self.times[rows, each] for each in self.contexts)
        width = self.contexts[1] - self.contexts[0]
        return near + (far - near) * ((context - self.contexts[0]) / width if width else 0.0)


def _grids(
    tokens: tuple[int, ...], contexts: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Token counts and contexts, from all points to very few: several contexts before many token
    counts, then one context, then without the largest passes."""
    fewest = min(FEWEST, len(tokens))
    sizes = [
        (rows, behind)
        for rows in range(fewest, len(tokens) + 1)
        for behind in range(1, len(contexts) + 1)
    ]
    several = min(2, len(contexts))
    for rows, behind in sorted(sizes, key=lambda n: (n[1] < several, -n[0] * n[1], -n[0])):
        yield thin(tokens, rows), thin(contexts, behind)
    least = min(len(tokens), max(2, sum(n <= SHORT for n in tokens)))
    for end in range(len(tokens) - 1, least - 1, -1):
        yield thin(tokens[:end], min(fewest, end)), contexts[:1]


def _is_in(key: WorkPoint, tokens: Sequence[int], contexts: Sequence[int]) -> bool:
    kind, rows, context = key
    if kind == "prune":
        return True
    return rows in tokens and (context in contexts or kind in ("head", "embedding"))


def _least_seconds(pass_ms: float) -> float:
    """The time of ``LEAST`` visits: a pass that is not timed, and timed ones for ``VISIT_MS``."""
    return LEAST * (2 * pass_ms + VISIT_MS * (pass_ms < VISIT_MS)) / 1e3


def _timed(probe: Probe[WorkPoint], clock: WorkTimer, now: Callable[[], float]) -> float:
    """Milliseconds of the second pass, as the first one may have more to do."""
    for _ in range(2):
        start = now()
        probe.before()
        clock.time_ms(probe.work)
    return (now() - start) * 1e3
