"""Sensitivity analysis: what would change the answer.

Of each input: the change of the best plan's goal as it is a tenth smaller or larger, and the value
nearest to the stated one at which another schedule becomes the best. An input is a key of the
scenario (mostly a factor of ``[scale]``). Plans are simulated again with other values of it, on the
ranking's runs and texts, so that differences come from the input alone. Limits are not checked
again, and parameters are not searched again.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from textwrap import fill
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np

from treepipe.core.errors import UserError
from treepipe.planner.analysis import ALL, Finding
from treepipe.planner.gaps import (
    Runs,
    far_behind,
    relative_change,
    relative_gap,
    shown,
    shown_interval,
)
from treepipe.planner.halving import SearchResult
from treepipe.progress import Progress
from treepipe.results.metrics import in_words
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.statistics import ROUNDING, Fixed, Interval
from treepipe.results.units import number
from treepipe.scenario.scale import Estimated, named_devices
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.sim.acceptance_pool import acceptance_pool
from treepipe.sim.blocks import blocks_of
from treepipe.sim.points import Outcome, Point, simulate_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from treepipe.planner.cluster import Cluster
    from treepipe.report.page import Picture

STEP = 0.1
"""Relative change of an input."""
REACH = 10.0
"""Factor between the stated value and each end of the default range."""
PER_SIDE = 2
"""Number of values on each side of the stated one, spaced geometrically: a few, as the ratio of two
goals that are linear in the input has no turning point."""
NEARER = 4
"""Most values tried between those in which the best schedule changes."""
EQUAL = 1e-3
"""Logarithm of the ratio of two goals at which no nearer value is tried."""
NOT_INPUTS = ("name", "seed", "runs", "search", "schedule")
RATE = "workload.arrivals.rate_per_s"
"""Key of the arrival rate, which neither a closed loop nor a trace has."""
MISSES, DEVICES = "scale.misses", "scale.devices."
THICK = 0.36
"""Height of a bar; rows are 1 high."""
WIDTH = 80
"""Width of a title in characters; a plan's label may be longer than the panel."""
Side: TypeAlias = Literal["down", "up"]
Lead: TypeAlias = tuple[float, float, float]
"""Low end, mean and high end of the logarithm of a ratio; unknown ends are infinite."""
Goals: TypeAlias = dict[ScheduleName, Runs]
"""The goal in every run, by schedule."""
T = TypeVar("T")
Search: TypeAlias = Generator[Sequence[Scenario], Sequence[Outcome], T]
"""Yields the scenarios to simulate next, receives their outcomes, and returns what they tell."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An input and the range of values to try.

    Attributes:
        stated: the plan's own value; None if it states no positive one.
    """

    key: str
    stated: float | None
    low: float
    high: float

    @property
    def start(self) -> float:
        """The stated value, or the end of the range that is nearest to it."""
        return self.low if self.stated is None else min(max(self.stated, self.low), self.high)

    @property
    def values(self) -> list[float]:
        """The values to try, ascending: geometric steps on either side of the first."""
        ends = sorted({self.low, self.start, self.high})
        steps = 2 * PER_SIDE // (len(ends) - 1)
        tried = [np.geomspace(a, b, steps + 1).tolist()[1:-1] for a, b in pairwise(ends)]
        return sorted({*ends, *(value for part in tried for value in part)})

    def changed(self, plan: Scenario, value: float, runs: int) -> Scenario:
        """Return a plan with another value, the same one if it lacks the device that the input
        scales; raises ``UserError`` if it rejects the value."""
        if self.key.startswith(DEVICES):  # a device's name may have dots
            name = self.key.removeprefix(DEVICES)
            there = name in named_devices(plan)
            factors = {**plan.scale.devices, **({name: value} if there else {})}
            return plan.with_(**{"scale.devices": factors}, runs=runs)
        return plan.with_(**{self.key: value}, runs=runs)

    @property
    def label(self) -> str:
        """The input in words; of a key without words its stated value, too.

        >>> Axis("scale.devices.l40", 1.0, 0.1, 10.0).label
        'times of l40'
        >>> Axis("links.default.jitter_ms", 4.0, 1.0, 40.0).label
        'links.default.jitter_ms (4)'
        """
        if self.key.startswith(DEVICES):
            return f"times of {self.key.removeprefix(DEVICES)}"
        value = "" if self.stated is None else f" ({number(self.stated)})"
        return LABELS.get(self.key) or f"{self.key}{value}"


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The change of the best schedule along an input that is nearest to the stated value.

    Attributes:
        value: the key's value at the change; None if one schedule is best in the whole range.
        low: ``before`` is significantly better (95 %) below this value; None if at no value tried.
        high: ``after`` is significantly better above this value; None if at no value tried.
        before, after: the best schedules below and above the value; equal if there is no change.
        matters: whether any plan's goal depends on the key.
    """

    value: float | None
    low: float | None
    high: float | None
    before: ScheduleName
    after: ScheduleName
    matters: bool = True


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What one input does to the answer.

    Attributes:
        down, up: relative changes of the best plan's goal with 10 % less and 10 % more of the
            input; None where that is out of the input's range.
        low, high, fixed: 95 % interval of the larger change, over the paired runs and for this
            input alone, as in ``Interval``.
        break_even: where another schedule becomes the best.
    """

    axis: Axis
    down: float | None
    up: float | None
    low: float | None
    high: float | None
    break_even: BreakEven
    fixed: Fixed = field(default="", repr=False)

    @property
    def key(self) -> str:
        """The key of the scenario."""
        return self.axis.key

    @property
    def size(self) -> float:
        """Magnitude of the larger change."""
        return max(abs(self.down or 0.0), abs(self.up or 0.0))

    @property
    def larger(self) -> Side:
        """The side of the larger change; up if both are equal but for rounding."""
        return "up" if abs(self.up or 0.0) >= abs(self.down or 0.0) - ROUNDING else "down"

    @property
    def turn(self) -> str:
        """Where another schedule becomes the best, in words."""
        even, own = self.break_even, self.axis
        if even.value is None:
            known = "none" if even.matters else "no effect"
            return f"{known} from {own.low:.6g} to {own.high:.6g}"
        other = f"{even.after} above" if own.start < even.value else f"{even.before} below"
        ends = ["?" if end is None else number(end) for end in (even.low, even.high)]
        return f"{other} {number(even.value)} ({' … '.join(ends)})"

    def as_dict(self) -> dict[str, Any]:
        own = {"key": self.key, "stated": self.axis.stated, "down": self.down, "up": self.up}
        even = {**asdict(self.break_even), "tried": [self.axis.low, self.axis.high]}
        return {**own, "low": self.low, "high": self.high, "break_even": even}


