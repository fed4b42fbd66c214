"""At which value of one input another schedule becomes the best, and over two inputs, which is
the best where.

Law of this file: the best plan of each schedule is simulated again with other values of a key of
the scenario, on the ranking's runs and texts; so a change is due to the input alone. Neither limits
nor parameters are looked at again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from treepipe.core.errors import UserError
from treepipe.planner.analysis import Analysis
from treepipe.planner.gaps import Runs, relative_gap
from treepipe.planner.halving import Found, Ranked
from treepipe.results.metrics import in_words, metric
from treepipe.results.sheet import Sheet, words
from treepipe.results.show import number
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.sim.points import Point, simulate_points

if TYPE_CHECKING:
    from treepipe.report.page import Picture

Say: TypeAlias = Callable[[str, int], None]
REACH = 8.0
"""The range is from the stated value over this to the value times this, unless it is given."""
STEPS = 4
"""Values on each side of the stated one, each as many times the last one."""
HALVINGS = 5
"""Of the interval in which the best schedule changes."""
MOST_DIGITS = 17
"""That a number has."""
NOT_INPUTS = ("name", "seed", "runs", "search", "schedule")


@dataclass(frozen=True, slots=True)
class Axis:
    """An input and the values that are tried.

    Attributes:
        key: dotted, of the scenario.
        stated: the scenario's own value; None where it states no positive one.
        whole: only whole numbers make sense.
    """

    key: str
    low: float
    high: float
    stated: float | None
    whole: bool

    @property
    def values(self) -> list[float]:
        """Ascending, each as many times the one before on either side of the stated value."""
        ends = [self.low, self.high]
        if self.stated is not None and self.low < self.stated < self.high:
            ends.insert(1, self.stated)
        steps = 2 * STEPS // (len(ends) - 1)
        tried = [np.geomspace(a, b, steps + 1).tolist() for a, b in pairwise(ends)]
        exact = {self._rounded(value) for part in tried for value in part[1:-1]} | {*ends}
        return sorted(exact)

    def between(self, low: float, high: float) -> float | None:
        """The value in the middle, None if there is none."""
        middle = self._rounded(math.sqrt(low * high))
        return middle if low < middle < high else None

    def _rounded(self, value: float) -> float:
        return float(round(value)) if self.whole else value

    def given(self, value: float) -> float:
        """The value as a file would say it."""
        return int(value) if self.whole else value

    def shown(self, value: float, digits: int = 4) -> str:
        """The value in words, with at least so many digits, and enough to tell apart what is tried.

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
    """Where the best schedule changes along an axis, nearest to the stated value.

    Attributes:
        value: of the key; of a whole number the first at which ``after`` is the best. None where
            one schedule is the best in the whole range.
        low: below it ``before`` is better beyond doubt (95 %); None where no value tried is.
        high: above it ``after`` is; None where no value tried is.
        before: the best schedule below the value.
        after: the best one above it; ``before`` where there is no value.
        matters: whether the goal of any plan changes with the key at all.
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
        """The value at which the best schedule changes, in words."""
        axis = self.axis
        if self.value is None:
            ends = f"{axis.shown(axis.low)} to {axis.shown(axis.high)}"
            sentence = f"{self.before} is the best schedule for {axis.key} from {ends}"
            sentence += "" if self.matters else ", which changes nothing of any plan's goal"
        else:
            low = "" if self.low is None else f" (beyond doubt below {axis.shown(self.low)})"
            high = "" if self.high is None else f" (beyond doubt above {axis.shown(self.high)})"
            sentence = (
                f"break-even: {axis.key} = {axis.shown(self.value)}; {self.before} is better below"
                f"{low}, {self.after} above{high}"
            )
        stated = "" if axis.stated is None else f" (stated: {axis.shown(axis.stated)})"
        return sentence + stated

    def as_dict(self) -> dict[str, Any]:
        return {
            "key": self.axis.key,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "before": self.before,
            "after": self.after,
            "matters": self.matters,
        }


@dataclass(frozen=True, slots=True)
class Regions:
    """The best schedule at values of two inputs; ``best``: a row for each value of ``y``."""

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
class BreakEvenAnalysis(Analysis):
    """``--break-even``: along one input, or a map over two."""

    even: BreakEven | None = None
    regions: Regions | None = None
    heading: ClassVar[str] = "Where another schedule is better"

    @classmethod
    def run(cls, found: Found, say: Say, axes: Sequence[Axis] = ()) -> BreakEvenAnalysis:
        """Find the break-even along the first of one or two axes, and over two the map.

        Raises:
            UserError: a value is refused.
            RunError: as ``simulate_points``.
        """
        if not axes or not found.feasible:
            return cls()
        both = regions(found, axes[0], axes[1], say) if axes[1:] else None
        return cls(break_even(found, axes[0], say), both)

    def as_dict(self) -> dict[str, Any]:
        return {
            "break_even": None if self.even is None else self.even.as_dict(),
            "break_even_map": None if self.regions is None else self.regions.as_dict(),
        }

    def sentences(self) -> list[str]:
        return [] if self.even is None else [self.even.sentence]

    def tables(self, found: Found) -> list[Sheet]:
        """The map as a grid."""
        if self.regions is None:
            return []
        x, y = self.regions.x, self.regions.y
        title = f"the best schedule by {x.key} (across) and {y.key} (down)"
        sheet = Sheet("", title, words("", *(x.shown(value, 3) for value in x.values)))
        for value, best in zip(y.values, self.regions.best, strict=True):
            sheet.add(y.shown(value, 3), *best)
        return [sheet]

    def pictures(self, found: Found) -> list[Picture]:
        """The map."""
        from treepipe.planner.regions_plot import regions_figure
        from treepipe.report.page import Picture

        if self.regions is None:
            return []
        goal, runs = in_words(found.cluster.search.goal), self.regions.runs
        title = f"{found.cluster.name}: best schedule by {goal} ({runs} runs; dotted: as stated)"
        return [Picture(regions_figure(self.regions, title), f"a map of schedules: {title}")]


Goals: TypeAlias = Mapping[ScheduleName, Runs]
"""The goal in every run, by schedule."""


def axis_of(text: str, scenario: Scenario) -> Axis:
    """An axis from ``KEY`` or ``KEY=LOW:HIGH``; raises ``UserError`` if that is none."""
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
            high = 1 - (1 - stated) / REACH  # a share: the misses are so much fewer
    if whole:
        low, high = float(max(1, math.ceil(low))), float(math.floor(high))
    if not low < high:
        raise UserError(f"{option}: there are no two whole numbers in this range")
    axis = Axis(key, low, high, stated, whole)
    _check(scenario, key, [axis.given(value) for value in axis.values], option)
    return axis


def _check(scenario: Scenario, key: str, values: Sequence[float], option: str) -> None:
    """Raise ``UserError`` where a value is refused: now, since the search may take minutes."""
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
    """At most two axes, of different inputs; raises ``UserError`` if they are not."""
    if len(texts) > 2:
        raise UserError("--break-even takes one input, or two for a map")
    if len({text.partition("=")[0].strip() for text in texts}) < len(texts):
        raise UserError("--break-even: a map is over two different inputs")
    return [axis_of(text, scenario) for text in texts]


def break_even(found: Found, axis: Axis, say: Say) -> BreakEven:
    """Find the value nearest to the stated one at which the best schedule changes.

    Raises:
        UserError: a value is refused.
        RunError: as ``simulate_points``.
    """
    tried, plans = dict[float, Goals](), _contenders(found, axis, say)

    def look(values: Iterable[float]) -> None:
        settings = [{axis.key: axis.given(value)} for value in values]
        found_there = _simulated(found, plans, settings, found.runs, say)
        tried.update(zip(values, found_there, strict=True))

    look(axis.values)
    best = {value: _best(found, tried[value]) for value in axis.values}
    changes = [(a, b) for a, b in pairwise(axis.values) if best[a] != best[b]]
    if not changes:
        only = best[axis.low]
        matters = any(not _same(tried[axis.low], goals) for goals in tried.values())
        return BreakEven(axis, None, None, None, only, only, matters)
    stated = axis.low if axis.stated is None else axis.stated
    low, high = min(changes, key=lambda ends: abs(math.log(ends[0] * ends[1] / stated**2)))
    for _ in range(64 if axis.whole else HALVINGS):
        middle = axis.between(low, high)
        if middle is None:
            break
        look([middle])
        best[middle] = _best(found, tried[middle])
        nearer_above = stated >= high  # of a third schedule in between, the end next to the stated
        if best[middle] == best[low] or (best[middle] != best[high] and nearer_above):
            low = middle
        else:
            high = middle
    return _crossing(found, axis, tried, (low, high), (best[low], best[high]))


def regions(found: Found, x: Axis, y: Axis, say: Say) -> Regions:
    """The best schedule at all values of two inputs, on the first rung's runs.

    Raises:
        UserError: a value is refused.
        RunError: as ``simulate_points``.
    """
    runs = found.cluster.search.first_runs
    settings = [
        {x.key: x.given(across), y.key: y.given(up)} for up, across in product(y.values, x.values)
    ]
    plans = found.best_of_each
    best = [_best(found, goals) for goals in _simulated(found, plans, settings, runs, say)]
    columns = len(x.values)
    rows = [best[first : first + columns] for first in range(0, len(best), columns)]
    return Regions(x, y, rows, runs)


def _contenders(found: Found, axis: Axis, say: Say) -> dict[ScheduleName, Ranked]:
    """The best plans of schedules that are among the best anywhere on the axis, by the first rung's
    runs (as many as survive a rung), or that alone change with it; of those that are the same
    everywhere one."""
    search, plans = found.cluster.search, found.best_of_each
    most = max(2, math.ceil(len(plans) / search.keep))
    if len(plans) <= most or found.runs <= search.first_runs:
        return plans
    settings = [{axis.key: axis.given(value)} for value in axis.values]
    seen = _simulated(found, plans, settings, search.first_runs, say)
    near = {found.best.candidate.schedule}
    for goals in seen:
        near |= {*sorted(goals, key=partial(_cost, found, goals))[:most]}
    figures = {name: tuple(f"{goals[name].mean:.9g}" for goals in seen) for name in plans}
    if all(len({*figures[name]}) == 1 for name in near):
        near |= {name for name in plans if len({*figures[name]}) > 1}
    once = {figures[name]: name for name in reversed(plans)}.values()
    return {name: plan for name, plan in plans.items() if name in near and name in once}


def _simulated(
    found: Found,
    plans: Mapping[ScheduleName, Ranked],
    settings: Sequence[Mapping[str, float]],
    runs: int,
    say: Say,
) -> list[Goals]:
    """The plans, at every setting."""
    goal = found.cluster.search.goal
    with _values_tried():
        points = [
            Point(f"{name} {count}", each.candidate.scenario.with_(**changes, runs=runs))
            for count, changes in enumerate(settings)
            for name, each in plans.items()
        ]
        title = f"{len(plans)} plans at {len(settings)} values"
        outcomes = simulate_points(points, say, title)
    return [
        {name: Runs.of(outcomes[f"{name} {count}"], goal) for name in plans}
        for count in range(len(settings))
    ]


@contextmanager
def _values_tried() -> Iterator[None]:
    """Whoever is refused a plan at a value that the cluster takes hears why it was tried."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{error} (--break-even tries such values; KEY=LOW:HIGH bounds them)"
        ) from None


