"""Break-even analysis: the value of an input at which another schedule becomes the best, and the
best schedule over two inputs.

The best plan of each schedule is simulated again with other values of a key, on the ranking's runs
and texts, so that differences come from the input alone. Limits are not checked again, and
parameters are not searched again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from treepipe.core.errors import UserError
from treepipe.planner.analysis import Finding
from treepipe.planner.gaps import Runs, far_behind, relative_gap
from treepipe.planner.halving import SearchResult
from treepipe.progress import Progress
from treepipe.results.sheet import Sheet, words
from treepipe.results.units import number
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.sim.points import Point, simulate_points

if TYPE_CHECKING:
    from treepipe.planner.cluster import Cluster
    from treepipe.report.page import Picture

REACH = 8.0
"""Factor between the stated value and each end of the default range."""
STEPS = 4
"""Number of values on each side of the stated one, spaced geometrically."""
NEARER = 4
"""Most values tried between those in which the best schedule changes (of a whole number all)."""
EQUAL = 1e-3
"""Relative difference of two means at which no nearer value is tried."""
MOST_DIGITS = 17
"""Decimal digits that distinguish any two floats."""
NOT_INPUTS = ("name", "seed", "runs", "search", "schedule")
Goals: TypeAlias = Mapping[ScheduleName, Runs]
"""The goal in every run, by schedule."""
Lead: TypeAlias = tuple[float, float, float]
"""Low end, mean and high end of the logarithm of a ratio."""
Leads: TypeAlias = Mapping[float, Lead | None]
"""Advantage of a schedule over another one by value of an input; None where it has no interval."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An input and the range of values to try.

    Attributes:
        stated: the scenario's own value; None if it states no positive one.
        whole: whether the input takes whole numbers only.
    """

    key: str
    low: float
    high: float
    stated: float | None
    whole: bool

    @property
    def values(self) -> list[float]:
        """The values to try, ascending; geometric steps on either side of the stated one."""
        ends = [self.low, self.high]
        if self.stated is not None and self.low < self.stated < self.high:
            ends.insert(1, self.stated)
        steps = 2 * STEPS // (len(ends) - 1)
        tried = [np.geomspace(a, b, steps + 1).tolist() for a, b in pairwise(ends)]
        exact = {self._rounded(value) for part in tried for value in part[1:-1]} | {*ends}
        return sorted(exact)

    def between(self, low: float, high: float) -> float | None:
        """Return the geometric mean, rounded for whole inputs, or None if it equals an end."""
        middle = self._rounded(math.sqrt(low * high))
        return middle if low < middle < high else None

    def _rounded(self, value: float) -> float:
        return float(round(value)) if self.whole else value

    def given(self, value: float) -> float:
        """Return the value as a scenario file states it."""
        return int(value) if self.whole else value

    def shown(self, value: float, digits: int = 4) -> str:
        """Format the value with at least ``digits`` digits, enough to distinguish those tried.

        >>> wide, narrow = (Axis("scale.latency", 1.0, end, 1.0, False) for end in (8.0, 1.0001))
        >>> wide.shown(8.0), narrow.shown(1.0001), narrow.shown(1.0)
        ('8', '1.0001', '1')
        """
        values = self.values
        while digits < MOST_DIGITS and len({number(v, digits) for v in values}) < len(values):
            digits += 1
        return number(value, digits)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The change of the best schedule along an axis that is nearest to the stated value.

    Attributes:
        value: the key's value at the change; of a whole number the first at which ``after`` is
            best. None if one schedule is best in the whole range.
        low: ``before`` is significantly better (95 %) below this value; None if at no value tried.
        high: ``after`` is significantly better above this value; None if at no value tried.
        before, after: the best schedules below and above the value; equal if there is no change.
        matters: whether any plan's goal depends on the key.
    """

    axis: Axis
    value: float | None
    low: float | None
    high: float | None
    before: ScheduleName
    after: ScheduleName
    matters: bool = True

    @property
    def sentence(self) -> str:
        """The break-even as a sentence."""
        axis = self.axis
        stated = "" if axis.stated is None else f" (stated: {axis.shown(axis.stated)})"
        if self.value is None:
            ends = f"{axis.shown(axis.low)} to {axis.shown(axis.high)}"
            vain = "" if self.matters else ", which changes nothing of any plan's goal"
            return f"{self.before} is the best schedule for {axis.key} from {ends}{vain}{stated}"
        low = "" if self.low is None else f" (beyond doubt below {axis.shown(self.low)})"
        high = "" if self.high is None else f" (beyond doubt above {axis.shown(self.high)})"
        return (
            f"break-even: {axis.key} = {axis.shown(self.value)}; {self.before} is better below"
            f"{low}, {self.after} above{high}{stated}"
        )

    def as_dict(self) -> dict[str, Any]:
        names = ("value", "low", "high", "before", "after", "matters")
        return {"key": self.axis.key, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True)
