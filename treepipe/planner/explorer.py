"""What a report's reader may move: the best plans simulated beforehand on a small grid of inputs.

Every figure is simulated, none interpolated: the plans' parameters stay as they are, inputs move,
and what this does on the first runs multiplies the ranking's figure, as in ``uncertain.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from treepipe.core.errors import UserError
from treepipe.planner.gaps import shown
from treepipe.planner.halving import Ranked, SearchResult
from treepipe.progress import Progress
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.show import number
from treepipe.scenario.scale import multiplied
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance_pool import acceptance_pool
from treepipe.sim.points import Point, simulate_points

PLANS = 4
"""The best plan of so many schedules can be compared."""
MATTERS = 0.01
"""Relative change of a plan's goal below which an input is not worth a slider."""
Factors: TypeAlias = tuple[float, ...]
"""A factor for each input."""


@dataclass(frozen=True, slots=True)
class Slider:
    """An input of a scenario: its name, the keys of ``[scale]`` that hold it, the factors tried."""

    name: str
    keys: tuple[str, ...]
    factors: Factors = (0.5, 1.0, 2.0)

    def at(self, factor: float) -> str:
        """Say where the input stands."""
        return "as stated" if factor == 1 else f"{factor:g} times"


SLIDERS = (
    Slider("link latency", ("latency",), (0.25, 1.0, 4.0)),
    Slider("link bandwidth", ("bandwidth",), (0.25, 1.0, 4.0)),
    Slider("times of all devices", ("stages", "drafts")),
    Slider("misses of acceptance", ("misses",), (0.5, 1.0, 1.5)),
)


@dataclass(frozen=True, slots=True)
class Explored:
    """The goal of each plan at places of a grid.

    Attributes:
        plans: the best plan of each schedule, as the ranking has them.
        singles: inputs that were tried alone, the others as stated.
        inputs: those that matter; the grid is the product of their factors.
        values: by place in ``singles``, the goal of each plan.
    """

    result: SearchResult
    plans: Sequence[Ranked]
    singles: Sequence[Slider]
    inputs: Sequence[Slider]
    values: Mapping[Factors, Sequence[float]]

    def sentences(self) -> list[str]:
        idle = [each.name for each in self.singles if each not in self.inputs]
        found = [
            f"Simulated: the best plan of {len(self.plans)} schedules, its parameters as they are, "
            f"on {self.result.cluster.search.first_runs} runs; each change is applied to the "
            f"ranking's figure."
        ]
        if idle:
            found.append(f"No plan changes by {MATTERS:.0%} with: {', '.join(idle)}.")
        return found

    def table(self) -> Sheet:
        """Show each input alone: what readers without a script see."""
        title = f"{self.result.goal.in_words} ({self.result.goal.unit}) as one input changes"
        names = [each.candidate.schedule for each in self.plans]
        sheet = Sheet(title, [*words("input", ""), *figures(*names)])
        stated = self.values[(1.0,) * len(self.singles)]
        sheet.add("all", "as stated", *map(number, stated))
        for index, each in enumerate(self.singles):
            for factor in each.factors:
                if factor != 1:
                    values = self.values[_alone(self.singles, index, factor)]
                    changes = [f"{number(v)} ({shown(v / s - 1)})" if s else number(v)
                               for v, s in zip(values, stated, strict=True)]  # fmt: skip
                    sheet.add(each.name, each.at(factor), *changes)
        return sheet

    def to_json(self) -> dict[str, Any] | None:
        """Return what the page's script reads; None if no input matters."""
        if not self.inputs:
            return None
        places = [_whole(self.singles, self.inputs, place) for place in _grid(self.inputs)]
        return {
            "inputs": [
                {"name": each.name, "levels": [each.at(factor) for factor in each.factors],
                 "stated": each.factors.index(1.0)}
                for each in self.inputs
            ],
            "plans": [each.label for each in self.plans],
            "unit": self.result.goal.unit,
            "less": self.result.goal.less_is_better,
            "values": [list(self.values[place]) for place in places],
        }  # fmt: skip


