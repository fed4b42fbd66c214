"""What the study of SpecPipe simulates (sections 3.3.3 and 4), and what follows by arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from treepipe.results.metrics import METRIC
from treepipe.results.show import Say
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome
from treepipe.sim.theory.layered import specpipe_even_tbt_ms
from treepipe.studies.layered import (
    PRUNE_MS,
    SHARPNESS,
    SPECINFER,
    SPECPIPE,
    CardCluster,
    Effort,
    Levels,
    acceptance,
    build,
    find_levels,
    pass_ms,
    plain_ms,
    right,
)
from treepipe.studies.reproduction import published, simulated
from treepipe.studies.study import Measuring

SERVERS = ("one-server", "two-server")
EAGLE_ROWS = 60
"""Of an EAGLE-2 tree, with the root."""
EAGLE = {
    "schedule.name": "eagle",
    "schedule.tree_size": EAGLE_ROWS - 1,
    "schedule.tree_depth": 6,
    "schedule.top_k": 10,
    "acceptance": {"source": "profile", "name": "reference-eagle"},
}
"""Its head's guesses are the bundled one's."""
EAGLE_PASSES = 7
FLAT = 0.03
"""Widths this near to the best one are called as good."""
SCHEDULES = (
    "specinfer",
    "specinfer_draft_in_sequence",
    "specinfer_hidden_draft",
    "eagle",
    "eagle_own_device",
    "specpipe",
)
"""What is simulated on HumanEval-X."""
SURE_OFF_PATH = "off the path as sure as on it"
LARGER_DRAFT = "drafted by the 8B model"
GUESSING: dict[str, dict[str, Any]] = {
    "nothing": {},
    SURE_OFF_PATH: {"off_path_sharpness": SHARPNESS},
    "off the path as sure as recorded": {"off_path_sharpness": 1.0},
    "on the path, too, as unsure as recorded": {"sharpness": 1.0},
    "a look at one position does not tell of the next": {"block": 1},
    "further candidates as the bundled pair's": {"hit_ratio": None},
}
"""What is changed of the acceptance."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done; with ``measuring``, the widths are also run on real processes."""

    effort: Effort = field(default_factory=Effort)
    widths: Sequence[int] = (2, 4, 8, 16, 32, 48, 64, 80, 128)
    children: Sequence[int] = (2, 4, 8)
    batches: Sequence[int] = (1, 2, 4, 8, 16, 32)
    batch_tokens: int = 48
    levels: Levels | None = None
    measuring: Measuring | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """All that was simulated.

    Attributes:
        plain_ms: time between tokens of the plain pipeline, by server.
        code: by server and schedule, on HumanEval-X.
        leveled: by server and schedule ("specpipe", "specinfer") at the six levels, the one with
            most misses first.
        widths, children, batches: SpecPipe by its width, its candidates per node, and SpecPipe-DB
            by its batch.
        changed: by schedule and by what was changed with nothing calibrated again.
        cluster: the one server's.
    """

    levels: Levels
    plain_ms: Mapping[str, float]
    code: Mapping[str, Mapping[str, Interval]]
    leveled: Mapping[str, Mapping[str, Sequence[Interval]]]
    widths: Mapping[int, Outcome]
    children: Mapping[int, Outcome]
    batches: Mapping[int, Outcome]
    changed: Mapping[str, Interval]
    cluster: CardCluster

    @property
    def best_width(self) -> int:
        return min(self.widths, key=lambda width: self.time_ms(width))

    def time_ms(self, width: int) -> float:
        return self.widths[width].metrics[METRIC].mean

    @property
    def flat(self) -> list[int]:
        """Widths that are as good as the best one."""
        bound = (1 + FLAT) * self.time_ms(self.best_width)
        return [width for width in self.widths if self.time_ms(width) <= bound]

    def equation_ms(self, width: int) -> float:
        """SpecPipe's equation 2 with the simulated hit rate (a miss loses N - 1 steps)."""
        step = self.cluster.slowest_ms(width) + PRUNE_MS
        hit = self.widths[width].metrics["hit_rate"].mean
        return specpipe_even_tbt_ms(step, hit, len(self.cluster.cards), "N-1")