class Regions:
    """The best schedule at values of two inputs; ``best`` has a row for each value of ``y``."""

    x: Axis
    y: Axis
    best: Sequence[Sequence[ScheduleName]]
    runs: int

    def as_dict(self) -> dict[str, Any]:
        axes = {
            name: {"key": axis.key, "values": [axis.given(value) for value in axis.values]}
            for name, axis in (("x", self.x), ("y", self.y))
        }
        return {**axes, "best": [list(row) for row in self.best], "runs": self.runs}


@dataclass(frozen=True, slots=True)
class BreakEvens(Finding):
    """The break-even along one input, and the map over two."""

    even: BreakEven | None = None
    regions: Regions | None = None

    @classmethod
    def check(cls, cluster: Cluster, given: Sequence[str]) -> None:
        axes_of(given, cluster)

    @classmethod
    def draws(cls, given: Sequence[str]) -> bool:
        return len(given) == 2

    @classmethod
    def run(cls, result: SearchResult, say: Progress, given: Sequence[str] = ()) -> BreakEvens:
        axes = axes_of(given, result.cluster)
        if not result.feasible:
            return cls()
        both = regions(result, axes[0], axes[1], say) if cls.draws(given) else None
        return cls(break_even(result, axes[0], say), both)

    def as_dict(self) -> dict[str, Any]:
        return {
            "break_even": None if self.even is None else self.even.as_dict(),
            "break_even_map": None if self.regions is None else self.regions.as_dict(),
        }

    def sentences(self) -> list[str]:
        return [] if self.even is None else [self.even.sentence]

    def tables(self, result: SearchResult) -> list[Sheet]:
        if self.regions is None:
            return []
        x, y = self.regions.x, self.regions.y
        title = f"the best schedule by {x.key} (across) and {y.key} (down)"
        sheet = Sheet(title, words("", *(x.shown(value, 3) for value in x.values)))
        for value, best in zip(y.values, self.regions.best, strict=True):
            sheet.add(y.shown(value, 3), *best)
        return [sheet]

    def pictures(self, result: SearchResult) -> list[Picture]:
        from treepipe.planner.regions_plot import Ticks, regions_figure
        from treepipe.report.page import Picture

        if self.regions is None:
            return []
        x, y = (
            Ticks(
                axis.key,
                [axis.shown(value, 3) for value in axis.values],
                axis.values.index(axis.stated) if axis.stated in axis.values else None,
            )
            for axis in (self.regions.x, self.regions.y)
        )
        goal, runs = result.goal.in_words, self.regions.runs
        title = f"{result.cluster.name}: best schedule by {goal} ({runs} runs; dotted: as stated)"
        return [
            Picture(regions_figure(self.regions.best, x, y, title), f"a map of schedules: {title}")
        ]


def axis_of(text: str, scenario: Scenario) -> Axis:
    """Parse ``KEY`` or ``KEY=LOW:HIGH`` and check it; raises ``UserError``."""
    key, equals, ends = (part.strip() for part in text.partition("="))
    option = f"--break-even {text}"
    if not key or key.split(".")[0] in NOT_INPUTS:
        raise UserError(f"{option}: needs an input, e.g. scale.latency or workload.concurrency")
    found = scenario.number_at(key)
    whole, stated = isinstance(found, int), found if found is not None and found > 0 else None
    if equals:
        try:
            low, high = (float(end) for end in ends.split(":"))
        except ValueError:
            raise UserError(f"{option}: a range looks like {key}=0.5:20") from None
        if not 0 < low < high < math.inf:
            raise UserError(f"{option}: a range goes from a positive number to a larger one")
    elif stated is None:
        _check(scenario, key, (1, 0.5), option)
        raise UserError(
            f"{option}: the cluster states no positive number there; give a range, {key}=LOW:HIGH"
        )
    else:
        low, high = stated / REACH, stated * REACH
        if key.startswith("acceptance.") and stated < 1:
            high = 1 - (1 - stated) / REACH  # a share: REACH times fewer misses
    if whole:
        low, high = float(max(1, math.ceil(low))), float(math.floor(high))
    if not low < high:
        raise UserError(f"{option}: there are no two whole numbers in this range")
    axis = Axis(key, low, high, stated, whole)
    _check(scenario, key, [axis.given(value) for value in axis.values], option)
    return axis


