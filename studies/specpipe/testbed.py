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
    one_server,
    pass_ms,
    plain_ms,
    right,
    two_servers,
)
from treepipe.studies.reproduction import published, simulated
from treepipe.studies.study import Measuring

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


@dataclass(frozen=True, slots=True)
class Server:
    """Times between tokens in milliseconds, on one cluster.

    Attributes:
        plain_ms: of the plain pipeline.
        code: per schedule, on HumanEval-X.
        specpipe, specinfer: per level, the one with most misses first.
    """

    plain_ms: float
    code: Mapping[str, Interval]
    specpipe: Sequence[Interval]
    specinfer: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class Found:
    """All that was simulated.

    Attributes:
        ingredients: by schedule and ingredient.
    """

    levels: Levels
    servers: Mapping[str, Server]
    widths: Mapping[int, Outcome]
    children: Mapping[int, Outcome]
    batches: Mapping[int, Outcome]
    sensitivity: Mapping[str, Interval]
    ingredients: Mapping[str, Interval]
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

    def level_ms(self, width: int) -> float:
        """Time between tokens if a stage took as long for ``width`` rows as for one."""
        one, all_rows = (self.cluster.slowest_ms(rows) + PRUNE_MS for rows in (1, width))
        return self.time_ms(width) * one / all_rows

    def equation_ms(self, width: int) -> tuple[float, float]:
        """SpecPipe's equation 2 with the simulated hit rate, in its two readings (N - 1, N)."""
        step = self.cluster.slowest_ms(width) + PRUNE_MS
        hit, stages = self.widths[width].metrics["hit_rate"].mean, len(self.cluster.cards)
        return (
            specpipe_even_tbt_ms(step, hit, stages, "N-1"),
            specpipe_even_tbt_ms(step, hit, stages, "N"),
        )


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


def find(settings: Settings, say: Say) -> Found:
    """Calibrate, and simulate everything."""
    levels = settings.levels or find_levels(settings.effort, say)
    clusters = {"one-server": build(one_server()), "two-server": build(two_servers())}
    one, effort = clusters["one-server"], settings.effort.changes()
    scenarios: dict[str, Scenario] = {}
    for name, cluster in clusters.items():
        scenarios |= _cluster(name, cluster, levels)
    scenarios |= _sweep(one, settings, acceptance(fmean(levels.six)))
    scenarios |= _sensitivity(one, levels.humaneval_x)
    scenarios |= _ingredients(one, levels.humaneval_x)
    scenarios = {label: scenario.with_(**effort) for label, scenario in scenarios.items()}
    scenarios |= _batches(one, settings, acceptance(levels.humaneval_x))
    outcomes = simulated(scenarios, say)
    return Found(
        levels,
        {name: _server(name, cluster, outcomes, levels) for name, cluster in clusters.items()},
        _numbered(outcomes, "width", settings.widths),
        _numbered(outcomes, "children", settings.children),
        _numbered(outcomes, "batch", settings.batches),
        {name: outcomes[f"sensitivity/{name}"].metrics[METRIC] for name in SENSITIVITY},
        {
            label.removeprefix("ingredient/"): outcome.metrics[METRIC]
            for label, outcome in outcomes.items()
            if label.startswith("ingredient/")
        },
        one,
    )


def _cluster(name: str, cluster: CardCluster, levels: Levels) -> dict[str, Scenario]:
    """Every schedule on HumanEval-X, and the two trees over the six levels."""
    code, whole = acceptance(levels.humaneval_x), plain_ms(cluster)
    head_ms = pass_ms("rtx-3090", 1, True)[1]  # a layer and the output projection
    hidden, through, beside = (
        replace(cluster, draft_ms={1: ms}) for ms in (0.0, whole / EAGLE_PASSES, head_ms)
    )
    found = {
        "specpipe": cluster.scenario(**SPECPIPE, **code),
        "specinfer": cluster.scenario(**SPECINFER, **code),
        "specinfer_draft_in_sequence": cluster.scenario(**IN_SEQUENCE, **code),
        "specinfer_hidden_draft": hidden.scenario(**SPECINFER, **code),
        "eagle": through.scenario(**EAGLE),
        "eagle_own_device": beside.scenario(**EAGLE),
    }
    for number, level in enumerate(levels.six):
        for schedule in (SPECPIPE, SPECINFER):
            label = f"{schedule['schedule.name']}/{number}"
            found[label] = cluster.scenario(**schedule, **acceptance(level))
    return {f"{name}/{label}": scenario for label, scenario in found.items()}


