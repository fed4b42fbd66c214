"""How many requests per second a plan serves within the limits.

Law of this file: a plan is simulated at other arrival rates on the ranking's runs; the same seeds
draw the same requests in the same order, only closer together (common random numbers). Parameters
are not searched anew. All plans are searched at once, and where more could be at work, so are rates
that may be asked for next; only rates that are asked for count, so the answer is the same however
many are at work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, zip_longest
from typing import Any, ClassVar, TypeAlias

from treepipe.core.errors import UserError
from treepipe.planner.analysis import Analysis
from treepipe.planner.break_even import zero_between
from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import Found, Ranked
from treepipe.results.load import OVERLOADED
from treepipe.results.metrics import in_words, metric
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.show import number
from treepipe.scenario.distributions import ArrivalTrace
from treepipe.scenario.schema import ScheduleName
from treepipe.sim.engine import at_once
from treepipe.sim.points import Outcome, Point, simulate_points

Say: TypeAlias = Callable[[str, int], None]
RATE = "workload.arrivals.rate_per_s"
DOUBLINGS = 8
"""The stated rate is doubled or halved at most so often."""
FARTHER = 4
"""So many more rates, each half or twice as large, are tried for an end of the interval."""
HALVINGS = 5
"""Of the interval in which the limits begin to be broken (in logarithms)."""
Asked: TypeAlias = Sequence[float]
"""The rate that a search asks for, and those that it may ask for next."""
Slack: TypeAlias = tuple[float, float, float]
"""How far the limits are kept (logarithm of the factor): low end, mean and high end."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest arrival rate that keeps the limits, of one schedule's best plan.

    Attributes:
        rate_per_s: at which the mean of the first limit to be broken reaches it; None where no rate
            tried keeps the limits.
        low: up to here all limits are kept beyond doubt (95 %, of each limit for itself); None
            where no rate tried is.
        high: above it a limit is broken beyond doubt; None where no rate tried is.
        limit: the one that is broken first.
        overloaded: at the rate requests arrive faster than they are served, so that longer runs
            would keep less.
    """

    schedule: ScheduleName
    rate_per_s: float | None
    low: float | None
    high: float | None
    limit: str
    overloaded: bool = False


@dataclass(frozen=True, slots=True)
class CapacityAnalysis(Analysis):
    """``--capacity``: the best plan of each schedule, the largest rate first."""

    rates: Sequence[Capacity] = ()
    heading: ClassVar[str] = "Load"

    @classmethod
    def run(cls, found: Found, say: Say) -> CapacityAnalysis:
        return cls(capacities(found, say))

    def as_dict(self) -> dict[str, Any]:
        return {"capacity": [asdict(each) for each in self.rates]}

    def tables(self, found: Found) -> list[Sheet]:
        """The arrival rate that each schedule's best plan serves."""
        if not self.rates:
            return []
        title = "capacity: the largest arrival rate that keeps the limits (requests/s)"
        columns = [*words("plan of"), *figures("requests/s", "95 % interval")]
        sheet = Sheet("", title, [*columns, *words("broken first", "")])
        for each in self.rates:
            value = "none" if each.rate_per_s is None else number(each.rate_per_s)
            ends = ["?" if end is None else number(end) for end in (each.low, each.high)]
            interval = " … ".join(ends) if each.rate_per_s is not None else ""
            note = "overloaded: longer runs keep less" if each.overloaded else ""
            sheet.add(each.schedule, value, interval, in_words(each.limit), note)
        return [sheet]


def check_capacity(cluster: Cluster) -> None:
    """Raises ``UserError`` if there is no arrival rate, or no limit that load breaks."""
    arrivals = cluster.workload.arrivals
    if arrivals is None or isinstance(arrivals, ArrivalTrace):
        raise UserError(f"{cluster.path}: --capacity needs {RATE}, where its search begins")
    bounds = cluster.search.limits.of_metrics
    helped = [name for name in bounds if not _suffers(name)]
    if helped:
        raise UserError(
            f"{cluster.path}: --capacity: search.limits.{helped[0]} is no limit that more load "
            f"breaks; leave it out"
        )
    if not bounds:
        raise UserError(
            f"{cluster.path}: --capacity needs a limit to keep, e.g. "
            f"search.limits.p95_time_to_first_token_ms"
        )


