"""Repetition of timed work, and its clocks.

All points are visited in turns, so that slow drift of the machine affects all alike, until every
point's median is known well enough (the notch of its box plot is narrow) or the time is up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch

from treepipe.progress import Progress

Key = TypeVar("Key", bound=Hashable)

VISIT_MS = 8.0
"""Length of a visit to a point; a longer pass is timed once per visit."""
SCHEDULER = Path("/proc/thread-self/schedstat")
"""Nanoseconds of running and of waiting for a processor, and a count (Linux' sched-stats.rst)."""
LEAST = 3
"""Timed passes that a point needs to count as measured."""


class WorkTimer(Protocol):
    """A clock of pieces of work; each time in milliseconds includes the work's results."""

    def time_ms(self, work: Callable[[], object]) -> float: ...

    @property
    def withheld(self) -> float:
        """Share of the timed interval in which other processes had the device."""
        ...


class HostClock:
    """The host's monotonic clock, for work that is done when the call returns.

    Linux counts the time in which the work was ready but another process had the processor; it is
    subtracted, since it is not the device's. Other systems' times include it.
    """

    def __init__(self) -> None:
        self._counted = SCHEDULER.exists()
        self.timed_ms, self.withheld_ms = 0.0, 0.0

    def time_ms(self, work: Callable[[], object]) -> float:
        withheld, start = self._withheld_ms(), time.perf_counter()
        work()
        taken = (time.perf_counter() - start) * 1e3
        withheld = self._withheld_ms() - withheld
        self.timed_ms += taken
        self.withheld_ms += withheld
        return max(0.0, taken - withheld)

    @property
    def withheld(self) -> float:
        return self.withheld_ms / self.timed_ms if self.timed_ms else 0.0

    def _withheld_ms(self) -> float:
        return int(SCHEDULER.read_bytes().split()[1]) / 1e6 if self._counted else 0.0


class CudaClock:
    """Events on the device's stream around the work, on a stream that was empty before.

    The host's work between the two (masks, launches) keeps the stream waiting and counts.
    """

    withheld = 0.0

    def time_ms(self, work: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


def clock_of(device: str) -> WorkTimer:
    return CudaClock() if device == "cuda" else HostClock()


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and quartiles of timed passes, in milliseconds."""

    median: float
    low: float
    high: float
    passes: int

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def summarize(samples_ms: Sequence[float]) -> Summary:
    low, median, high = np.quantile(samples_ms, (0.25, 0.5, 0.75))
    return Summary(float(median), float(low), float(high), len(samples_ms))


@dataclass(frozen=True, slots=True)
class Probe(Generic[Key]):
    """A point to measure: ``work`` is timed, ``before`` prepares its state.

    A ``warm`` visit begins with an untimed pass, since the previous point has displaced caches.
    """

    key: Key
    work: Callable[[], object]
    before: Callable[[], object] = lambda: None
    warm: bool = True


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits of a measurement.

    It ends after ``turns`` when the half-width of the 95 % interval of every point's median,
    relative, is at most ``precision``, or after ``seconds`` once every point has ``LEAST`` times.
    """

    seconds: float
    precision: float = 0.01
    turns: int = 10


Samples = dict[Key, list[float]]
"""Milliseconds per timed pass, by the point's key."""


@dataclass(slots=True)
class Sampler(Generic[Key]):
    """A timer of probes in turns; ``samples`` keeps all times, even after an interruption."""

    clock: WorkTimer
    samples: Samples[Key] = field(default_factory=dict)
    now: Callable[[], float] = time.perf_counter
    """Clock in seconds, for the time to spend."""

    def measure(self, probes: Iterable[Probe[Key]], effort: Effort, say: Progress) -> None:
        """Time all probes; ``say`` is called with 100 steps in total."""
        everything, start = list(probes), self.now()
        for probe in everything:
            self.samples[probe.key] = []
            if not probe.warm:  # lazy initialization, first touch of memory; others warm up anyway
                probe.before()
                probe.work()
        turn, used, shown = 0, 0.0, 0
        while turn < effort.turns or not all(self._is_known(p.key, effort) for p in everything):
            turn += 1
            for probe in everything:
                self._visit(probe)
                used = (self.now() - start) / effort.seconds
                if (done := min(100, int(100 * used))) > shown:
                    say("", done - shown)
                    shown = done
                if used >= 1 and turn > LEAST:
                    break
            if used >= 1 and turn >= LEAST:
                break
        if shown < 100:
            say("", 100 - shown)

    def _visit(self, probe: Probe[Key]) -> None:
        samples = self.samples[probe.key]
        if probe.warm:
            probe.before()
            probe.work()
        spent = 0.0
        while spent == 0.0 or (probe.warm and spent < VISIT_MS):
            probe.before()
            samples.append(self.clock.time_ms(probe.work))
            spent += samples[-1]

    def _is_known(self, key: Key, effort: Effort) -> bool:
        """Whether a point's notch is narrow enough: median ± 1.57 interquartile ranges / sqrt(n)
        (McGill, Tukey and Larsen, "Variations of Box Plots", The American Statistician 32(1),
        1978)."""
        found = summarize(self.samples[key])
        return 1.57 * found.spread <= effort.precision * math.sqrt(found.passes)


def measured(samples: Samples[Key]) -> dict[Key, Summary]:
    """Summaries of all points that were timed often enough."""
    return {key: summarize(taken) for key, taken in samples.items() if len(taken) >= LEAST}