def _best(found: Found, goals: Goals) -> ScheduleName:
    return min(goals, key=partial(_cost, found, goals))


def _cost(found: Found, goals: Goals, name: ScheduleName) -> float:
    """What is least for the best."""
    return (
        goals[name].mean if metric(found.cluster.search.goal).less_is_better else -goals[name].mean
    )


def _same(goals: Goals, others: Goals) -> bool:
    return all(
        np.array_equal(goals[name].values, others[name].values, equal_nan=True) for name in goals
    )


def _crossing(
    found: Found,
    axis: Axis,
    tried: Mapping[float, Goals],
    ends: tuple[float, float],
    names: tuple[ScheduleName, ScheduleName],
) -> BreakEven:
    """Between the two values ``ends``, and the interval: where that of the plans' difference ends
    or begins to hold 0, all of them linear between values (in logarithms)."""
    sign = 1 if metric(found.cluster.search.goal).less_is_better else -1
    values = sorted(tried)
    lead = dict[float, tuple[float, float, float]]()  # how far ``before`` is better: low to high
    for value in values:
        gap = relative_gap(tried[value][names[0]], tried[value][names[1]], 1)
        if gap is None or gap.low is None or gap.high is None or gap.low <= -1:
            return BreakEven(axis, axis.given(ends[1]), None, None, *names)
        told = sorted(sign * math.log1p(each) for each in (gap.low, gap.mean, gap.high))
        lead[value] = told[0], told[1], told[2]
    below = [v for v in values if v <= ends[0] and lead[v][0] > 0]
    above = [v for v in values if v >= ends[1] and lead[v][2] < 0]
    low = high = None
    if below:
        low = zero_between(below[-1], _next(values, below[-1], 1), lead, 0)
    if above:
        high = zero_between(_next(values, above[0], -1), above[0], lead, 2)
    value = zero_between(*ends, lead, 1)
    if axis.whole:
        value = ends[1]
        low = None if low is None else math.floor(low)
        high = None if high is None else math.ceil(high)
    return BreakEven(axis, axis.given(value), low, high, *names)


def _next(values: Sequence[float], value: float, step: int) -> float:
    return values[values.index(value) + step]


def zero_between(
    a: float, b: float, lead: Mapping[float, tuple[float, float, float]], which: int
) -> float:
    """The zero of the line between two values; the nearer end where it is not between them."""
    at, to = lead[a][which], lead[b][which]
    share = at / (at - to) if at != to else 0.5
    return math.exp(math.log(a) + min(1.0, max(0.0, share)) * math.log(b / a))
