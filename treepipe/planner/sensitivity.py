"""Which inputs the best plan's figure hangs on: each of them a tenth smaller and larger, alone.

Law of this file: an input is changed by a key of the scenario (mostly a factor of ``[scale]``), and
simulated on the ranking's own runs and texts; so a change is due to the input alone (other misses
of a recorded pool draw other passages from the same seeds). Neither limits nor parameters are
looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from treepipe.core.errors import UserError
from treepipe.planner.analysis import Analysis
from treepipe.planner.gaps import Runs, relative_change, shown, shown_interval
from treepipe.planner.halving import Found
from treepipe.results.metrics import in_words
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.statistics import ROUNDING
from treepipe.scenario.distributions import ArrivalTrace
from treepipe.scenario.scale import multiplied, named_devices
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Point, simulate_points

if TYPE_CHECKING:
    from treepipe.report.page import Picture

STEP = 0.1
"""The relative change of an input."""
Side: TypeAlias = Literal["down", "up"]
FACTORS = (1 - STEP, 1 + STEP)
RATE = "workload.arrivals.rate_per_s"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What an input does to the goal.

    Attributes:
        key: of the scenario, a factor or the arrivals' rate.
        down: relative change of the goal where the input is 10 % less.
        up: the same for 10 % more.
        low: end of the larger change's 95 % interval, over the paired runs and for this input
            alone; None where the runs cannot be paired.
        high: its other end.
    """

    key: str
    down: float
    up: float
    low: float | None
    high: float | None

    @property
    def size(self) -> float:
        """The larger of both changes, without its sign."""
        return max(abs(self.down), abs(self.up))

    @property
    def larger(self) -> Side:
        """The side of the larger change; up where both are the same but for rounding."""
        return "up" if abs(self.up) >= abs(self.down) - ROUNDING else "down"

    @property
    def label(self) -> str:
        """The input in words."""
        return input_label(self.key)


@dataclass(frozen=True, slots=True)
class SensitivityAnalysis(Analysis):
    """``--sensitivity``: the inputs, the one that matters most first."""

    rows: Sequence[Sensitivity] = ()
    heading: ClassVar[str] = "What the answer hangs on"

    @classmethod
    def run(cls, found: Found, say: Callable[[str, int], None]) -> SensitivityAnalysis:
        return cls(sensitivities(found, say))

    def as_dict(self) -> dict[str, Any]:
        return {"sensitivity": [asdict(row) for row in self.rows]}

    def tables(self, found: Found) -> list[Sheet]:
        """A row per input with what a change of it does to the goal."""
        if not self.rows:
            return []
        changes = (f"-{STEP:.0%}", f"+{STEP:.0%}", "95 % interval of the larger change")
        sheet = Sheet("", _title(found), [*words("input"), *figures(*changes)])
        for row in self.rows:
            interval = shown_interval(row.low, row.high)
            sheet.add(row.label, shown(row.down), shown(row.up), interval)
        return [sheet]

    def pictures(self, found: Found) -> list[Picture]:
        """The tornado."""
        from treepipe.planner.sensitivity_plot import tornado_figure
        from treepipe.report.page import Picture

        if not self.rows:
            return []
        title, goal = _title(found), found.cluster.search.goal
        figure = tornado_figure(self.rows, title, goal)
        return [Picture(figure, f"a pair of bars per input: {title}")]


def _title(found: Found) -> str:
    goal, plan = in_words(found.cluster.search.goal), found.best.candidate.label
    return f"{plan}: {goal} as one input changes ({found.runs} paired runs)"


def sensitivities(found: Found, say: Callable[[str, int], None]) -> list[Sensitivity]:
    """What each input does to the best plan's goal, the largest first; none if no plan is feasible.

    Raises:
        UserError: an input cannot be so much larger.
        RunError: as ``simulate_points``.
    """
    if not found.feasible:
        return []
    goal, plan = found.cluster.search.goal, found.best.candidate.scenario.with_(runs=found.runs)
    keys = input_keys(plan)
    points = [
        Point(f"{key} {factor}", with_input(plan, key, factor))
        for key in keys
        for factor in FACTORS
    ]
    try:
        outcomes = simulate_points(points, say, f"best plan, {len(keys)} inputs +-{STEP:.0%}")
    except UserError as error:
        raise UserError(f"{error} (--sensitivity takes each input {STEP:.0%} larger)") from None
    stated = Runs.of(found.best.outcome, goal)
    sides = iter([Runs.of(outcome, goal) for outcome in outcomes.values()])
    rows = [_sensitivity(key, stated, next(sides), next(sides)) for key in keys]
    return sorted(rows, key=lambda row: -row.size)


def input_keys(scenario: Scenario) -> list[str]:
    """The inputs that are changed; a trace's arrivals are as they were, and are not."""
    keys = ["scale.stages", "scale.drafts"]
    devices = named_devices(scenario)
    if len(devices) > 1:
        keys += [f"scale.devices.{name}" for name in devices]
    keys += ["scale.latency", "scale.bandwidth"]
    if scenario.acceptance is not None:
        keys.append("scale.misses")
    if not isinstance(scenario.workload.arrivals, (ArrivalTrace, type(None))):
        keys.append(RATE)
    return keys


def with_input(scenario: Scenario, key: str, factor: float) -> Scenario:
    """The scenario with an input so much larger, on top of the scenario's own factor."""
    arrivals = scenario.workload.arrivals
    if key != RATE:
        table = multiplied(scenario.scale, {key.removeprefix("scale."): factor})
        return scenario.with_(scale=table)
    assert arrivals is not None
    assert not isinstance(arrivals, ArrivalTrace)
    return scenario.with_(**{RATE: arrivals.rate_per_s * factor})


def input_label(key: str) -> str:
    """
    >>> input_label("scale.devices.l40"), input_label("scale.misses")
    ('times of l40', 'misses of acceptance')
    """
    if key.startswith("scale.devices."):
        return f"times of {key.removeprefix('scale.devices.')}"
    return {
        "scale.stages": "times of all stages",
        "scale.drafts": "times of all drafts",
        "scale.latency": "link latency",
        "scale.bandwidth": "link bandwidth",
        "scale.misses": "misses of acceptance",
        RATE: "arrival rate",
    }[key]


def _sensitivity(key: str, stated: Runs, less: Runs, more: Runs) -> Sensitivity:
    changes = {"down": relative_change(stated, less), "up": relative_change(stated, more)}
    row = Sensitivity(key, changes["down"].mean, changes["up"].mean, None, None)
    larger = changes[row.larger]
    return replace(row, low=larger.low, high=larger.high)
