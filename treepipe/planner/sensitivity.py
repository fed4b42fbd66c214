"""Sensitivity analysis: the change of the best plan's goal as each input is a tenth smaller or
larger.

An input is changed by a key of the scenario (mostly a factor of ``[scale]``) on the ranking's own
runs and texts, so that differences come from the input alone (other misses of a recorded pool draw
other passages from the same seeds). Limits are not checked again, and parameters are not searched
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from treepipe.core.errors import UserError
from treepipe.planner.analysis import Finding
from treepipe.planner.gaps import Runs, relative_change, shown, shown_interval
from treepipe.planner.halving import SearchResult
from treepipe.progress import Progress
from treepipe.results.metrics import in_words
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.statistics import ROUNDING, Fixed, Interval
from treepipe.scenario.scale import Estimated, multiplied, named_devices
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Point, simulate_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from treepipe.report.page import Picture

STEP = 0.1
"""Relative change of an input."""
THICK = 0.36
"""Height of a bar; rows are 1 high."""
WIDTH = 80
"""Width of a title in characters; a plan's label may be longer than the panel."""
Side: TypeAlias = Literal["down", "up"]
FACTORS = (1 - STEP, 1 + STEP)
RATE = "workload.arrivals.rate_per_s"
"""Key of the arrival rate, which neither a closed loop nor a trace has."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Relative changes of the goal as one input changes.

    Attributes:
        key: key of the scenario, a factor or the arrivals' rate.
        down, up: changes of the goal with 10 % less and 10 % more of the input.
        low, high, fixed: 95 % interval of the larger change, over the paired runs and for this
            input alone, as in ``Interval``.
    """

    key: str
    down: float
    up: float
    low: float | None
    high: float | None
    fixed: Fixed = field(default="", repr=False)

    @property
    def size(self) -> float:
        """Magnitude of the larger change."""
        return max(abs(self.down), abs(self.up))

    @property
    def larger(self) -> Side:
        """The side of the larger change; up if both are equal but for rounding."""
        return "up" if abs(self.up) >= abs(self.down) - ROUNDING else "down"

    @property
    def label(self) -> str:
        """The input in words."""
        return input_label(self.key)


@dataclass(frozen=True, slots=True)
class Sensitivities(Finding):
    """The inputs, sorted by the size of their effect, the largest first."""

    rows: Sequence[Sensitivity] = ()

    @classmethod
    def draws(cls, given: Sequence[str]) -> bool:
        return True

    @classmethod
    def run(cls, result: SearchResult, say: Progress, given: Sequence[str] = ()) -> Sensitivities:
        return cls(sensitivities(result, say))

    def as_dict(self) -> dict[str, Any]:
        return {"sensitivity": [without_fixed(row) for row in self.rows]}

    def tables(self, result: SearchResult) -> list[Sheet]:
        if not self.rows:
            return []
        changes = (f"-{STEP:.0%}", f"+{STEP:.0%}", "95 % interval of the larger change")
        sheet = Sheet(_title(result), [*words("input"), *figures(*changes)])
        for row in self.rows:
            interval = shown_interval(Interval(row.size, row.low, row.high, row.fixed))
            sheet.add(row.label, shown(row.down), shown(row.up), interval)
        return [sheet.filled]

    def pictures(self, result: SearchResult) -> list[Picture]:
        from treepipe.report.page import Picture

        if not self.rows:
            return []
        title = _title(result)
        figure = tornado_figure(self.rows, title, result.goal.name, STEP)
        return [Picture(figure, f"a pair of bars per input: {title}")]


def without_fixed(row: Any) -> dict[str, Any]:
    """Return a row of an analysis as files hold it."""
    return {key: value for key, value in asdict(row).items() if key != "fixed"}


def _title(result: SearchResult) -> str:
    goal, plan = result.goal.in_words, result.best.candidate.label
    return f"{plan}: {goal} as one input changes ({result.runs} paired runs)"


def sensitivities(result: SearchResult, say: Progress) -> list[Sensitivity]:
    """Measure each input's effect on the best plan's goal, the largest first, if one is feasible.

    Raises:
        UserError: the scenario rejects an input's larger value.
        RunError: see ``simulate_points``.
    """
    if not result.feasible:
        return []
    goal, plan = result.goal.name, result.best.candidate.scenario.with_(runs=result.runs)
    keys = input_keys(plan)
    if Estimated("rows") in result.best.outcome.estimates:
        keys.append("scale.rows")
    points = [
        Point(f"{key} {factor}", with_input(plan, key, factor))
        for key in keys
        for factor in FACTORS
    ]
    try:
        outcomes = simulate_points(points, say, f"best plan, {len(keys)} inputs +-{STEP:.0%}")
    except UserError as error:
        raise UserError(f"{error} (--sensitivity takes each input {STEP:.0%} larger)") from None
    stated = Runs.of(result.best.outcome, goal)
    changes = [relative_change(stated, Runs.of(each, goal)) for each in outcomes.values()]
    rows = [_row(*each) for each in zip(keys, changes[::2], changes[1::2], strict=True)]
    return sorted(rows, key=lambda row: -row.size)