@dataclass(frozen=True, slots=True)
class Sensitivities(Finding):
    """The inputs, sorted by the size of their effect, the largest first; ``given``: the keys that
    the user named."""

    rows: Sequence[Sensitivity] = ()
    given: Sequence[str] = ()
    draws: ClassVar[bool] = True

    @classmethod
    def check(cls, cluster: Cluster, given: Sequence[str]) -> None:
        if len({*(keys := _keys(given))}) < len(keys):
            raise UserError("--break-even: an input is given twice")
        for text in given:
            if text != ALL:
                input_of(text, cluster)

    @classmethod
    def run(cls, result: SearchResult, say: Progress, given: Sequence[str] = ()) -> Sensitivities:
        return cls(sensitivities(result, say, given), [k for k in _keys(given) if k != ALL])

    def as_dict(self) -> dict[str, Any]:
        rows = {row.key: row.as_dict() for row in self.rows}
        named = next((key for key in self.given if key in rows), None)
        even = None if named is None else {"key": named, **rows[named]["break_even"]}
        return {"sensitivity": [*rows.values()], "break_even": even}

    def tables(self, result: SearchResult) -> list[Sheet]:
        if not self.rows:
            return []
        heads = [*words("input"), *figures(f"-{STEP:.0%}", f"+{STEP:.0%}")]
        heads += words("another schedule is best (95 %)")
        sheet = Sheet(_title(result), [*heads, *figures("95 % interval of the larger change")])
        for row in self.rows:
            interval = shown_interval(Interval(row.size, row.low, row.high, row.fixed))
            each = ["" if side is None else shown(side) for side in (row.down, row.up)]
            sheet.add(row.axis.label, *each, row.turn, interval)
        return [sheet.filled]

    def pictures(self, result: SearchResult) -> list[Picture]:
        from treepipe.report.page import Picture

        if not self.rows:
            return []
        title = _title(result)
        figure = tornado_figure(self.rows, title, result.goal.name)
        return [Picture(figure, f"a pair of bars per input: {title}")]


