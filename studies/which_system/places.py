"""Where and how much the systems are compared: clusters, goals, and the small grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from treepipe.core.schedules import systems
from treepipe.planner.cluster import Cluster
from treepipe.results.metrics import METRIC
from treepipe.scenario.schema import ScheduleName

NAME = "which-system"
CLUSTERS = Path(__file__).parents[1] / "clusters"
SCHEDULES: tuple[str, ...] = tuple(systems())
Goal: TypeAlias = Literal["latency", "throughput"]
METRICS: Mapping[Goal, str] = {
    "latency": METRIC,
    "throughput": "throughput_tokens_s",
}
PLAIN: ScheduleName = "pp"
EAGLE_FILE = "five-jetsons"
"""Its acceptance is that of all EAGLE heads here."""
SMALL_HITS = {1: 0.7, 8: 0.95}
"""Of a draft of 1B: of its hit ratios only {32 = 0.99} is published; these are assumed."""
SMALL_MODEL = {
    "drafts.0.model": {"profile": "llama-3.2-1b"},
    "acceptance": {
        "source": "pool",
        "file": "../../profiles/acceptance/reference-model.json.gz",
        "hit_ratio": SMALL_HITS,
        "uncertainty": 0.5,
    },
}


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster of the study.

    Attributes:
        changes: to its file, by dotted key.
    """

    name: str
    file: str
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)


PLACES = (
    Place("5 Jetsons", "five-jetsons"),
    Place("8 RTX 3090 in one server", "eight-3090-one-server"),
    Place("8 RTX 3090 with a 1B draft", "eight-3090-one-server", SMALL_MODEL),
    Place("8 RTX 3090 in two servers", "eight-3090-two-servers"),
    Place("14 RTX 3090", "fourteen-3090"),
    Place("4 A100 on a WAN", "four-nodes-wan"),
    Place("1 draft for 4 targets", "one-draft-four-targets"),
)


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is simulated for one goal: the last rung's runs, and what each of them is asked.

    ``requests`` are asked at once (times pipelines, where the file has several).
    """

    runs: int
    new_tokens: int
    requests: int


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done; ``grid``: values of parameters, instead of the planner's own; ``cases``:
    that the inputs' uncertainty allows."""

    amounts: Mapping[Goal, Amount]
    grid: Mapping[str, Sequence[int]]
    places: Sequence[Place] = PLACES
    schedules: Sequence[ScheduleName] = SCHEDULES
    cases: int = 12


GRID = {"gamma": (2, 4, 8), "width": (4, 16, 64), "children": (8,), "expand_depth": (3,)}
SHORT = Settings({"latency": Amount(6, 40, 1), "throughput": Amount(4, 16, 8)}, GRID)
FULL = Settings({"latency": Amount(18, 40, 1), "throughput": Amount(12, 16, 8)}, GRID)


def load(file: str) -> Cluster:
    """A cluster as its file has it."""
    return Cluster.load(CLUSTERS / f"{file}.toml")


def cluster(settings: Settings, place: Place, goal: Goal) -> Cluster:
    """What is searched: the file's cluster, and how much is asked of it."""
    found, amount = load(place.file), settings.amounts[goal]
    names = [n for n in settings.schedules if goal == "throughput" or n != "specpipe_db"]
    targets = sum(pipeline.count for pipeline in found.pipelines)
    requests = amount.requests * (targets if goal == "latency" else 1)
    changes = {
        **place.changes,
        "runs": amount.runs,
        "workload.new_tokens": amount.new_tokens,
        "workload.requests": requests,
        "workload.concurrency": requests,
        "search.goal": METRICS[goal],
        "search.schedules": names,
        "search.grid": {f"schedule.{key}": list(each) for key, each in settings.grid.items()},
        "search.limits": {},
        "search.cases": settings.cases,
    }
    return found.with_(**changes)