def _row(key: str, down: Interval, up: Interval) -> Sensitivity:
    row = Sensitivity(key, down.mean, up.mean, up.low, up.high, up.fixed)
    if row.larger == "up":
        return row
    return replace(row, low=down.low, high=down.high, fixed=down.fixed)


def input_keys(scenario: Scenario) -> list[str]:
    """List the keys of the inputs to change; arrivals of a trace are not changed."""
    keys = ["scale.stages", "scale.drafts"]
    devices = named_devices(scenario)
    if len(devices) > 1:
        keys += [f"scale.devices.{name}" for name in devices]
    keys += ["scale.latency", "scale.bandwidth"]
    if scenario.acceptance is not None:
        keys.append("scale.misses")
    if scenario.number_at(RATE) is not None:
        keys.append(RATE)
    return keys


def with_input(scenario: Scenario, key: str, factor: float) -> Scenario:
    """Multiply an input by ``factor``, on top of the scenario's own factor."""
    if key == RATE:
        return scenario.with_(**{RATE: (scenario.number_at(RATE) or 0.0) * factor})
    table = multiplied(scenario.scale, {key.removeprefix("scale."): factor})
    return scenario.with_(scale=table)


LABELS = {
    "scale.stages": "times of all stages",
    "scale.drafts": "times of all drafts",
    "scale.latency": "link latency",
    "scale.bandwidth": "link bandwidth",
    "scale.misses": "misses of acceptance",
    "scale.rows": "times of unmeasured rows",
    RATE: "arrival rate",
}


def input_label(key: str) -> str:
    """
    >>> input_label("scale.devices.l40"), input_label("scale.misses")
    ('times of l40', 'misses of acceptance')
    """
    return LABELS.get(key) or f"times of {key.removeprefix('scale.devices.')}"


def tornado_figure(rows: Sequence[Sensitivity], title: str, goal: str, step: float) -> Figure:
    """Plot both changes by ``step`` as bars with labels, the larger one with its interval."""
    from matplotlib.figure import Figure

    from treepipe.results.plots import AMBER, BLACK, BLUE, clean

    figure = Figure(figsize=(9, 1.8 + 0.55 * len(rows)), layout="constrained")
    panel: Any = figure.subplots()
    styles: dict[str, dict[str, Any]] = {
        "down": {"color": AMBER, "hatch": "///", "edgecolor": "white", "lw": 0},
        "up": {"color": BLUE},
    }
    for side, style in styles.items():
        sign = -1 if side == "down" else 1
        places = [row + sign * THICK / 2 for row in range(len(rows))]
        changes = [getattr(row, side) for row in rows]
        name = f"input {sign * step:+.0%}"
        panel.barh(places, [100 * each for each in changes], THICK, label=name, **style)
        for place, row, change in zip(places, rows, changes, strict=True):
            _mark(panel, place, row, change, larger=row.larger == side)
    panel.set_yticks(range(len(rows)), [row.label for row in rows])
    panel.invert_yaxis()
    panel.axvline(0, color=BLACK, lw=0.8)
    panel.margins(x=0.15)
    panel.set_xlabel(f"change of {in_words(goal)} (%); lines: 95 % intervals of the larger changes")
    panel.set_title(fill(title, WIDTH), loc="left", fontsize=10)
    clean(panel, "x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _mark(panel: Any, place: float, row: Sensitivity, change: float, *, larger: bool) -> None:
    """Write the change beyond the bar's end; draw the interval if the bar is the larger one."""
    from treepipe.results.plots import BLACK

    ends = [change]
    if larger and row.size and row.low is not None and row.high is not None:
        panel.plot([100 * row.low, 100 * row.high], [place] * 2, color=BLACK, lw=1.2)
        ends += [row.low, row.high]
    right = change >= 0
    panel.annotate(
        shown(change),
        (100 * (max(ends) if right else min(ends)), place),
        xytext=(4 if right else -4, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        fontsize=8,
        color=BLACK,
    )