def capacities(found: Found, say: Say) -> list[Capacity]:
    """The capacity of the best plan of each schedule, the largest first.

    Raises:
        UserError: as ``check_capacity``.
        RunError: as ``simulate_points``.
    """
    check_capacity(found.cluster)
    searches = [_Search(name, each, found) for name, each in found.best_of_each.items()]
    while asking := [each for each in searches if each.asked]:
        points = _together([each.points() for each in asking], at_once())
        title = f"capacity: {len(points)} rates for {len(asking)} plans"
        outcomes = simulate_points(points, say, title)
        for each in asking:
            each.go_on(outcomes)
    return sorted([each.capacity for each in searches], key=lambda each: -(each.rate_per_s or 0.0))


def _together(asked: Iterable[Sequence[Point]], most: int) -> list[Point]:
    """What every search asks for now, and what may be next, up to so many in all."""
    turns = [*zip_longest(*asked)]
    in_turn = [point for turn in turns for point in turn if point is not None]
    return in_turn[: max(most, len(turns[0]))]


class _Search:
    """The search for one plan's capacity: what was tried, and how far it kept the limits.

    Attributes:
        asked: what it waits for; nothing once it is over.
        capacity: what it has found then.
    """

    capacity: Capacity

    def __init__(self, name: ScheduleName, plan: Ranked, found: Found) -> None:
        self._name, self._plan = name, plan.candidate.scenario.with_(runs=found.runs)
        self._bounds = found.cluster.search.limits.of_metrics
        self._slack = dict[float, Slack]()
        self._outcomes = dict[float, Outcome]()
        self._steps = self._searched()
        self.asked: Asked = next(self._steps)

    def points(self) -> list[Point]:
        """What it asks for, and what it may ask for next."""
        return [Point(self._label(rate), self._plan.with_(**{RATE: rate})) for rate in self.asked]

    def go_on(self, outcomes: Mapping[str, Outcome]) -> None:
        """Take the outcomes of its points, by label, as many as there are."""
        known = {rate: outcomes.get(self._label(rate)) for rate in self.asked}
        self._outcomes |= {rate: each for rate, each in known.items() if each is not None}
        try:
            self.asked = next(self._steps)
        except StopIteration as over:
            self.asked, self.capacity = (), over.value

    def _label(self, rate: float) -> str:
        return f"{self._name} {rate!r}"

    def _searched(self) -> Generator[Asked, None, Capacity]:
        ends = yield from self._bracket()
        if ends is None:
            stated = min(self._slack)
            limit = self._limit(stated)
            if self._slack[stated][1] < 0:
                return Capacity(self._name, None, None, None, limit)
            fastest = max(self._slack)
            return Capacity(self._name, fastest, fastest, None, limit, self._overloaded(fastest))
        low, high = ends
        for left in range(HALVINGS, 0, -1):
            middle, *next_ones = _middles(low, high, left)
            kept = yield from self._kept(middle, next_ones)
            low, high = (middle, high) if kept else (low, middle)
        rate = zero_between(low, high, self._slack, 1)
        limit, over = self._limit(high), self._overloaded(low)
        lowest, highest = (yield from self._low()), (yield from self._high())
        return Capacity(self._name, rate, lowest, highest, limit, over)

    def _bracket(self) -> Generator[Asked, None, tuple[float, float] | None]:
        """A rate that keeps the limits, and one of twice as much that does not; None where there
        is none near the stated one."""
        arrivals = self._plan.workload.arrivals
        assert arrivals is not None
        assert not isinstance(arrivals, ArrivalTrace)
        rate = arrivals.rate_per_s
        up = yield from self._kept(rate, (rate * 2, rate / 2))
        factor = 2.0 if up else 0.5
        for done in range(1, DOUBLINGS + 1):
            before, rate = rate, rate * factor
            farther = [rate * factor**each for each in range(1, DOUBLINGS + 1 - done)]
            if (yield from self._kept(rate, farther)) != up:
                return min(before, rate), max(before, rate)
        return None

    def _kept(self, rate: float, next_ones: Asked) -> Generator[Asked, None, bool]:
        """Whether the means keep the limits. Args: ``next_ones``: that may be asked for then."""
        if rate not in self._slack:
            while rate not in self._outcomes:
                yield [rate, *(each for each in next_ones if each not in self._outcomes)]
            outcome = self._outcomes[rate]
            each = [_slack(name, bound, outcome) for name, bound in self._bounds.items()]
            low, mean, high = (min(column) for column in zip(*each, strict=True))
            self._slack[rate] = low, mean, high
        return self._slack[rate][1] >= 0

    def _low(self) -> Generator[Asked, None, float | None]:
        """The first rate at which the slack's interval reaches 0; lower ones are tried for it."""
        for left in range(FARTHER, 0, -1):
            if self._slack[min(self._slack)][0] >= 0:
                break
            lower = [min(self._slack) / 2**each for each in range(1, left + 1)]
            yield from self._kept(lower[0], lower[1:])
        pairs = self._crossings(0)
        return zero_between(*pairs[0], self._slack, 0) if pairs else None

    def _high(self) -> Generator[Asked, None, float | None]:
        """The last rate at which it does; higher ones are tried for it."""
        for left in range(FARTHER, 0, -1):
            if self._slack[max(self._slack)][2] < 0:
                break
            higher = [max(self._slack) * 2**each for each in range(1, left + 1)]
            yield from self._kept(higher[0], higher[1:])
        pairs = self._crossings(2)
        return zero_between(*pairs[-1], self._slack, 2) if pairs else None

    def _crossings(self, which: int) -> list[tuple[float, float]]:
        """Neighbours among the rates tried between which an end of the interval passes 0."""
        return [
            (a, b)
            for a, b in pairwise(sorted(self._slack))
            if self._slack[a][which] >= 0 > self._slack[b][which]
        ]

    def _limit(self, rate: float) -> str:
        outcome = self._outcomes[rate]
        slacks = {name: _slack(name, b, outcome)[1] for name, b in self._bounds.items()}
        return min(slacks, key=lambda name: slacks[name])

    def _overloaded(self, rate: float) -> bool:
        return any(OVERLOADED in warning for warning in self._outcomes[rate].warnings)