def _sweep(cluster: CardCluster, settings: Settings, level: dict[str, Any]) -> dict[str, Scenario]:
    """Widths, and candidates per node, at the mean of the six levels."""
    base = cluster.scenario(**SPECPIPE, **level)
    swept = {"width": settings.widths, "children": settings.children}
    return {
        f"{key}={value}": base.with_(**{f"schedule.{key}": value})
        for key, values in swept.items()
        for value in values
    }


SENSITIVITY = (
    "specpipe, width 32",
    "specpipe, pruning costs nothing",
    "specpipe, drafted by the 8B model",
)


def _sensitivity(cluster: CardCluster, level: float) -> dict[str, Scenario]:
    """What the calibration's other assumptions are worth, on HumanEval-X."""
    code = acceptance(level)
    larger_ms = published()["specpipe"]["draft_tbt_ms"]["llama-3.1-8b"]
    free, slow = replace(cluster, prune_ms=0.0), replace(cluster, draft_ms={1: larger_ms})
    variants = (
        cluster.scenario(**{**SPECPIPE, **code, "schedule.width": 32}),
        free.scenario(**SPECPIPE, **code),
        slow.scenario(**SPECPIPE, **code),
    )
    return {f"sensitivity/{n}": each for n, each in zip(SENSITIVITY, variants, strict=True)}


IN_SEQUENCE = {**SPECINFER, "schedule.draft_ahead": False}
AS_CALIBRATED = "nothing"
INGREDIENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    AS_CALIBRATED: ({}, {}),
    "off the path as sure as on it": ({"off_path_sharpness": SHARPNESS}, {}),
    "off the path as sure as recorded": ({"off_path_sharpness": 1.0}, {}),
    "on the path, too, as unsure as recorded": ({"sharpness": 1.0}, {}),
    "a look at one position does not tell of the next": ({"block": 1}, {}),
    "further candidates as the bundled pair's": ({"shape": 1}, {}),
    "drafted in sequence": ({}, {"schedule.draft_ahead": False}),
    "a tree of 4 levels": ({}, {"schedule.branching": (1, 1, 3, 1)}),
}
"""What is changed of the acceptance, and of SpecInfer's schedule; the last two leave SpecPipe as it
is."""


def _ingredients(cluster: CardCluster, level: float) -> dict[str, Scenario]:
    """Both schedules on HumanEval-X with one ingredient changed and nothing calibrated again."""
    found = {}
    for name, (guessing, tree) in INGREDIENTS.items():
        changes = dict(guessing)
        if changes.pop("shape", None):
            changes["hit_ratio"] = {1: right(level)}
        levelled = acceptance(level, **changes)
        found[f"ingredient/specinfer/{name}"] = cluster.scenario(
            **{**SPECINFER, **tree}, **levelled
        )
        if not tree:
            found[f"ingredient/specpipe/{name}"] = cluster.scenario(**SPECPIPE, **levelled)
    return found


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


def _numbered(outcomes: dict[str, Outcome], key: str, values: Sequence[int]) -> dict[int, Outcome]:
    return {value: outcomes[f"{key}={value}"] for value in values}


def _server(
    name: str, cluster: CardCluster, outcomes: dict[str, Outcome], levels: Levels
) -> Server:
    numbers = range(len(levels.six))
    return Server(
        plain_ms(cluster),
        {
            schedule: outcomes[f"{name}/{schedule}"].metrics[METRIC]
            for schedule in (
                "specinfer",
                "specinfer_draft_in_sequence",
                "specinfer_hidden_draft",
                "eagle",
                "eagle_own_device",
                "specpipe",
            )
        },
        [outcomes[f"{name}/specpipe/{n}"].metrics[METRIC] for n in numbers],
        [outcomes[f"{name}/specinfer/{n}"].metrics[METRIC] for n in numbers],
    )
