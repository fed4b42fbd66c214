"""Service times by tokens and context, link times by bytes: pure functions of sizes; and what a
host adds to them where it is not emulated.

The simulator waits for these times; the executor's emulation pads to them.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, log1p, pi, sqrt
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

JitterKind: TypeAlias = Literal["half_normal", "exponential", "lognormal", "uniform"]

REMEMBERED = 1024
"""Most tokens of a pass whose time a table computes once."""
FAR = 64
"""Factor on a table's ends up to which it is asked outside them, and between two neighbouring rows
up to which what lies between them is known, unless the time hardly rises (``HARDLY``)."""
HARDLY = 2.0
Unknown: TypeAlias = tuple[tuple[float, float], ...]
"""Open intervals of rows of which nobody measured or gave a time, ascending and apart."""


def later(one: Any, other: Any) -> Any:
    """Return the later of two times; of times in lanes (``sim/lanes.py``), in each lane.

    >>> later(1.0, 2.0)
    2.0
    """
    if isinstance(one, float) and isinstance(other, float):
        return one if one > other else other
    if hasattr(one, "later"):
        return one.later(other)
    return other.later(one) if hasattr(other, "later") else max(one, other)


class TimeTable:
    """Milliseconds by tokens: piecewise linear between the given points.

    Below the first point the first time holds (a pass has a fixed cost); beyond the last one the
    last slope goes on if it rises, else the last time holds (a fall is noise). ``unknown`` are the
    rows whose times are such guesses, or of which the table's maker says so.

    >>> table = TimeTable({1: 20.0, 64: 20.0, 128: 40.0})
    >>> table(0), table(1), table(96), table(192)
    (0.0, 20.0, 30.0, 60.0)
    """

    request_ms = 0.0

    def __init__(
        self,
        points: Mapping[int, float],
        unknown: Unknown | None = None,
        doubt: float | None = None,
    ) -> None:
        """Make a table from at least one point: tokens >= 1 to milliseconds >= 0.

        ``unknown``: rows whose times are guesses; None: all but the points and what lies between
        near ones. Where no work takes time, no row's time is a guess. ``doubt``: the relative
        uncertainty of these guesses; None: that of rows of which nothing is known.
        """
        self.points = dict(sorted(points.items()))
        self.doubt = doubt
        self.unknown = _unmeasured(points) if unknown is None else unknown
        self._tokens = list(self.points)
        self._times = list(self.points.values())
        self._found = dict[int, float]()

    def __call__(self, tokens: int, context: int = 0) -> float:
        """Return the time of a pass over ``tokens`` behind ``context`` cached ones (0: 0 ms)."""
        known = self._found.get(tokens)
        if known is None:
            known = self._time(tokens)
            if tokens <= REMEMBERED:
                self._found[tokens] = known
        return known

    @property
    def last_context(self) -> int | None:
        """Longest measured context; None if the context does not matter."""
        return None

    @property
    def by_parts(self) -> bool:
        """Whether more than the number of rows matters: whose they are, or their contexts."""
        return False

    def over(self, parts: Sequence[tuple[int, int]]) -> float:
        """Return the milliseconds of one pass over (tokens, context) of several requests."""
        return self(sum([tokens for tokens, _ in parts]))

    def extrapolates(self, tokens: int) -> bool:
        """Whether ``tokens`` lies outside the given points."""
        return tokens > self._tokens[-1] and len(self._tokens) > 1

    @property
    def falls(self) -> bool:
        """Whether the last time is less than the one before it, so that it holds beyond the end."""
        return len(self._times) > 1 and self._times[-1] < self._times[-2]

    @property
    def first(self) -> int:
        """The fewest rows that the table knows."""
        low, high = self.unknown[0] if self.unknown else (1, 1)
        return 1 if low else int(high)

    def guessed(self, least: int, most: int) -> list[tuple[int, int]]:
        """Return the intervals of ``unknown`` rows from ``least`` to ``most``, ends included."""
        found = [(max(least, low + 1), min(most, high - 1)) for low, high in self.unknown]
        return [(int(low), int(high)) for low, high in found if low <= high]

    def grown(self, factor: float) -> TimeTable:
        """Multiply the times of ``unknown`` rows above a known one by ``factor``, and divide those
        below the first known one.

        More rows never take less time than fewer known ones, and never more than as many passes
        over those.

        >>> TimeTable({1: 20.0}).grown(2.5).points
        {1: 20.0, 2: 40.0, 3: 50.0, 4: 50.0, 8: 50.0}
        >>> TimeTable({16: 40.0, 32: 50.0}).grown(4.0)(4)
        10.0
        """
        if factor == 1 or not self.unknown:
            return self
        rows = self._knots(factor)
        points = {n: self._grown(n, factor) for n in sorted(rows)}
        return TimeTable(points, self.unknown, self.doubt)

    def _knots(self, factor: float) -> set[int]:
        found, passes = {*self.points}, range(1, ceil(factor) + 1)
        for low, high in self.unknown:
            if low:
                inside = {n for k in passes for n in (int(k * low), int(k * low) + 1)}
                ends = int(low).bit_length(), 0 if high == inf else int(high).bit_length()
                inside |= {2 * max(*inside, *self.points)} if high == inf else set()
                inside |= {2**power for power in range(*ends)}
            else:
                inside = {ceil((high - 1) / k) for k in passes} | {1}
            found |= {n for n in inside if low <= n <= high}
        return found

    def _grown(self, rows: int, factor: float) -> float:
        for low, high in self.unknown:
            if low < rows < high and low:
                most = max(self(rows), ceil(rows / low) * self(int(low)))
                if high < inf:
                    most = min(most, max(self(int(high)), self(int(low))))
                return max(self(int(low)), min(factor * self(rows), most))
            if low < rows < high:
                first = self(int(high))
                return min(first, max(first / factor, first / ceil(high / rows)))
        return self(rows)

    def scaled(self, factor: float) -> TimeTable:
        return self.times(lambda _: factor, ())

    def times(self, factor: Callable[[int], float], knots: Collection[int]) -> TimeTable:
        """Multiply each time by the factor of its tokens. The factor's ``knots`` up to the table's
        end are added to the table, whose last slope goes on beyond it."""
        between = {each for each in knots if min(self.points) < each < max(self.points)}
        points = {n: self(n) * factor(n) for n in {*self.points, *between}}
        return TimeTable(points, self.unknown, self.doubt)

    def plus(self, added: Callable[[int], float]) -> TimeTable:
        """Add to the time of each number of rows, beyond a table of one point, too."""
        return TimeTable(_plus(self, added), self.unknown, self.doubt)

    def _time(self, tokens: int) -> float:
        return max(0.0, _between(self._tokens, self._times, tokens)) if tokens > 0 else 0.0


def _plus(table: TimeTable, added: Callable[[int], float]) -> dict[int, float]:
    knots = {*table.points} | ({REMEMBERED} if len(table.points) == 1 else set())
    return {n: table(n) + added(n) for n in knots}


def _unmeasured(points: Mapping[int, float]) -> Unknown:
    """Return the rows below, above and far between the points; none if all times are 0."""
    if not any(points.values()):
        return ()
    rows = sorted(points)
    gaps = [
        (low, high)
        for low, high in itertools.pairwise(rows)
        if high > FAR * low and points[high] > HARDLY * points[low]
    ]
    below = [(0, rows[0])] if rows[0] > 1 else []
    return (*below, *gaps, (rows[-1], inf))


def united(unknown: Iterable[Unknown]) -> Unknown:
    """Return the rows that any of several tables does not know.

    >>> united([((1, inf),), ((0, 4), (64, inf))])
    ((0, inf),)
    """
    found: list[tuple[float, float]] = []
    for low, high in sorted(itertools.chain.from_iterable(unknown)):
        if found and low < found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return tuple(found)


def _between(known: Sequence[float], values: Sequence[float], at: float) -> float:
    """Interpolate linearly; below the first point return its value, beyond the last one continue
    the last slope, or hold the last value if that slope falls."""
    if at <= known[0] or len(known) == 1:
        return values[0]
    high = min(bisect_left(known, at), len(known) - 1)
    low = high - 1
    slope = (values[high] - values[low]) / (known[high] - known[low])
    if slope < 0 and at > known[-1]:
        return values[-1]
    return values[low] + slope * (at - known[low])


class IdleFactor:
    """Slow-down of work that begins after an idle gap: a factor by the length of the gap.

    Piecewise linear between the given points; a longer gap than the last one counts as the last.

    >>> factor = IdleFactor(((0.0, 1.0), (10.0, 1.0), (30.0, 1.6)))
    >>> factor(5.0), factor(20.0), factor(1000.0)
    (1.0, 1.3, 1.6)
    >>> IdleFactor(())(20.0)
    1.0
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        """Make the factor from ascending points (gap in ms, factor); empty: idling has no cost."""
        self._gaps = [gap for gap, _ in points] or [0.0]
        self._factors = [factor for _, factor in points] or [1.0]

    def __call__(self, gap_ms: float) -> float:
        return _between(self._gaps, self._factors, min(gap_ms, self._gaps[-1]))