def _title(result: SearchResult) -> str:
    goal, plan = result.goal.in_words, result.winner.candidate.label
    return f"{plan}: {goal} as one input changes ({result.runs} paired runs)"


def _keys(given: Sequence[str]) -> list[str]:
    return [text.partition("=")[0].strip() for text in given]


# --- inputs ---------------------------------------------------------------------------------------

LABELS = {
    "scale.stages": "times of all stages",
    "scale.drafts": "times of all drafts",
    "scale.latency": "link latency",
    "scale.bandwidth": "link bandwidth",
    MISSES: "misses of acceptance",
    "scale.rows": "times of unmeasured rows",
    RATE: "arrival rate",
}


def inputs_of(result: SearchResult) -> list[Axis]:
    """List the inputs of the best plan; arrivals of a trace are not changed."""
    plan = result.winner.candidate.scenario
    devices = named_devices(plan)
    keys = {
        "scale.stages": True,
        "scale.drafts": True,
        **dict.fromkeys((f"{DEVICES}{name}" for name in devices), len(devices) > 1),
        "scale.latency": True,
        "scale.bandwidth": True,
        MISSES: plan.acceptance is not None,
        RATE: plan.number_at(RATE) is not None,
        "scale.rows": Estimated("rows") in result.winner.outcome.estimates,
    }
    found = (_by_default(key, plan) for key, there in keys.items() if there)
    return [each for each in found if each is not None]


def _by_default(key: str, scenario: Scenario) -> Axis | None:
    """Return an input with the default range, at its ends as wide as ``scale.misses`` leaves hits;
    None if the scenario states no positive number."""
    stated = _number(scenario, key)
    if stated is None or stated <= 0:
        return None
    low, high = stated / REACH, stated * REACH
    if key.startswith("acceptance.") and stated < 1:
        high = 1 - (1 - stated) / REACH  # a share: REACH times fewer misses
    made = Axis(key, stated, low, high)
    if key != MISSES:
        return made

    def able(value: float) -> bool:
        try:
            blocks_of(*acceptance_pool(made.changed(scenario, value, scenario.runs)))
        except UserError:
            return False
        return True

    farthest = (
        [stated * factor for factor in np.geomspace(far, near, PER_SIDE + 2).tolist()]
        for far, near in ((1 / REACH, 1 - STEP), (REACH, 1 + STEP))
    )
    low, high = (next(filter(able, tried), stated) for tried in farthest)
    return replace(made, low=low, high=high)


def _number(scenario: Scenario, key: str) -> float | None:
    if key.startswith(DEVICES):
        return scenario.scale.devices.get(key.removeprefix(DEVICES), 1.0)
    return scenario.number_at(key)


def input_of(text: str, scenario: Scenario) -> Axis:
    """Parse ``KEY`` or ``KEY=LOW:HIGH`` and check it; raises ``UserError``."""
    key, equals, ends = (part.strip() for part in text.partition("="))
    option = f"--break-even {text}"
    if not key or key.split(".")[0] in NOT_INPUTS:
        raise UserError(f"{option}: needs an input, e.g. scale.latency")
    if isinstance(_number(scenario, key), int):
        raise UserError(f"{option}: takes whole numbers, which treepipe sweep tries one by one")
    chosen = _by_default(key, scenario) or Axis(key, None, 0.5, 1.0)
    if equals:
        try:
            low, high = (float(end) for end in ends.split(":"))
        except ValueError:
            raise UserError(f"{option}: a range looks like {key}=0.5:20") from None
        if not 0 < low < high < math.inf:
            raise UserError(f"{option}: a range goes from a positive number to a larger one")
        chosen = replace(chosen, low=low, high=high)
    _check(scenario, chosen, option)
    if chosen.stated is None and not equals:
        raise UserError(
            f"{option}: the cluster states no positive number there; give a range, {key}=LOW:HIGH"
        )
    return chosen


