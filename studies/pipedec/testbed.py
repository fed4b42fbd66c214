"""What the study of PipeDec simulates (section 4.3), and what follows from it by arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import Any

from treepipe.results.metrics import METRIC
from treepipe.results.show import Say
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome
from treepipe.studies.layered import (
    PIPEDEC,
    CardCluster,
    Effort,
    Levels,
    acceptance,
    build,
    find_levels,
    plain_ms,
    speed_ups,
)
from treepipe.studies.reproduction import simulated

STATIC = {"schedule.name": "specinfer"}
"""STPP: PipeDec does not say which static tree, nor that it is drafted ahead; SpecInfer's is
taken, in sequence."""
METHODS: dict[str, dict[str, Any]] = {
    "pp": {"schedule.name": "pp"},
    "stpp": STATIC,
    "pipedec": PIPEDEC,
}
STAGES = ("7-stage", "14-stage", "21-stage")
COMPARED = ("14-stage", "stpp")
"""What is simulated at further levels of acceptance."""
STOCHASTIC = 1.25
"""Times the misses of greedy decoding, at temperature 0.6, top-p 0.9, top-k 80 (assumed)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done."""

    calibration: Effort = field(default_factory=Effort)
    effort: Effort = field(default_factory=lambda: Effort(4, 300))
    widths: Sequence[int] = (8, 16, 32, 64, 128)
    children: Sequence[int] = (2, 4, 8, 16)
    together: Sequence[int] = (1, 2, 4, 8)
    requests: int = 8
    request_tokens: int = 48
    levels: Levels | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """All that was simulated.

    Attributes:
        plain_ms: time between tokens of the plain pipeline on the 14 cards.
        cases: by level ("code", "middle", "stochastic", or the number of one of the six), then
            by number of stages or "stpp", the static tree.
        grid: by width and candidates per node.
        together: by number of requests side by side and method.
    """

    levels: Levels
    plain_ms: float
    cases: Mapping[str, Mapping[str, Outcome]]
    grid: Mapping[tuple[int, int], Outcome]
    together: Mapping[tuple[int, str], Outcome]

    def times(self, name: str) -> list[Interval]:
        """Time between tokens at each of the six levels."""
        numbers = range(len(self.levels.six))
        return [self.cases[str(number)][name].metrics[METRIC] for number in numbers]

    def over_plain(self, name: str) -> list[Interval]:
        """Speed-up per level."""
        return [time.inverse(self.plain_ms) for time in self.times(name)]

    def over_static(self, name: str) -> list[Interval]:
        """Speed-up per level."""
        return speed_ups(self.times("stpp"), self.times(name))

    @property
    def best(self) -> tuple[int, int]:
        """Width and candidates per node."""
        return min(self.grid, key=lambda pair: self.grid[pair].metrics[METRIC].mean)

    @property
    def gain(self) -> float:
        """The gain of 14 stages over 7: how many more tokens come in the same time, as a share."""
        seven, longer = (fmean(t.mean for t in self.times(n)) for n in STAGES[:2])
        return seven / longer - 1


def find(settings: Settings, say: Say) -> Found:
    """Calibrate, and simulate everything."""
    levels = settings.levels or find_levels(settings.calibration, say)
    cluster = build("fourteen")
    middle = acceptance(fmean(levels.six))
    cases = _cases(cluster, levels, settings.effort)
    grid, together = _grid(cluster, settings, middle), _together(cluster, settings, middle)
    parts: dict[Any, Scenario] = {**cases, **grid, **together}
    outcomes = simulated({str(label): scenario for label, scenario in parts.items()}, say)
    by_level: dict[str, dict[str, Outcome]] = {}
    for level, name in cases:
        by_level.setdefault(level, {})[name] = outcomes[str((level, name))]
    return Found(
        levels,
        plain_ms(cluster),
        by_level,
        {pair: outcomes[str(pair)] for pair in grid},
        {pair: outcomes[str(pair)] for pair in together},
    )


def _cases(cluster: CardCluster, levels: Levels, effort: Effort) -> dict[tuple[str, str], Scenario]:
    """All systems at the six levels, and some at further ones."""
    systems: dict[str, tuple[CardCluster, dict[str, Any]]] = {
        "7-stage": (cluster, {**PIPEDEC, "schedule.groups": 2}),
        "14-stage": (cluster, PIPEDEC),
        "21-stage": (build("twenty-one"), PIPEDEC),
        "stpp": (cluster, STATIC),
    }
    middle = fmean(levels.six)
    cases = {str(number): level for number, level in enumerate(levels.six)}
    cases |= {"code": levels.humaneval_x, "middle": middle, "stochastic": STOCHASTIC * middle}
    return {
        (case, name): where.scenario(**schedule, **acceptance(level), **effort.changes())
        for name, (where, schedule) in systems.items()
        for case, level in cases.items()
        if case.isdigit() or name in COMPARED
    }


def _grid(
    cluster: CardCluster, settings: Settings, level: dict[str, Any]
) -> dict[tuple[int, int], Scenario]:
    """Widths by candidates per node, with 14 stages."""
    base = cluster.scenario(**PIPEDEC, **level, **settings.effort.changes())
    return {
        (width, count): base.with_(**{"schedule.width": width, "schedule.children": count})
        for width, count in product(settings.widths, settings.children)
    }


def _together(
    cluster: CardCluster, settings: Settings, level: dict[str, Any]
) -> dict[tuple[int, str], Scenario]:
    """Scenarios with as many clients as requests may run side by side."""
    return {
        (count, method): cluster.scenario(
            **schedule,
            **level,
            **{"workload.concurrency": count, "workload.requests": settings.requests},
            **Effort(3, settings.request_tokens).changes(),
        )
        for method, schedule in METHODS.items()
        for count in settings.together
    }