def explore(result: SearchResult, say: Progress) -> Explored | None:
    """Simulate the best plans on the grid; None if no plan keeps the limits.

    Raises:
        UserError: a plan refuses an input's value.
        RunError: see ``simulate_points``.
    """
    if not result.feasible or result.interrupted:
        return None
    first: dict[str, Ranked] = {}
    for each in result.ranking:
        first.setdefault(each.candidate.schedule, each)
    plans = list(first.values())[:PLANS]
    singles = [each for each in SLIDERS if _applies(each, plans)]
    alone = [_alone(singles, i, f) for i, each in enumerate(singles) for f in each.factors]
    values = _simulated(result, plans, singles, alone, say)
    stated = values[(1.0,) * len(singles)]
    inputs = [
        each
        for index, each in enumerate(singles)
        if any(
            abs(value - own) > MATTERS * own
            for factor in each.factors
            for value, own in zip(values[_alone(singles, index, factor)], stated, strict=True)
        )
    ]
    grid = [_whole(singles, inputs, place) for place in _grid(inputs)]
    rest = [place for place in grid if place not in values]
    return Explored(
        result,
        plans,
        singles,
        inputs,
        {**values, **(_simulated(result, plans, singles, rest, say) if rest else {})},
    )


def _applies(each: Slider, plans: Sequence[Ranked]) -> bool:
    """Return whether the plans have the input, and their hit ratios leave room for the misses."""
    scenarios = [plan.candidate.scenario for plan in plans]
    if each.keys != ("misses",):
        return True
    if any(plan.acceptance is None for plan in scenarios):
        return False
    try:
        for plan in scenarios:
            acceptance_pool(_at(plan, [each], (max(each.factors),)))
    except UserError:
        return False
    return True


def _simulated(
    result: SearchResult,
    plans: Sequence[Ranked],
    inputs: Sequence[Slider],
    places: Sequence[Factors],
    say: Progress,
) -> dict[Factors, list[float]]:
    """Return the goal of each plan at each place: the ranking's, times the place's effect."""
    goal, runs = result.goal.name, result.cluster.search.first_runs
    stated = (1.0,) * len(inputs)
    places = list(dict.fromkeys([stated, *places]))
    points = [
        Point(f"{n}/{i}", _at(each.candidate.scenario, inputs, place).with_(runs=runs))
        for n, each in enumerate(plans)
        for i, place in enumerate(places)
    ]
    outcomes = simulate_points(points, say, f"{len(plans)} plans, {len(places)} changes of inputs")
    means = {label: outcome.metrics[goal].mean for label, outcome in outcomes.items()}
    return {
        place: [
            result.value(each).mean
            * (means[f"{n}/{i}"] / means[f"{n}/0"] if means[f"{n}/0"] else 1)
            for n, each in enumerate(plans)
        ]
        for i, place in enumerate(places)
    }


def _at(scenario: Scenario, inputs: Sequence[Slider], place: Factors) -> Scenario:
    """Multiply the inputs by their factors, on top of the scenario's own."""
    factors = {key: factor for each, factor in zip(inputs, place, strict=True) for key in each.keys}
    changed = {key: factor for key, factor in factors.items() if factor != 1}
    return scenario.with_(scale=multiplied(scenario.scale, changed)) if changed else scenario


def _grid(inputs: Sequence[Slider]) -> list[Factors]:
    return list(itertools.product(*(each.factors for each in inputs)))


def _alone(inputs: Sequence[Slider], index: int, factor: float) -> Factors:
    return tuple(factor if i == index else 1.0 for i in range(len(inputs)))


def _whole(singles: Sequence[Slider], inputs: Sequence[Slider], place: Factors) -> Factors:
    """Return a place of the inputs that matter as one of all inputs."""
    factors = dict(zip((each.name for each in inputs), place, strict=True))
    return tuple(factors.get(each.name, 1.0) for each in singles)