def _middles(low: float, high: float, halvings: int) -> Iterator[float]:
    """The rates at which an interval may be halved so often, the next one first.

    >>> [round(each, 1) for each in _middles(1.0, 16.0, 2)]
    [4.0, 2.0, 8.0]
    """
    parts = [(low, high)]
    for _ in range(halvings):
        middles = [math.sqrt(a * b) for a, b in parts]
        yield from middles
        cut = zip(parts, middles, strict=True)
        parts = [part for (a, b), middle in cut for part in ((a, middle), (middle, b))]


def _slack(name: str, bound: float, outcome: Outcome) -> Slack:
    """How far a limit is kept; raises ``UserError`` where a plan has no such figure."""
    value = outcome.metrics.get(name)
    if value is None:
        raise UserError(
            f"--capacity: search.limits.{name}: there are too few requests to tell it; raise "
            f"workload.requests or runs"
        )
    sign = -1.0 if metric(name).less_is_better else 1.0
    ends = [value.mean if end is None else end for end in (value.low, value.high)]
    low, high = sorted(sign * _apart(end, bound) for end in ends)
    return low, sign * _apart(value.mean, bound), high


def _apart(value: float, bound: float) -> float:
    """The logarithm of a value over its bound; a value of 0 is e^-30 of it.

    >>> _apart(5.0, 5.0), _apart(0.0, 5.0)
    (0.0, -30.0)
    """
    return max(-30.0, math.log(value / bound)) if value > 0 else -30.0


def _suffers(metric: str) -> bool:
    """Whether more load makes a figure worse: times, and the share of promises that are kept."""
    return metric.endswith("_ms") or metric == "slo_attainment"