class ServiceTable(TimeTable):
    """Milliseconds by tokens and context length: one table per context, linear between.

    Below the first context its table holds, beyond the last one the last slope goes on, or the last
    table holds where that falls. ``points`` are those of the first context; ``request_ms`` is the
    time that each request beyond the first adds to a pass that computes rows of several.

    >>> table = ServiceTable({0: {1: 20.0, 64: 20.0}, 1000: {1: 30.0, 64: 50.0}})
    >>> table(1), table(1, 500), table(64, 2000)
    (20.0, 25.0, 80.0)
    """

    def __init__(
        self,
        tables: Mapping[int, Mapping[int, float]],
        request_ms: float = 0.0,
        unknown: Unknown | None = None,
        doubt: float | None = None,
    ) -> None:
        """Make a table from at least one context >= 0, each with the points of a ``TimeTable``;
        ``unknown`` is that of all, by default of the first."""
        self.contexts, self.request_ms = sorted(tables), request_ms
        super().__init__(tables[self.contexts[0]], unknown, doubt)
        self._tables = [TimeTable(tables[context]) for context in self.contexts]

    def __call__(self, tokens: int, context: int = 0) -> float:
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
    def by_parts(self) -> bool:
        return len(self.contexts) > 1 or self.request_ms > 0

    @property
    def by_context(self) -> dict[int, TimeTable]:
        return dict(zip(self.contexts, self._tables, strict=True))

    def over(self, parts: Sequence[tuple[int, int]]) -> float:
        """Return the milliseconds of one pass over (tokens, context) of several requests.

        All rows share a pass without context; each request's context adds to it what it adds to a
        pass of its own, since no row attends to another request's tokens. Where context takes time
        off, the pass still takes as long as any of them alone. Each further request adds its own
        time, too.
        """
        if len(parts) == 1:
            return self(*parts[0])
        requests = sum([tokens > 0 for tokens, _ in parts])
        together = self(sum([tokens for tokens, _ in parts]))
        together += self.request_ms * max(0, requests - 1)
        own = [self(*part) for part in parts]
        added = sum([ms - self(tokens) for ms, (tokens, _) in zip(own, parts, strict=True)])
        return together + added if added >= 0 else max(together + added, *own)

    def times(self, factor: Callable[[int], float], knots: Collection[int]) -> ServiceTable:
        tables = {
            context: table.times(factor, knots).points for context, table in self.by_context.items()
        }
        return ServiceTable(tables, self.request_ms * factor(1), self.unknown, self.doubt)

    def grown(self, factor: float) -> TimeTable:
        if factor == 1 or not self.unknown:
            return self
        known = [TimeTable(table.points, self.unknown) for table in self._tables]
        tables = [table.grown(factor).points for table in known]
        pairs = dict(zip(self.contexts, tables, strict=True))
        return ServiceTable(pairs, self.request_ms, self.unknown, self.doubt)

    def plus(self, added: Callable[[int], float]) -> ServiceTable:
        tables = {context: _plus(table, added) for context, table in self.by_context.items()}
        return ServiceTable(tables, self.request_ms, self.unknown, self.doubt)

    def extrapolates(self, tokens: int) -> bool:
        return any(table.extrapolates(tokens) for table in self._tables)

    @property
    def falls(self) -> bool:
        return any(table.falls for table in self._tables)


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """The times that one device needs for each kind of work, in milliseconds.

    Attributes:
        stage: a pass through its layers of the target.
        draft: one pass of the draft that reads the distribution of every row.
        evaluate: output projection and argmax of returned rows.
        judge: choosing the target's token at one row by a rule that samples, beside ``evaluate``.
        draw: drawing the candidates of one row of a draft pass, by their number, beside ``draft``;
            None: they are not drawn.
        decide: the schedule's own work per returned segment (walk, prune, merge), of which a batch
            holds one per request.
        prune: compacting caches for one word.
        project: the output projection's part of ``draft``; None: unknown.
    """

    stage: TimeTable
    draft: TimeTable
    evaluate: TimeTable
    decide: float
    prune: float
    project: TimeTable | None = None
    judge: float = 0.0
    draw: TimeTable | None = None

    def verify(self, rows: int, judged: int) -> float:
        """Time of returned rows, at ``judged`` of which a token is chosen."""
        return self.evaluate(rows) + self.judge * judged

    def spared(self, rows: int, asked: int) -> float:
        """Time that a draft pass saves by reading the distribution of only ``asked`` rows, which
        never takes less than a pass of those rows alone."""
        if self.project is None or asked == rows:
            return 0.0
        projected = self.project(rows) - self.project(asked)
        return max(0.0, min(projected, self.draft(rows) - self.draft(asked)))

    def read(self, rows: int) -> float:
        """Time of a draft's pass over committed tokens that reads the last one's distribution."""
        return self.draft(rows) - self.spared(rows, 1)

    def grown(self, factor: float) -> DeviceTimes:
        """Change what passes over rows take that nobody measured (``TimeTable.grown``)."""
        if factor == 1:
            return self
        stage, draft = self.stage.grown(factor), self.draft.grown(factor)
        return replace(self, stage=stage, draft=draft, evaluate=self.evaluate.grown(factor))

    def scaled(self, factor: float) -> DeviceTimes:
        if factor == 1:
            return self
        return DeviceTimes(
            self.stage.scaled(factor),
            self.draft.scaled(factor),
            self.evaluate.scaled(factor),
            self.decide * factor,
            self.prune * factor,
            self.project and self.project.scaled(factor),
            self.judge * factor,
            self.draw and self.draw.scaled(factor),
        )


