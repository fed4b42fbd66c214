"""PipeDec, reproduced: 7, 14 and 21 stages, width and candidates, requests side by side.

(PipeDec, section 4.3.) Calibrated on the range of its speed-ups with 14 stages; means, the static
tree, other depths, the best parameters and the throughput are predictions. What is said of it is
in ``pipedec_words.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from treepipe.results.metrics import METRIC
from treepipe.results.show import Say
from treepipe.sim.points import Outcome, Point, simulate_points
from treepipe.studies.layered.calibration import (
    PIPEDEC,
    Effort,
    Levels,
    acceptance,
    build,
    find_levels,
    plain_ms,
)
from treepipe.studies.layered.cluster import SCENARIO, Cluster, fourteen, twenty_one
from treepipe.studies.layered.pipedec_found import STOCHASTIC, Found
from treepipe.studies.layered.pipedec_page import page
from treepipe.studies.study import StudyResult

STATIC = ("schedule.name=specinfer",)
"""STPP: PipeDec does not say which static tree; SpecInfer's is taken."""
METHODS = {"pp": ("schedule.name=pp",), "stpp": STATIC, "pipedec": PIPEDEC}


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


def run(say: Say, full: bool) -> StudyResult:
    """6 runs of 300 tokens to calibrate and 4 for the rest, or 8 of 500 and 5 of 400."""
    return study(Settings(Effort(8, 500), Effort(5, 400)) if full else Settings(), say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Calibrate, simulate everything, and write the page."""
    levels = settings.levels or find_levels(settings.calibration, say)
    middle = fmean(levels.six)
    cluster, longer = build(fourteen()), build(twenty_one())
    systems: dict[str, tuple[Cluster, Sequence[str]]] = {
        "7-stage": (cluster, (*PIPEDEC, "schedule.group_size=2")),
        "14-stage": (cluster, PIPEDEC),
        "21-stage": (longer, PIPEDEC),
        "stpp": (cluster, STATIC),
    }
    cases = {str(number): level for number, level in enumerate(levels.six)}
    cases |= {"code": levels.humaneval_x, "middle": middle, "stochastic": STOCHASTIC * middle}
    points = [
        Point(f"{name}/{case}", SCENARIO, (*where.settings(), *schedule, acceptance(level)))
        for name, (where, schedule) in systems.items()
        for case, level in cases.items()
        if case.isdigit() or name in ("14-stage", "stpp")
    ]
    points = [
        replace(each, settings=(*each.settings, *settings.effort.settings())) for each in points
    ]
    points += _grid(cluster, settings, acceptance(middle))
    points += _together(cluster, settings, acceptance(middle))
    outcomes = simulate_points(points, say)
    return page(
        Found(
            levels,
            plain_ms(cluster),
            {
                name: [outcomes[f"{name}/{n}"].metrics[METRIC] for n in range(len(levels.six))]
                for name in systems
            },
            {case: _pair(outcomes, case) for case in ("code", "middle", "stochastic")},
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
    )


def _pair(outcomes: Mapping[str, Outcome], case: str) -> dict[str, Outcome]:
    return {name: outcomes[f"{name}/{case}"] for name in ("14-stage", "stpp")}


def _grid(cluster: Cluster, settings: Settings, level: str) -> list[Point]:
    """Widths by candidates per node, with 14 stages."""
    return [
        Point(
            f"width={width}/children={count}",
            SCENARIO,
            (
                *cluster.settings(),
                *PIPEDEC,
                level,
                f"schedule.width={width}",
                f"schedule.children={count}",
                *settings.effort.settings(),
            ),
        )
        for width in settings.widths
        for count in settings.children
    ]


def _together(cluster: Cluster, settings: Settings, level: str) -> list[Point]:
    """As many clients as requests may run side by side."""
    return [
        Point(
            f"together/{method}/{count}",
            SCENARIO,
            (
                *cluster.settings(),
                *schedule,
                level,
                f"workload.concurrency={count}",
                f"workload.requests={settings.requests}",
                f"workload.new_tokens={settings.request_tokens}",
                "runs=3",
            ),
        )
        for method, schedule in METHODS.items()
        for count in settings.together
    ]
