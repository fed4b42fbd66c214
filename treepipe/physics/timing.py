"""Service times against tokens and context, link times against bytes: pure functions of sizes.

Both worlds read these: the simulator waits for them, the executor's emulation pads to them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, log1p, pi, sqrt
from typing import Literal, TypeAlias

import numpy as np

JitterKind: TypeAlias = Literal["half_normal", "exponential", "lognormal", "uniform"]


class TimeTable:
    """Milliseconds against tokens: piecewise linear between the given points.

    Below the first point the first time holds (a pass has a fixed cost), beyond the last one
    the last slope goes on if it rises, else the last time holds (more tokens do not take less
    time: a fall is noise, and would end below 0); ``extrapolates`` says where that is so, for a
    warning. Times of up to 1,024 tokens are computed once.

    >>> table = TimeTable({1: 20.0, 64: 20.0, 128: 40.0})
    >>> table(0), table(1), table(96), table(192)
    (0.0, 20.0, 30.0, 60.0)
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        """Args: ``points``: at least one, tokens >= 1 to milliseconds >= 0."""
        self.points = dict(sorted(points.items()))
        self._tokens = list(self.points)
        self._times = list(self.points.values())
        self._cached = self._first_times(1025)

    def __call__(self, tokens: int, context: int = 0) -> float:
        """Milliseconds for a pass over ``tokens``; no tokens cost nothing.

        Args:
            context: tokens already in the caches; a table of one context takes it for any.
        """
        return self._cached[tokens] if tokens <= 1024 else self._time(tokens)

    @property
    def last_context(self) -> int | None:
        """Longest context that was measured; None if the context does not matter."""
        return None

    def over(self, parts: Sequence[tuple[int, int]]) -> float:
        """Milliseconds for one pass over (tokens, context) of several requests."""
        return self(sum([tokens for tokens, _ in parts]))

    def extrapolates(self, tokens: int) -> bool:
        """True if no two points enclose ``tokens``."""
        return tokens > self._tokens[-1] and len(self._tokens) > 1

    @property
    def falls(self) -> bool:
        """Whether the last time is less than the one before it, so that it holds beyond the end."""
        return len(self._times) > 1 and self._times[-1] < self._times[-2]

    def scaled(self, factor: float) -> TimeTable:
        """The same with all times multiplied by ``factor``."""
        return self.times(lambda _: factor, ())

    def times(self, factor: Callable[[int], float], knots: Collection[int]) -> TimeTable:
        """The same with each time multiplied by the factor of its tokens, known at ``knots``, too,
        up to the table's end (beyond it the slope goes on)."""
        between = {each for each in knots if min(self.points) < each < max(self.points)}
        return TimeTable({n: self(n) * factor(n) for n in {*self.points, *between}})

    def _first_times(self, count: int) -> list[float]:
        """The times of 0, 1, ... tokens: the operations of ``_time``, on all of them at once."""
        known, values, at = np.array(self._tokens), np.array(self._times), np.arange(count)
        if len(known) == 1:
            return [0.0, *[self._times[0]] * (count - 1)]
        high = np.clip(np.searchsorted(known, at), 1, len(known) - 1)
        slopes = np.diff(values) / np.diff(known)
        times = values[high - 1] + slopes[high - 1] * (at - known[high - 1])
        times[at <= known[0]] = values[0]
        if slopes[-1] < 0:
            times[at > known[-1]] = values[-1]
        times[0] = 0.0
        found: list[float] = times.tolist()
        return found

    def _time(self, tokens: int) -> float:
        return _between(self._tokens, self._times, tokens) if tokens > 0 else 0.0


def _between(known: Sequence[float], values: Sequence[float], at: float) -> float:
    """Piecewise linear; below the first point its value, beyond the last one the last slope, or
    the last value if that falls."""
    if at <= known[0] or len(known) == 1:
        return values[0]
    high = min(bisect_left(known, at), len(known) - 1)
    low = high - 1
    slope = (values[high] - values[low]) / (known[high] - known[low])
    if slope < 0 and at > known[-1]:
        return values[-1]
    return values[low] + slope * (at - known[low])