def _check(scenario: Scenario, key: str, values: Sequence[float], option: str) -> None:
    """Raise ``UserError`` now, before a long search, if the scenario rejects a value."""
    refused = list[UserError]()
    for value in values:
        try:
            scenario.with_(**{key: value})
        except UserError as error:
            refused.append(error)
    if refused:
        bounds = f"; {key}=LOW:HIGH bounds them" if len(refused) < len(values) else ""
        raise UserError(f"{refused[0]} ({option} tries such values{bounds})")


def axes_of(texts: Sequence[str], scenario: Scenario) -> list[Axis]:
    """Parse at most two axes of different inputs; raises ``UserError``."""
    if len(texts) > 2:
        raise UserError("--break-even takes one input, or two for a map")
    if len({text.partition("=")[0].strip() for text in texts}) < len(texts):
        raise UserError("--break-even: a map is over two different inputs")
    return [axis_of(text, scenario) for text in texts]


def break_even(result: SearchResult, axis: Axis, say: Progress) -> BreakEven:
    """Find the change of the best schedule nearest to the stated value.

    Raises:
        UserError: the scenario rejects a value.
        RunError: see ``simulate_points``.
    """
    first = min(result.runs, result.cluster.search.first_runs)
    settings = [{axis.key: axis.given(value)} for value in axis.values]
    seen = _at_all(result, settings, first, say)
    near = dict(zip(axis.values, _contenders(result, seen), strict=True))
    best = {value: names[0] for value, names in near.items()}
    tried: dict[float, dict[ScheduleName, Runs]] = {}
    if first == result.runs:
        tried = {value: dict(goals) for value, goals in zip(axis.values, seen, strict=True)}

    def look(plans: Mapping[float, Collection[ScheduleName]]) -> None:
        new = [(v, n) for v, names in plans.items() for n in names if n not in tried.get(v, ())]
        asked = [(name, {axis.key: axis.given(value)}) for value, name in new]
        found = _simulated(result, asked, result.runs, say) if asked else []
        for (value, name), runs in zip(new, found, strict=True):
            tried.setdefault(value, {})[name] = runs
        best.update((value, _ranked(result, tried[value])[0]) for value in plans)

    def leads(values: Iterable[float]) -> Leads:
        names = best[low], best[high]
        return {value: _lead(result, tried[value], names) for value in values}

    look({value: names for value, names in near.items() if len(names) > 1})
    stated = axis.low if axis.stated is None else axis.stated
    while changes := [(a, b) for a, b in pairwise(axis.values) if best[a] != best[b]]:
        low, high = min(changes, key=lambda ends: abs(math.log(ends[0] * ends[1] / stated**2)))
        between = {*near[low], *near[high]}
        look({low: between, high: between})
        if best[low] != best[high]:
            break
    else:
        only = best[axis.low]
        matters = any(not _same(seen[0], goals) for goals in seen)
        return BreakEven(axis, None, None, None, only, only, matters)
    for _ in range(64 if axis.whole else NEARER):
        middle = _nearer(axis, leads((low, high)), (low, high))
        if middle is None:
            break
        look({middle: between})
        nearer_above = stated >= high  # bounds of a third schedule: keep the nearer
        if best[middle] == best[low] or (best[middle] != best[high] and nearer_above):
            low = middle
        else:
            high = middle
    names = best[low], best[high]
    look(dict.fromkeys([*axis.values, *tried], names))
    return _crossing(axis, leads(tried), (low, high), names)


def regions(result: SearchResult, x: Axis, y: Axis, say: Progress) -> Regions:
    """Find the best schedule at each pair of values, on as many runs as the first rung has.

    Raises:
        UserError: the scenario rejects a value.
        RunError: see ``simulate_points``.
    """
    runs = result.cluster.search.first_runs
    settings = [
        {x.key: x.given(across), y.key: y.given(up)} for up, across in product(y.values, x.values)
    ]
    goals = iter(_at_all(result, settings, runs, say))
    rows = [[_ranked(result, next(goals))[0] for _ in x.values] for _ in y.values]
    return Regions(x, y, rows, runs)


def _contenders(result: SearchResult, seen: Sequence[Goals]) -> list[list[ScheduleName]]:
    """Select the schedules to compare on all runs at each value, the best first: by the first runs
    not far behind the best one there. Of plans with equal figures everywhere one is kept."""
    figures = {name: tuple(f"{goals[name].mean:.9g}" for goals in seen) for name in seen[0]}
    once = {figures[name]: name for name in reversed(figures)}.values()
    return [_near(result, {name: goals[name] for name in once}) for goals in seen]


