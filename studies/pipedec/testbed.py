"""What the study of PipeDec simulates (section 4.3), and what follows from it by arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    fourteen,
    plain_ms,
    speed_ups,
    twenty_one,
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
THROUGHPUT = "throughput_tokens_s"
STOCHASTIC = 1.25
"""Times the misses of greedy decoding, at temperature 0.6, top-p 0.9, top-k 80 (assumed)."""


@dataclass(frozen=True, slots=True)
class Found:
    """All that was simulated.

    Attributes:
        plain_ms: time between tokens of the plain pipeline on the 14 cards.
        times: by number of stages, and of the static tree ("stpp"): per level, in milliseconds.
        cases: with 14 stages and of the static tree: at further levels.
        grid: by width and candidates per node.
        together: by method and number of requests side by side.
    """

    levels: Levels
    plain_ms: float
    times: Mapping[str, Sequence[Interval]]
    cases: Mapping[str, Mapping[str, Outcome]]
    grid: Mapping[tuple[int, int], Outcome]
    together: Mapping[tuple[str, int], Outcome]
    cluster: CardCluster

    def over_plain(self, name: str) -> list[Interval]:
        """Speed-up per level."""
        return [time.inverse(self.plain_ms) for time in self.times[name]]

    def over_static(self, name: str) -> list[Interval]:
        """Speed-up per level."""
        return speed_ups(self.times["stpp"], self.times[name])

    @property
    def best(self) -> tuple[int, int]:
        """Width and candidates per node."""
        return min(self.grid, key=lambda pair: self.grid[pair].metrics[METRIC].mean)

    @property
    def gain(self) -> float:
        """The gain of 14 stages over 7: how many more tokens come in the same time, as a share."""
        seven, longer = (fmean(t.mean for t in self.times[n]) for n in STAGES[:2])
        return seven / longer - 1


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


def find(settings: Settings, say: Say) -> Found:
    """Calibrate, and simulate everything."""
    levels = settings.levels or find_levels(settings.calibration, say)
    middle = fmean(levels.six)
    cluster, longer = build(fourteen()), build(twenty_one())
    systems: dict[str, tuple[CardCluster, dict[str, Any]]] = {
        "7-stage": (cluster, {**PIPEDEC, "schedule.groups": 2}),
        "14-stage": (cluster, PIPEDEC),
        "21-stage": (longer, PIPEDEC),
        "stpp": (cluster, STATIC),
    }
    cases = {str(number): level for number, level in enumerate(levels.six)}
    cases |= {"code": levels.humaneval_x, "middle": middle, "stochastic": STOCHASTIC * middle}
    scenarios = {
        f"{name}/{case}": where.scenario(
            **schedule, **acceptance(level), **settings.effort.changes()
        )
        for name, (where, schedule) in systems.items()
        for case, level in cases.items()
        if case.isdigit() or name in ("14-stage", "stpp")
    }
    scenarios |= _grid(cluster, settings, acceptance(middle))
    scenarios |= _together(cluster, settings, acceptance(middle))
    outcomes = simulated(scenarios, say)
    return Found(
        levels,
        plain_ms(cluster),
        {
            name: [outcomes[f"{name}/{n}"].metrics[METRIC] for n in range(len(levels.six))]
            for name in systems
        },
        {
            case: {name: outcomes[f"{name}/{case}"] for name in ("14-stage", "stpp")}
            for case in ("code", "middle", "stochastic")
        },
        {
            (width, count): outcomes[f"width={width}/children={count}"]
            for width in settings.widths
            for count in settings.children
        },
        {
            (method, count): outcomes[f"together/{method}/{count}"]
            for method in METHODS
            for count in settings.together
        },
        cluster,
    )


def _grid(cluster: CardCluster, settings: Settings, level: dict[str, Any]) -> dict[str, Scenario]:
    """Widths by candidates per node, with 14 stages."""
    base = cluster.scenario(**PIPEDEC, **level, **settings.effort.changes())
    return {
        f"width={width}/children={count}": base.with_(
            **{"schedule.width": width, "schedule.children": count}
        )
        for width in settings.widths
        for count in settings.children
    }


def _together(
    cluster: CardCluster, settings: Settings, level: dict[str, Any]
) -> dict[str, Scenario]:
    """Scenarios with as many clients as requests may run side by side."""
    return {
        f"together/{method}/{count}": cluster.scenario(
            **schedule,
            **level,
            **{"workload.concurrency": count, "workload.requests": settings.requests},
            **Effort(3, settings.request_tokens).changes(),
        )
        for method, schedule in METHODS.items()
        for count in settings.together
    }
