"""The choice of points to measure in the given time: all of them, or a thinner grid.

The points stay a grid (the same token counts after every context, both ends of each as long as they
fit), since a table with gaps would mislead between its points. A few short passes predict the time
of the others before the measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from treepipe.executor.measure.timing import LEAST, VISIT_MS, Probe, WorkTimer
from treepipe.executor.measure.work import ENDS, WorkKind, WorkPoint

LITTLE = 5.0
"""Seconds below which a grid is not thinned, even if less time was given."""
SHORT = 16
"""Rows of the longest pass that is timed for a guess."""
FEWEST = 3
"""Fewest token counts of a grid that spans all of them."""

Guess: TypeAlias = Callable[[WorkPoint], float]
"""Milliseconds of a pass."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A grid of points, its least time in seconds, and the time of all points."""

    probes: Sequence[Probe[WorkPoint]]
    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: float
    all_seconds: float

    @property
    def thinned(self) -> bool:
        return self.seconds < self.all_seconds

    def sentence(self, tokens: Sequence[int], contexts: Sequence[int]) -> str:
        """Describe the share of the given tokens and contexts that is left."""
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
    """Choose the largest grid whose points can all be timed ``LEAST`` times in these seconds."""
    costs = {probe.key: _least_seconds(guess(probe.key)) for probe in probes}
    everything = sum(costs.values())
    for some, behind in _grids(tokens, contexts):
        chosen = [probe for probe in probes if _is_in(probe.key, some, behind)]
        cost = sum(costs[probe.key] for probe in chosen)
        if cost <= max(seconds, LITTLE):
            break
    return Choice(chosen, some, behind, cost, everything)


def idle_seconds(gaps_ms: Sequence[float], pass_ms: float) -> float:
    """Least time for the idle effect: ``LEAST`` turns and a first one, two passes a gap."""
    return (LEAST + 1) * sum(gap + 2 * pass_ms for gap in gaps_ms) / 1e3


def guess_times(
    probes: Sequence[Probe[WorkPoint]],
    clock: WorkTimer,
    now: Callable[[], float] = time.perf_counter,
) -> Guess:
    """Time the shortest passes of each kind; longer ones lie on the plane through them.

    The timed passes have the fewest and (at most) ``SHORT`` rows, after the shortest and the
    longest context. ``now`` returns seconds.
    """
    corners: dict[WorkKind, tuple[list[int], list[int], list[list[float]]]] = {}
    for kind in dict.fromkeys(probe.key[0] for probe in probes):
        own = {probe.key[1:]: probe for probe in probes if probe.key[0] == kind}
        counts, behind = ({key[place] for key in own} for place in (0, 1))
        short = max((n for n in counts if n <= SHORT), default=min(counts))
        rows, contexts = sorted({min(counts), short}), sorted({min(behind), max(behind)})
        times = [[_timed(own[n, context], clock, now) for context in contexts] for n in rows]
        corners[kind] = rows, contexts, times

    def guess(key: WorkPoint) -> float:
        kind, tokens, context = key
        rows, contexts, times = corners[kind]
        low, high = (_on_line(contexts, each, context) for each in (times[0], times[-1]))
        return _on_line(rows, [low, max(low, high)][: len(rows)], tokens)

    return guess


def _on_line(places: Sequence[int], values: Sequence[float], at: int) -> float:
    """Value at ``at`` of the line through one or two points."""
    slope = (values[-1] - values[0]) / (places[-1] - places[0]) if len(places) > 1 else 0.0
    return values[0] + slope * (at - places[0])


def thin(values: Sequence[int], count: int) -> tuple[int, ...]:
    """Choose ``count`` evenly spaced values, including both ends; a single one is the first.

    >>> thin((1, 2, 4, 8, 16, 24, 32), 3), thin((0, 256, 1024), 1), thin((7,), 1)
    ((1, 8, 32), (0,), (7,))
    """
    steps = max(1, count - 1)
    return tuple(values[i * (len(values) - 1) // steps] for i in range(count))


def _grids(
    tokens: tuple[int, ...], contexts: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield grids, from all points to a single context without the largest passes."""
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
    return rows in tokens and (context in contexts or kind in ENDS)


def _least_seconds(pass_ms: float) -> float:
    """Time of ``LEAST`` visits: an untimed pass, and timed ones for ``VISIT_MS``."""
    return LEAST * (2 * pass_ms + VISIT_MS * (pass_ms < VISIT_MS)) / 1e3


def _timed(probe: Probe[WorkPoint], clock: WorkTimer, now: Callable[[], float]) -> float:
    """Time the second pass in milliseconds, since the first one may do more."""
    for _ in range(2):
        start = now()
        probe.before()
        clock.time_ms(probe.work)
    return (now() - start) * 1e3