def _near(result: SearchResult, goals: Goals) -> list[ScheduleName]:
    """Return the schedules that further runs might make the best, sorted by goal."""
    ranked = _ranked(result, goals)
    far = far_behind([*goals.values()], goals[ranked[0]], result.goal)
    return [name for name in ranked if not far(goals[name])]


def _at_all(
    result: SearchResult, settings: Sequence[Mapping[str, float]], runs: int, say: Progress
) -> list[Goals]:
    """Simulate the best plan of each schedule at every setting."""
    names = [*result.best_of_each]
    asked = [(name, changes) for changes in settings for name in names]
    found = iter(_simulated(result, asked, runs, say))
    return [{name: next(found) for name in names} for _ in settings]


def _simulated(
    result: SearchResult,
    asked: Sequence[tuple[ScheduleName, Mapping[str, float]]],
    runs: int,
    say: Progress,
) -> list[Runs]:
    """Simulate plans, each with its changes; return the goal's runs."""
    plans = result.best_of_each
    try:
        points = [
            Point(str(number), plans[name].candidate.scenario.with_(**changes, runs=runs))
            for number, (name, changes) in enumerate(asked)
        ]
        outcomes = simulate_points(points, say, f"break-even, {len(points)} simulations")
    except UserError as error:
        raise UserError(
            f"{error} (--break-even tries such values; KEY=LOW:HIGH bounds them)"
        ) from None
    return [Runs.of(outcome, result.goal.name) for outcome in outcomes.values()]


def _ranked(result: SearchResult, goals: Goals) -> list[ScheduleName]:
    """Sort the schedules by goal, the best first."""
    cost = result.goal.cost
    return sorted(goals, key=lambda name: cost(goals[name].mean))


def _same(goals: Goals, others: Goals) -> bool:
    return all(
        np.array_equal(goals[name].values, others[name].values, equal_nan=True) for name in goals
    )


def _nearer(axis: Axis, leads: Leads, ends: tuple[float, float]) -> float | None:
    """Return a value between ``ends`` at which two schedules may be equal: where the line between
    their leads is 0, of whole numbers the middle. None if there is none, or one is near enough."""
    known = {value: lead for value, lead in leads.items() if lead is not None}
    if axis.whole or len(known) < len(leads):
        return axis.between(*ends)
    if min(abs(lead[1]) for lead in known.values()) < EQUAL:
        return None
    value = zero_between(*ends, known, 1)
    return value if ends[0] < value < ends[1] else None


def _lead(
    result: SearchResult, goals: Goals, names: tuple[ScheduleName, ScheduleName]
) -> Lead | None:
    """Return the advantage of the first schedule at a value, with unknown ends where its interval
    has none; None if it has no advantage."""
    gap = relative_gap(goals[names[0]], goals[names[1]], 1)
    if gap is None:
        return None
    mean, ends = result.goal.cost(math.log1p(gap.mean)), list[float]()
    for end in gap.ends:
        if end is None:
            return -math.inf, mean, math.inf
        ends.append(result.goal.cost(math.log1p(end)))
    return min(ends), mean, max(ends)


def _crossing(
    axis: Axis,
    found: Leads,
    ends: tuple[float, float],
    names: tuple[ScheduleName, ScheduleName],
) -> BreakEven:
    """Interpolate the break-even between the values ``ends``, and find its interval, in which that
    of the difference of the plans holds 0. All are linear in logarithms between values."""
    leads = {value: lead for value, lead in found.items() if lead is not None}
    if len(leads) < len(found):
        return BreakEven(axis, axis.given(ends[1]), None, None, *names)
    values = sorted(leads)
    below = [pair for pair in pairwise(values) if pair[0] <= ends[0] and leads[pair[0]][0] > 0]
    above = [pair for pair in pairwise(values) if pair[1] >= ends[1] and leads[pair[1]][2] < 0]
    low = zero_between(*below[-1], leads, 0) if below else None
    high = zero_between(*above[0], leads, 2) if above else None
    value = zero_between(*ends, leads, 1)
    if axis.whole:
        value = ends[1]
        low = None if low is None else math.floor(low)
        high = None if high is None else math.ceil(high)
    return BreakEven(axis, axis.given(value), low, high, *names)


def zero_between(a: float, b: float, leads: Mapping[float, Lead], which: int) -> float:
    """Return the zero of the line between two values, or the nearer end if it lies outside."""
    at, to = leads[a][which], leads[b][which]
    share = 0.5 if at == to else 1.0 if math.isinf(at) else at / (at - to)
    return math.exp(math.log(a) + min(1.0, max(0.0, share)) * math.log(b / a))