class PortLoad(NamedTuple):
    """What a message takes of a port.

    Attributes:
        lasts_ms: the time on a free port with a full bucket.
        drawn_ms: the tokens that it draws from the port's bucket, as a time at the bucket's rate; 0
            without a bucket.
        burst_ms: the bucket's depth, likewise.
    """

    lasts_ms: float
    drawn_ms: float = 0.0
    burst_ms: float = 0.0

    @property
    def sustained_ms(self) -> float:
        """The time that each of many such messages in a row takes."""
        return max(self.lasts_ms, self.drawn_ms)


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """One direction of a link.

    Attributes:
        latency_ms: propagation, independent of size.
        bandwidth_mbit_s: bandwidth; None if size does not matter.
        jitter_ms: scale of a random addition to the latency.
        message_ms: time that a message of any size keeps the sender busy.
        transfer_ms: time by bytes, instead of a bandwidth.
        jitter, jitter_cv: distribution of the jitter; coefficient of variation of a lognormal one.
        loss: probability that a message is lost; it is sent again after ``retransmit_ms``.
        half_duplex: one direction at a time.
        medium: name of a shared medium, which carries one message at a time of all its links.
        burst_bytes: depth of the token bucket that fills at the bandwidth; 0: no bucket.
        peak_mbit_s: rate of what finds tokens; None: it takes no time.
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
    burst_bytes: float = 0.0
    peak_mbit_s: float | None = None

    def draw_jitter_ms(self, rng: np.random.Generator) -> float:
        """Draw one addition to the latency, >= 0."""
        scale = self.jitter_ms
        if self.jitter == "half_normal":
            return scale * abs(rng.standard_normal())
        if self.jitter == "exponential":
            return scale * rng.standard_exponential()
        if self.jitter == "uniform":
            return 2 * scale * rng.random()
        variance = log1p(self.jitter_cv**2)
        return scale * rng.lognormal(-variance / 2, sqrt(variance))

    @property
    def by_size(self) -> bool:
        return self.bandwidth_mbit_s is not None or self.transfer_ms is not None

    def occupied_ms(self, size_bytes: int) -> float:
        """Return how long a message of ``size_bytes`` keeps a port busy that is free and has a full
        bucket."""
        return self.load(size_bytes).lasts_ms

    def load(self, size_bytes: int, tries: int = 1) -> PortLoad:
        """Return what a message takes of a port if it is sent ``tries`` times."""
        if self.transfer_ms is not None:
            return PortLoad((self.message_ms + self.transfer_ms(size_bytes)) * tries)
        if self.bandwidth_mbit_s is None:
            return PortLoad(self.message_ms * tries)
        sent_ms = _sent_ms(size_bytes, self.bandwidth_mbit_s)
        if not self.burst_bytes:
            return PortLoad((self.message_ms + sent_ms) * tries)
        burst_ms = _sent_ms(self.burst_bytes, self.bandwidth_mbit_s)
        peak_ms = _sent_ms(size_bytes, self.peak_mbit_s) if self.peak_mbit_s else 0.0
        lasts_ms = later((self.message_ms + peak_ms) * tries, sent_ms * tries - burst_ms)
        return PortLoad(lasts_ms, sent_ms * tries, burst_ms)

    def scaled(self, delay: float, rate: float) -> LinkTimes:
        """Scale a message's time of any size by ``delay``, and its bytes per time by ``rate``."""
        if delay == rate == 1:
            return self
        return replace(
            self,
            latency_ms=self.latency_ms * delay,
            jitter_ms=self.jitter_ms * delay,
            message_ms=self.message_ms * delay,
            bandwidth_mbit_s=self.bandwidth_mbit_s and self.bandwidth_mbit_s * rate,
            peak_mbit_s=self.peak_mbit_s and self.peak_mbit_s * rate,
            transfer_ms=self.transfer_ms and self.transfer_ms.scaled(1 / rate),
        )

    @property
    def mean_delay_ms(self) -> float:
        """Mean time from leaving the sender to delivery, with means of jitter and losses."""
        jitter = self.jitter_ms * (sqrt(2 / pi) if self.jitter == "half_normal" else 1.0)
        return self.latency_ms + jitter + self.retransmit_ms * self.loss / (1 - self.loss)

    def mean_ms(self, size_bytes: int) -> float:
        """Return the mean time of a message on a free link; a lost one occupies it once more."""
        return self.mean_delay_ms + self.occupied_ms(size_bytes) / (1 - self.loss)

    def all_reduce_ms(self, devices: int, size_bytes: int) -> float:
        """Return the mean time in which so many devices add up ``size_bytes`` that each of them
        has: the sooner of two ways, as libraries choose by size.

        Each sends all to all others (one latency), or Nths go twice around a ring (Patarasuk and
        Yuan, *Journal of Parallel and Distributed Computing* 2009); of two devices an exchange.

        >>> link = LinkTimes(0.1, 8.0)
        >>> [round(link.all_reduce_ms(*each), 3) for each in ((1, 500), (2, 500), (4, 4000))]
        [0.0, 0.6, 6.6]
        """
        if devices == 1:
            return 0.0
        around = 2 * (devices - 1) * self.mean_ms(-(-size_bytes // devices))
        return min(self.mean_ms((devices - 1) * size_bytes), around)


def _sent_ms(size_bytes: float, mbit_s: float) -> float:
    return size_bytes * 8 / (mbit_s * 1e3)


# --- a real host, beside its devices' own times ---------------------------------------------------


class Factor:
    """A factor as a function of a count (rows, working roles): piecewise linear, constant outside.

    >>> factor = Factor({1: 1.0, 3: 2.0})
    >>> factor(1), factor(2), factor(9)
    (1.0, 1.5, 2.0)
    >>> Factor({})(7)
    1.0
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        self.points = dict(sorted(points.items())) or {1: 1.0}

    def __call__(self, count: int) -> float:
        return float(np.interp(count, list(self.points), list(self.points.values())))

    def over(self, table: TimeTable) -> TimeTable:
        """Multiply a device's table by the factor, at the knots of both."""
        return table.times(self, self.points) if self.points != {1: 1.0} else table


@dataclass(frozen=True, slots=True)
class HostTimes:
    """The costs of a role's process on its host, in milliseconds (``treepipe calibrate run``
    measures them), beside a device's times, which are measured with one process alone.

    Attributes:
        send, receive: time to pack or unpack a message by its bytes as links count them; keeps the
            role busy.
        wake: time from a message's arrival until a sleeping role goes on.
        desk: time of the draft server's decisions by returned or drafted rows.
        together: factor on all work by the number of the host's processors at work.
        variation: coefficient of variation of a piece of work's time.
        cold: further factor on a draft server's 1st, 2nd, ... pass behind a wait.
        look: further time of the first of all messages that a role unpacks one after another.
        gauge: time of the workers' fixed piece of work when these costs were measured.
        processors: number of roles that can work at once; others wait for their turn.
        turn: longest time for which a role has a processor while another one is ready.
        company: number of other processes that always want a processor.
        heard: processors' worth of other processes' work when these costs were measured.
    """

    send: TimeTable
    receive: TimeTable
    wake: float
    desk: TimeTable
    together: Factor
    variation: float
    cold: Factor
    look: float = 0.0
    gauge: float | None = None
    processors: float = inf
    turn: float = inf
    company: int = 0
    heard: float = 0.0

    @property
    def known_company(self) -> float:
        """Processors' worth of other processes' work that these costs consider."""
        return self.company + self.heard

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a factor of mean 1 on a piece of work's time (lognormal)."""
        if not self.variation:
            return 1.0
        variance = log1p(self.variation**2)
        return rng.lognormal(-variance / 2, sqrt(variance))