def find(settings: Settings, say: Say) -> Found:
    """Calibrate, and simulate everything."""
    levels = settings.levels or find_levels(settings.effort, say)
    clusters = {name: build(name) for name in SERVERS}
    one = clusters["one-server"]
    scenarios: dict[str, Scenario] = {}
    for name, cluster in clusters.items():
        scenarios |= _on(name, cluster, levels)
    scenarios |= _swept(one, settings, acceptance(fmean(levels.six)))
    changed = _changed(one, levels.humaneval_x)
    scenarios |= changed
    effort = settings.effort.changes()
    scenarios = {label: scenario.with_(**effort) for label, scenario in scenarios.items()}
    scenarios |= _batches(one, settings, acceptance(levels.humaneval_x))
    outcomes = simulated(scenarios, say)
    times = {label: outcome.metrics[METRIC] for label, outcome in outcomes.items()}

    def numbered(key: str, values: Sequence[int]) -> dict[int, Outcome]:
        return {value: outcomes[f"{key}={value}"] for value in values}

    numbers = range(len(levels.six))
    return Found(
        levels,
        {name: plain_ms(cluster) for name, cluster in clusters.items()},
        {name: {each: times[f"{name}/{each}"] for each in SCHEDULES} for name in SERVERS},
        {
            name: {
                each: [times[f"{name}/{each}/{n}"] for n in numbers]
                for each in ("specpipe", "specinfer")
            }
            for name in SERVERS
        },
        numbered("width", settings.widths),
        numbered("children", settings.children),
        numbered("batch", settings.batches),
        {label: times[label] for label in changed},
        one,
    )


def _on(name: str, cluster: CardCluster, levels: Levels) -> dict[str, Scenario]:
    """Every schedule on HumanEval-X, and the two trees over the six levels."""
    code, whole = acceptance(levels.humaneval_x), plain_ms(cluster)
    head_ms = pass_ms("rtx-3090", 1, True)[1]  # a layer and the output projection
    hidden, through, beside = (
        replace(cluster, draft_ms={1: ms}) for ms in (0.0, whole / EAGLE_PASSES, head_ms)
    )
    in_sequence = {**SPECINFER, "schedule.draft_ahead": False}
    found = {
        "specpipe": cluster.scenario(**SPECPIPE, **code),
        "specinfer": cluster.scenario(**SPECINFER, **code),
        "specinfer_draft_in_sequence": cluster.scenario(**in_sequence, **code),
        "specinfer_hidden_draft": hidden.scenario(**SPECINFER, **code),
        "eagle": through.scenario(**EAGLE),
        "eagle_own_device": beside.scenario(**EAGLE),
    }
    for number, level in enumerate(levels.six):
        for schedule in (SPECPIPE, SPECINFER):
            label = f"{schedule['schedule.name']}/{number}"
            found[label] = cluster.scenario(**schedule, **acceptance(level))
    return {f"{name}/{label}": scenario for label, scenario in found.items()}


def _swept(cluster: CardCluster, settings: Settings, level: dict[str, Any]) -> dict[str, Scenario]:
    """Widths, and candidates per node, at the mean of the six levels."""
    base = cluster.scenario(**SPECPIPE, **level)
    swept = {"width": settings.widths, "children": settings.children}
    return {
        f"{key}={value}": base.with_(**{f"schedule.{key}": value})
        for key, values in swept.items()
        for value in values
    }


def _changed(cluster: CardCluster, level: float) -> dict[str, Scenario]:
    """One assumption changed on HumanEval-X, by schedule and by what is changed."""
    found = {}
    for name, guessing in GUESSING.items():
        changes = dict(guessing)
        if "hit_ratio" in changes:
            changes["hit_ratio"] = {1: right(level)}
        for schedule in (SPECINFER, SPECPIPE):
            label = f"{schedule['schedule.name']}, {name}"
            found[label] = cluster.scenario(**schedule, **acceptance(level, **changes))
    code = acceptance(level)
    larger_ms = published()["specpipe"]["draft_tbt_ms"]["llama-3.1-8b"]
    free, slow = replace(cluster, prune_ms=0.0), replace(cluster, draft_ms={1: larger_ms})
    tree = {**SPECINFER, "schedule.branching": (1, 1, 3, 1)}
    narrow = {**SPECPIPE, "schedule.width": 32}
    return {
        **found,
        "specinfer, a tree of 4 levels": cluster.scenario(**tree, **code),
        "specpipe, width 32": cluster.scenario(**narrow, **code),
        "specpipe, pruning costs nothing": free.scenario(**SPECPIPE, **code),
        f"specpipe, {LARGER_DRAFT}": slow.scenario(**SPECPIPE, **code),
    }


def _batches(
    cluster: CardCluster, settings: Settings, level: dict[str, Any]
) -> dict[str, Scenario]:
    """SpecPipe-DB with as many clients as places; three requests each."""
    base = cluster.scenario(**{**SPECPIPE, **level, "schedule.name": "specpipe_db"})
    return {
        f"batch={count}": base.with_(
            **{
                "schedule.batch": count,
                "workload.concurrency": count,
                "workload.requests": 3 * count,
                "workload.new_tokens": settings.batch_tokens,
                "runs": 3 if count > 4 else 3 * settings.effort.runs,
            }
        )
        for count in settings.batches
    }
