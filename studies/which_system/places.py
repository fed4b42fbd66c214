"""Clusters and goals for the comparison of systems, and the small grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from treepipe.core.schedules import systems
from treepipe.files.toml_file import read_toml
from treepipe.planner.cluster import Cluster
from treepipe.results.metrics import METRIC
from treepipe.scenario.schema import ScheduleName

CLUSTERS = Path(__file__).parents[1] / "clusters"
SCHEDULES: tuple[str, ...] = tuple(systems())
Goal: TypeAlias = Literal["latency", "throughput"]
METRICS: Mapping[Goal, str] = {"latency": METRIC, "throughput": "throughput_tokens_s"}
PLAIN: ScheduleName = "pp"
FIVE = ("flowspec", "pipedec", "specpipe", "specpipe_db", "starsd", "dsd")
"""The five systems of the papers (SpecPipe's batched variant is its own)."""
NEW = ("spd", "engine_pp", "ssd", "pearl")
"""The systems that were added to them."""
EAGLE_FILE = "five-jetsons"
"""Cluster file whose acceptance all EAGLE heads here have."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster of the study: its file, with changes by dotted key."""

    name: str
    file: str
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)


PLACES = tuple(
    Place(**each) for each in read_toml(Path(__file__).with_name("places.toml"))["place"]
)
(SMALL_DRAFT,) = (place for place in PLACES if "drafts.0.model" in place.changes)
"""The place with a draft of 1B."""


class Amount(NamedTuple):
    """The size of a search for one goal: the last rung's runs, each request's new tokens, and the
    number of concurrent requests (times pipelines, if the file has several)."""

    runs: int
    new_tokens: int
    requests: int


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job; ``grid``: values of parameters, instead of the planner's own; ``cases``:
    number of cases drawn from the inputs' uncertainty."""

    amounts: Mapping[Goal, Amount]
    grid: Mapping[str, Sequence[int]]
    places: Sequence[Place] = PLACES
    schedules: Sequence[ScheduleName] = SCHEDULES
    cases: int = 20


GRID = {
    "gamma": (2, 4, 8),
    "width": (4, 16, 64),
    "children": (8,),
    "layers_per_step": (1,),
    "expand_depth": (3,),
}
"""Values of parameters; SpecPipe has one layer per step, as published (plans try up to three)."""
SHORT = Settings({"latency": Amount(6, 40, 1), "throughput": Amount(4, 16, 8)}, GRID)
FULL = Settings({"latency": Amount(18, 40, 1), "throughput": Amount(12, 16, 8)}, GRID)


def load(file: str) -> Cluster:
    """Load a cluster file without changes."""
    return Cluster.load(CLUSTERS / f"{file}.toml")


def cluster(settings: Settings, place: Place, goal: Goal) -> Cluster:
    """Make the file's cluster with the study's search and workload."""
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