def _check(scenario: Scenario, chosen: Axis, option: str) -> None:
    """Raise ``UserError`` now, before a long search, if the scenario rejects a value."""
    refused, values = list[UserError](), chosen.values
    for value in values:
        try:
            chosen.changed(scenario, value, scenario.runs)
        except UserError as error:
            refused.append(error)
    if refused:
        bounds = f"; {chosen.key}=LOW:HIGH bounds them" if len(refused) < len(values) else ""
        raise UserError(f"{refused[0]} ({option} tries such values{bounds})")


# --- the analysis ---------------------------------------------------------------------------------


def sensitivities(
    result: SearchResult, say: Progress, given: Sequence[str] = ()
) -> list[Sensitivity]:
    """Examine inputs, those with the largest effect first; none if no plan is feasible.

    Args:
        given: ``KEY`` or ``KEY=LOW:HIGH`` of inputs; "all" (the default) stands for all others.

    Raises:
        UserError: the scenario rejects a value.
        RunError: see ``simulate_points``.
    """
    Sensitivities.check(result.cluster, given)
    if not result.feasible:
        return []
    plan = result.winner.candidate.scenario
    own = {each.key: each for each in (input_of(text, plan) for text in given if text != ALL)}
    if ALL in given or not given:
        own = {**{each.key: each for each in inputs_of(result)}, **own}
    try:
        searches = {key: _examined(result, each) for key, each in own.items()}
        rows = side_by_side(searches, say, f"{len(own)} inputs")
    except UserError as error:
        raise UserError(f"{error} (--break-even KEY=LOW:HIGH bounds the values of KEY)") from None
    return sorted(rows.values(), key=lambda row: -row.size)


def side_by_side(searches: Mapping[str, Search[T]], say: Progress, title: str) -> dict[str, T]:
    """Carry out searches by name, each step of all of them together."""
    found, received = dict[str, T](), dict[str, Any](dict.fromkeys(searches))
    while received:
        requested = dict[str, Sequence[Scenario]]()
        for name, outcomes in received.items():
            try:
                requested[name] = searches[name].send(outcomes)
            except StopIteration as over:
                found[name] = over.value
        points = [
            Point(f"{name} {place}", scenario)
            for name, scenarios in requested.items()
            for place, scenario in enumerate(scenarios)
        ]
        simulated = simulate_points(points, say, f"{title}, {len(points)} simulations")
        received = {
            name: [simulated[f"{name} {place}"] for place in range(len(scenarios))]
            for name, scenarios in requested.items()
        }
    return {name: found[name] for name in searches}


def _examined(result: SearchResult, own: Axis) -> Search[Sensitivity]:
    """Examine one input."""
    goal, plan, stated = result.goal.name, result.winner.candidate.scenario, own.stated
    sides = [] if stated is None else [stated * (1 - STEP), stated * (1 + STEP)]
    inside = [value for value in sides if own.low <= value <= own.high]
    outcomes = yield [own.changed(plan, value, result.runs) for value in inside]
    runs = Runs.of(result.winner.outcome, goal)
    changes = {
        value: relative_change(runs, Runs.of(each, goal))
        for value, each in zip(inside, outcomes, strict=True)
    }
    down, up = (changes.get(value) for value in sides) if sides else (None, None)
    even = yield from _Turning(result, own).steps()
    less, more = (None if each is None else each.mean for each in (down, up))
    row = Sensitivity(own, less, more, None, None, even)
    larger = up if row.larger == "up" else down
    if larger is None:
        return row
    return replace(row, low=larger.low, high=larger.high, fixed=larger.fixed)