class IdleFactor:
    """How much longer work takes that begins after an idle gap: a factor against the gap.

    Piecewise linear between the given points; a longer gap than the last one counts as the last.

    >>> factor = IdleFactor(((0.0, 1.0), (10.0, 1.0), (30.0, 1.6)))
    >>> factor(5.0), factor(20.0), factor(1000.0)
    (1.0, 1.3, 1.6)
    >>> IdleFactor(())(20.0)
    1.0
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        """Args: ``points``: (gap in ms, factor), ascending; none: idling has no effect."""
        self._gaps = [gap for gap, _ in points] or [0.0]
        self._factors = [factor for _, factor in points] or [1.0]

    def __call__(self, gap_ms: float) -> float:
        return _between(self._gaps, self._factors, min(gap_ms, self._gaps[-1]))


class ServiceTable(TimeTable):
    """Milliseconds against tokens and context length: one table per context, linear between.

    Below the first context its table holds, beyond the last one the last slope goes on, or the last
    table holds where that falls. ``points`` are those of the first context.

    >>> table = ServiceTable({0: {1: 20.0, 64: 20.0}, 1000: {1: 30.0, 64: 50.0}})
    >>> table(1), table(1, 500), table(64, 2000)
    (20.0, 25.0, 80.0)
    """

    def __init__(self, tables: Mapping[int, Mapping[int, float]]) -> None:
        """Args: ``tables``: at least one; context >= 0 to points as a ``TimeTable`` takes them."""
        self.contexts = sorted(tables)
        super().__init__(tables[self.contexts[0]])
        self._tables = [TimeTable(tables[context]) for context in self.contexts]

    def __call__(self, tokens: int, context: int = 0) -> float:
        """Milliseconds for a pass over ``tokens`` behind ``context`` cached ones."""
        known = self.contexts
        if context <= known[0] or len(known) == 1:
            return super().__call__(tokens)
        high = min(bisect_left(known, context), len(known) - 1)
        low = high - 1
        before, after = self._tables[low](tokens), self._tables[high](tokens)
        if after < before and context > known[high]:
            return after
        return before + (after - before) * (context - known[low]) / (known[high] - known[low])

    @property
    def last_context(self) -> int | None:
        return self.contexts[-1] if len(self.contexts) > 1 else None

    @property
    def by_context(self) -> dict[int, TimeTable]:
        """The table of each context; what another one is made of."""
        return dict(zip(self.contexts, self._tables, strict=True))

    def over(self, parts: Sequence[tuple[int, int]]) -> float:
        """Milliseconds for one pass over (tokens, context) of several requests.

        All rows share a pass without context; each request's context adds to it what it adds to a
        pass of its own, since no row attends to another request's tokens. Where context takes time
        off, the pass still takes as long as any of them alone.
        """
        if len(parts) == 1:
            return self(*parts[0])
        together = self(sum([tokens for tokens, _ in parts]))
        own = [self(*part) for part in parts]
        added = sum([ms - self(tokens) for ms, (tokens, _) in zip(own, parts, strict=True)])
        return together + added if added >= 0 else max(together + added, *own)

    def times(self, factor: Callable[[int], float], knots: Collection[int]) -> ServiceTable:
        """The same with the factor on the table of each context."""
        return ServiceTable(
            {
                context: table.times(factor, knots).points
                for context, table in self.by_context.items()
            }
        )

    def extrapolates(self, tokens: int) -> bool:
        """True if no two points enclose ``tokens``, at any context."""
        return any(table.extrapolates(tokens) for table in self._tables)

    @property
    def falls(self) -> bool:
        """Whether any of the tables does."""
        return any(table.falls for table in self._tables)


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """What one device needs for each kind of work, in milliseconds.

    Attributes:
        stage: a pass through its layers of the target.
        draft: one pass of the draft that reads the distribution of every row.
        evaluate: output projection and argmax of returned rows.
        decide: the schedule's own work per returned segment (walk, prune, merge), of which a batch
            holds one per request.
        prune: compacting caches for one word.
        project: the output projection's part of ``draft``; None where nothing tells it.
    """

    stage: TimeTable
    draft: TimeTable
    evaluate: TimeTable
    decide: float
    prune: float
    project: TimeTable | None = None

    def spared(self, rows: int, asked: int) -> float:
        """What a draft pass takes less that reads the distribution of ``asked`` rows alone; it
        never takes less than a pass of no other rows."""
        if self.project is None or asked == rows:
            return 0.0
        projected = self.project(rows) - self.project(asked)
        return max(0.0, min(projected, self.draft(rows) - self.draft(asked)))

    def read(self, rows: int) -> float:
        """A draft's pass over committed tokens, which reads the distribution of the last."""
        return self.draft(rows) - self.spared(rows, 1)

    def scaled(self, factor: float) -> DeviceTimes:
        """The same with all times multiplied by ``factor``."""
        if factor == 1:
            return self
        return DeviceTimes(
            self.stage.scaled(factor),
            self.draft.scaled(factor),
            self.evaluate.scaled(factor),
            self.decide * factor,
            self.prune * factor,
            self.project and self.project.scaled(factor),
        )


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """One direction of a link.

    Attributes:
        latency_ms: propagation, independent of size.
        bandwidth_mbit_s: None if size does not matter.
        jitter_ms: scale of what is drawn and added to the latency.
        message_ms: keeps the sender busy once per message, whatever its size.
        transfer_ms: against bytes, instead of a bandwidth.
        jitter, jitter_cv: its distribution; standard deviation over mean of a lognormal one.
        loss: probability that a message is lost; it is sent again after ``retransmit_ms``.
        half_duplex: one direction at a time.
        medium: name of what carries one message at a time, for all links that name it.
    """

    latency_ms: float
    bandwidth_mbit_s: float | None = None
    jitter_ms: float = 0.0
    message_ms: float = 0.0
    transfer_ms: TimeTable | None = None
    jitter: JitterKind = "half_normal"
    jitter_cv: float = 1.0
    loss: float = 0.0
    retransmit_ms: float = 0.0
    half_duplex: bool = False
    medium: str | None = None

    def draw_jitter_ms(self, rng: np.random.Generator) -> float:
        """One addition to the latency, >= 0."""
        scale = self.jitter_ms
        if self.jitter == "half_normal":
            return abs(rng.normal(0.0, scale))
        if self.jitter == "exponential":
            return rng.exponential(scale)
        if self.jitter == "uniform":
            return rng.uniform(0.0, 2 * scale)
        variance = log1p(self.jitter_cv**2)
        return rng.lognormal(log(scale) - variance / 2, sqrt(variance))

    @property
    def by_size(self) -> bool:
        """Whether a longer message takes longer."""
        return self.bandwidth_mbit_s is not None or self.transfer_ms is not None

    def occupied_ms(self, size_bytes: int) -> float:
        """How long a message of ``size_bytes`` keeps the sender's side busy."""
        if self.transfer_ms is not None:
            return self.message_ms + self.transfer_ms(size_bytes)
        if self.bandwidth_mbit_s is None:
            return self.message_ms
        return self.message_ms + size_bytes * 8 / (self.bandwidth_mbit_s * 1e3)

    def scaled(self, delay: float, rate: float) -> LinkTimes:
        """Args: ``delay``: factor on what a message takes whatever its size; ``rate``: on the bytes
        that are carried in a given time."""
        if delay == rate == 1:
            return self
        return replace(
            self,
            latency_ms=self.latency_ms * delay,
            jitter_ms=self.jitter_ms * delay,
            message_ms=self.message_ms * delay,
            bandwidth_mbit_s=self.bandwidth_mbit_s and self.bandwidth_mbit_s * rate,
            transfer_ms=self.transfer_ms and self.transfer_ms.scaled(1 / rate),
        )

    @property
    def mean_delay_ms(self) -> float:
        """The time from leaving the sender to delivery: latency, and the means of jitter and of
        what losses add."""
        jitter = self.jitter_ms * (sqrt(2 / pi) if self.jitter == "half_normal" else 1.0)
        return self.latency_ms + jitter + self.retransmit_ms * self.loss / (1 - self.loss)

    def mean_ms(self, size_bytes: int) -> float:
        """Mean time of a message on a link that is free; what is lost occupies it once more."""
        return self.mean_delay_ms + self.occupied_ms(size_bytes) / (1 - self.loss)
