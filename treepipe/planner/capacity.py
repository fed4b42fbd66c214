"""Capacity analysis: the number of requests per second that a plan serves within the limits.

A plan is simulated at other arrival rates on the ranking's runs; equal seeds draw the same requests
in the same order, only closer together (common random numbers). Parameters are not searched again.
All plans are searched side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from treepipe.core.errors import UserError
from treepipe.planner.analysis import Finding
from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import SearchResult
from treepipe.planner.sensitivity import RATE, Lead, Search, side_by_side, zero_between
from treepipe.progress import Progress
from treepipe.results.load import OVERLOADED
from treepipe.results.metrics import in_words, metric
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.units import number
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.sim.points import Outcome

DOUBLINGS = 8
"""Largest number of doublings or halvings of the stated rate."""
FARTHER = 4
"""Number of further rates, each half or twice the last, for finding an end of the interval."""
HALVINGS = 5
"""Bisections of the interval in which the limits begin to be broken (in logarithms)."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest arrival rate at which one schedule's best plan keeps the limits.

    Attributes:
        rate_per_s: rate at which the mean of the first broken limit reaches its bound; None if the
            limits are kept at no rate tried.
        low: all limits are kept with 95 % confidence (for each limit alone) up to this rate; None
            if at no rate tried.
        high: a limit is broken with 95 % confidence above this rate; None if at no rate tried.
        limit: the limit that is broken first.
        overloaded: whether requests arrive faster at this rate than they are served, so that longer
            runs would keep less.
    """

    schedule: ScheduleName
    rate_per_s: float | None
    low: float | None
    high: float | None
    limit: str
    overloaded: bool = False


@dataclass(frozen=True, slots=True)
class Capacities(Finding):
    """The capacity of each schedule's best plan, largest first."""

    rates: Sequence[Capacity] = ()

    @classmethod
    def check(cls, cluster: Cluster, given: Sequence[str]) -> None:
        """Raise ``UserError`` if there is no arrival rate, or no limit that load breaks."""
        if cluster.number_at(RATE) is None:
            raise UserError(f"{cluster.path}: --capacity needs {RATE}, where its search begins")
        bounds = cluster.search.limits.of_metrics
        for name in bounds:
            if not (name.endswith("_ms") or name == "slo_attainment"):  # load does it no harm
                raise UserError(
                    f"{cluster.path}: --capacity: search.limits.{name} is no limit that more load "
                    f"breaks; leave it out"
                )
        if not bounds:
            raise UserError(
                f"{cluster.path}: --capacity needs a limit to keep, e.g. "
                f"search.limits.p95_time_to_first_token_ms"
            )

    @classmethod
    def run(cls, result: SearchResult, say: Progress, given: Sequence[str] = ()) -> Capacities:
        return cls(capacities(result, say))

    def as_dict(self) -> dict[str, Any]:
        return {"capacity": [asdict(each) for each in self.rates]}

    def tables(self, result: SearchResult) -> list[Sheet]:
        if not self.rates:
            return []
        title = "capacity: the largest arrival rate that keeps the limits (requests/s)"
        columns = [*words("plan of"), *figures("requests/s", "95 % interval")]
        sheet = Sheet(title, [*columns, *words("broken first", "")])
        for each in self.rates:
            value = "none" if each.rate_per_s is None else number(each.rate_per_s)
            ends = ["?" if end is None else number(end) for end in (each.low, each.high)]
            interval = " … ".join(ends) if each.rate_per_s is not None else ""
            note = "overloaded: longer runs keep less" if each.overloaded else ""
            sheet.add(each.schedule, value, interval, in_words(each.limit), note)
        return [sheet]


def capacities(result: SearchResult, say: Progress) -> list[Capacity]:
    """Find the capacity of the best plan of each schedule, the largest first.

    Raises:
        UserError: see ``Capacities.check``.
        RunError: see ``simulate_points``.
    """
    Capacities.check(result.cluster, ())
    best, bounds = result.best_of_each, result.cluster.search.limits.of_metrics
    plans = {name: each.candidate.scenario.with_(runs=result.runs) for name, each in best.items()}
    searches = {name: _Search(name, plan, bounds).steps() for name, plan in plans.items()}
    found = side_by_side(searches, say, "capacity").values()
    return sorted(found, key=lambda each: -(each.rate_per_s or 0.0))


class _Search:
    """The search for one plan's capacity: the rates tried, and the margin to the limits at each."""

    def __init__(self, name: ScheduleName, plan: Scenario, bounds: Mapping[str, float]) -> None:
        self._name, self._plan, self._bounds = name, plan, bounds
        self._slack, self._outcomes = dict[float, Lead](), dict[float, Outcome]()

    def steps(self) -> Search[Capacity]:
        """Find the capacity, beginning at the stated rate."""
        ends = yield from self._bracket(self._plan.number_at(RATE) or 0.0)
        if ends is None:
            limit = self._limit(min(self._slack))
            if self._slack[min(self._slack)][1] < 0:
                return Capacity(self._name, None, None, None, limit)
            fastest = max(self._slack)
            sure = fastest if self._slack[fastest][0] >= 0 else None
            return Capacity(self._name, fastest, sure, None, limit, self._overloaded(fastest))
        low, high = ends
        for _ in range(HALVINGS):
            middle = math.sqrt(low * high)
            kept = yield from self._kept(middle)
            low, high = (middle, high) if kept else (low, middle)
        rate = zero_between(low, high, self._slack, 1)
        limit, over = self._limit(high), self._overloaded(low)
        lowest, highest = (yield from self._end(0)), (yield from self._end(2))
        return Capacity(self._name, rate, lowest, highest, limit, over)

    def _bracket(self, rate: float) -> Search[tuple[float, float] | None]:
        """Return a rate that keeps the limits and twice that rate, which does not; None if no such
        pair is near ``rate``, as the farthest rate tells first."""
        up = yield from self._kept(rate)
        farthest = rate * 2.0 ** (DOUBLINGS if up else -DOUBLINGS)
        if (yield from self._kept(farthest)) == up:
            return None
        del self._slack[farthest]  # no line is drawn to it
        for _ in range(DOUBLINGS):
            before, rate = rate, rate * (2.0 if up else 0.5)
            if (yield from self._kept(rate)) != up:
                return min(before, rate), max(before, rate)
        return None

    def _kept(self, rate: float) -> Search[bool]:
        """Simulate the rate, unless it is known, and return whether the means keep the limits."""
        if rate not in self._slack:
            (outcome,) = yield [self._plan.with_(**{RATE: rate})]
            self._outcomes[rate] = outcome
            each = [_slack(name, bound, outcome) for name, bound in self._bounds.items()]
            low, mean, high = (min(column) for column in zip(*each, strict=True))
            self._slack[rate] = low, mean, high
        return self._slack[rate][1] >= 0

    def _end(self, which: Literal[0, 2]) -> Search[float | None]:
        """Return the first rate at which the low end of the margin reaches 0 (``which`` is 0), or
        the last one at which the high end does (2); simulate further rates to find it."""
        for _ in range(FARTHER):
            rate = min(self._slack) if which == 0 else max(self._slack)
            if (self._slack[rate][which] >= 0) == (which == 0):
                break
            yield from self._kept(rate / 2 if which == 0 else rate * 2)
        crossings = [
            (a, b)
            for a, b in pairwise(sorted(self._slack))
            if self._slack[a][which] >= 0 > self._slack[b][which]
        ]
        pair = crossings[:1] if which == 0 else crossings[-1:]
        return zero_between(*pair[0], self._slack, which) if pair else None

    def _limit(self, rate: float) -> str:
        """Return the limit with the smallest margin."""
        outcome = self._outcomes[rate]
        slacks = {name: _slack(name, b, outcome)[1] for name, b in self._bounds.items()}
        return min(slacks, key=lambda name: slacks[name])

    def _overloaded(self, rate: float) -> bool:
        return any(OVERLOADED in warning for warning in self._outcomes[rate].warnings)


def _slack(name: str, bound: float, outcome: Outcome) -> Lead:
    """Return the margin to a limit; raises ``UserError`` if the plan has no such figure."""
    value = outcome.metrics.get(name)
    if value is None:
        raise UserError(
            f"--capacity: search.limits.{name}: there are too few requests to tell it; raise "
            f"workload.requests or runs"
        )
    cost = metric(name).cost
    mean, ends = -cost(_apart(value.mean, bound)), list[float]()
    for end in value.ends:
        if end is None:
            return -math.inf, mean, math.inf
        ends.append(-cost(_apart(end, bound)))
    return min(ends), mean, max(ends)


def _apart(value: float, bound: float) -> float:
    """Return the logarithm of a value over its bound; a value of 0 counts as e^-30 of the bound.

    >>> _apart(5.0, 5.0), _apart(0.0, 5.0)
    (0.0, -30.0)
    """
    return max(-30.0, math.log(value / bound)) if value > 0 else -30.0