class _Turning:
    """The search for the value at which the best schedule changes: the best plan of every schedule
    at all values on the first rung's runs, and on all runs those that are not far behind the best
    one there, also at further values between."""

    def __init__(self, result: SearchResult, own: Axis) -> None:
        self._result, self._axis = result, own
        self._plans = {n: each.candidate.scenario for n, each in result.best_of_each.items()}
        self._tried = dict[float, Goals]()  # on all runs
        if {_number(plan, own.key) for plan in self._plans.values()} == {own.start}:  # as ranked
            goals = {n: each.runs(result.goal.name) for n, each in result.best_of_each.items()}
            self._tried[own.start] = goals
        self._best = dict[float, ScheduleName]()

    def steps(self) -> Search[BreakEven]:
        """Find the change that is nearest to the stated value."""
        values, start = self._axis.values, self._axis.start
        few = min(self._result.runs, self._result.cluster.search.first_runs)
        new = [value for value in values if value not in self._tried]
        first = self._tried | (yield from self._runs(dict.fromkeys(new, self._plans), few))
        near = self._contenders(first)
        self._best = {value: names[0] for value, names in near.items()}
        yield from self._look({value: names for value, names in near.items() if len(names) > 1})
        while changes := [(a, b) for a, b in pairwise(values) if self._best[a] != self._best[b]]:
            low, high = min(changes, key=lambda ends: abs(math.log(ends[0] * ends[1] / start**2)))
            between = {*near[low], *near[high]}
            yield from self._look({low: between, high: between})
            if self._best[low] != self._best[high]:
                break
        else:
            seen = [[tuple(g.values[:few]) for g in first[value].values()] for value in values]
            only, matters = self._best[start], any(each != seen[0] for each in seen)
            return BreakEven(None, None, None, only, only, matters)
        for _ in range(NEARER):
            middle = self._between(low, high)
            if middle is None:
                break
            yield from self._look({middle: between})
            # Of a third schedule between them the end next to the stated value counts.
            inner = self._best[low if start <= low else high]
            if (self._best[middle] == inner) == (start <= low):
                low = middle
            else:
                high = middle
        pair = {self._best[low], self._best[high]}
        yield from self._look(dict.fromkeys([*values, *self._tried], pair))
        even = self._crossing(low, high)
        ends = [end for end in (even.low, even.high) if end is not None]
        # Lines to the ends of far values are rough.
        yield from self._look(dict.fromkeys(ends, pair))
        return self._crossing(low, high)

    def _runs(
        self, wanted: Mapping[float, Iterable[ScheduleName]], runs: int
    ) -> Search[dict[float, Goals]]:
        """Simulate plans at values."""
        pairs = [(value, name) for value, names in wanted.items() for name in names]
        outcomes = yield [self._axis.changed(self._plans[n], value, runs) for value, n in pairs]
        found: dict[float, Goals] = {}
        for (value, name), outcome in zip(pairs, outcomes, strict=True):
            found.setdefault(value, {})[name] = Runs.of(outcome, self._result.goal.name)
        return found

    def _look(self, wanted: Mapping[float, Iterable[ScheduleName]]) -> Search[None]:
        """Simulate plans at values on all runs, unless they are known, and rank those known."""
        tried = {value: self._tried.setdefault(value, {}) for value in wanted}
        new = {v: [n for n in names if n not in tried[v]] for v, names in wanted.items()}
        found = yield from self._runs(new, self._result.runs)
        for value, known in tried.items():
            known.update(found.get(value, {}))
            self._best[value] = self._ranked(known)[0]

    def _ranked(self, goals: Goals) -> list[ScheduleName]:
        cost = self._result.goal.cost
        return sorted(goals, key=lambda name: cost(goals[name].mean))

    def _contenders(self, first: Mapping[float, Goals]) -> dict[float, list[ScheduleName]]:
        """Return the schedules that further runs might make the best at each value, the best first.
        Of plans with equal figures everywhere one is kept."""
        near, distinct = {}, dict[object, ScheduleName]()
        for name in next(iter(first.values())):
            distinct.setdefault(tuple(f"{goals[name].mean:.9g}" for goals in first.values()), name)
        for value, every in first.items():
            goals = {name: every[name] for name in distinct.values()}
            ranked = self._ranked(goals)
            far = far_behind([*goals.values()], goals[ranked[0]], self._result.goal)
            near[value] = [name for name in ranked if not far(goals[name])]
        return near

    def _between(self, low: float, high: float) -> float | None:
        """Return a value at which the best schedules of both ends may be equal; None if there is
        none, or an end is near enough."""
        leads = self._leads((low, high), low, high)
        if min(abs(lead[1]) for lead in leads.values()) < EQUAL:
            return None
        zero = zero_between(low, high, leads, 1)
        middle = zero if low < zero < high else math.sqrt(low * high)
        return middle if low < middle < high else None

    def _leads(self, values: Iterable[float], low: float, high: float) -> dict[float, Lead]:
        """Return at each value the advantage of the schedule that is the best one at ``low`` over
        the best one at ``high``."""
        leads, cost = dict[float, Lead](), self._result.goal.cost
        for value in values:
            goals = self._tried[value]
            gap = relative_gap(goals[self._best[low]], goals[self._best[high]], 1)
            mean = 0.0 if gap is None else cost(math.log1p(gap.mean))  # None: a goal of 0
            ends = [cost(math.log1p(end)) for end in (gap.ends if gap else ()) if end is not None]
            known = (min(ends), max(ends)) if len(ends) == 2 else (-math.inf, math.inf)
            leads[value] = known[0], mean, known[1]
        return leads

    def _crossing(self, low: float, high: float) -> BreakEven:
        """Interpolate the value between two at which the best schedules are equal, and find its
        interval, in which that of their difference holds 0. All are linear in logarithms."""
        leads = self._leads(sorted(self._tried), low, high)
        below = [pair for pair in pairwise(leads) if pair[0] <= low and leads[pair[0]][0] > 0]
        above = [pair for pair in pairwise(leads) if pair[1] >= high and leads[pair[1]][2] < 0]
        first = zero_between(*below[-1], leads, 0) if below else None
        last = zero_between(*above[0], leads, 2) if above else None
        value = zero_between(low, high, leads, 1)
        return BreakEven(value, first, last, self._best[low], self._best[high])


def zero_between(a: float, b: float, leads: Mapping[float, Lead], which: int) -> float:
    """Return the zero of the line between two values, or the nearer end if it lies outside."""
    at, to = leads[a][which], leads[b][which]
    share = 0.5 if at == to else 1.0 if math.isinf(at) else at / (at - to)
    return math.exp(math.log(a) + min(1.0, max(0.0, share)) * math.log(b / a))


def tornado_figure(rows: Sequence[Sensitivity], title: str, goal: str) -> Figure:
    """Plot both changes of each input as bars with labels, the larger one with its interval."""
    from matplotlib.figure import Figure

    from treepipe.results.plots import AMBER, BLACK, BLUE, clean

    figure = Figure(figsize=(9, 1.8 + 0.55 * len(rows)), layout="constrained")
    panel: Any = figure.subplots()
    styles: dict[Side, dict[str, Any]] = {
        "down": {"color": AMBER, "hatch": "///", "edgecolor": "white", "lw": 0},
        "up": {"color": BLUE},
    }
    for side, style in styles.items():
        sign = -1 if side == "down" else 1
        places = [place + sign * THICK / 2 for place in range(len(rows))]
        each = [getattr(row, side) for row in rows]
        changes = np.array([math.nan if change is None else 100 * change for change in each])
        ends = [[row.low, row.high] if row.larger == side else [None, None] for row in rows]
        beside = np.abs(100 * np.array(ends, float).T - changes)
        name = f"input {sign * STEP:+.0%}"
        lines = {"ecolor": BLACK, "elinewidth": 1.2}
        bars = panel.barh(places, changes, THICK, xerr=beside, error_kw=lines, label=name, **style)
        labels = ["" if change is None else shown(change) for change in each]
        panel.bar_label(bars, labels, padding=4, fontsize=8, color=BLACK)
    panel.set_yticks(range(len(rows)), [row.axis.label for row in rows])
    panel.invert_yaxis()
    panel.axvline(0, color=BLACK, lw=0.8)
    panel.margins(x=0.15)
    panel.set_xlabel(f"change of {in_words(goal)} (%); lines: 95 % intervals of the larger changes")
    panel.set_title(fill(title, WIDTH), loc="left", fontsize=10)
    clean(panel, "x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure
