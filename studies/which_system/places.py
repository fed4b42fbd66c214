"""Where and how much the systems are compared: clusters, goals, and the small grids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from treepipe.core.schedules import systems
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
SMALL_MODEL = (
    'drafts.0.model={profile="llama-3.2-1b"}',
    'acceptance={source="pool",file="../../profiles/acceptance/reference-model.json.gz",'
    "hit_ratio={1=0.7,8=0.95}}",
)
"""A draft of 1B: of its hit ratios only {32 = 0.99} is published; these are assumed."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster of the study. ``settings``: changes to its file."""

    name: str
    file: str
    settings: tuple[str, ...] = ()


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
    """How much is done; ``grid``: values of parameters, instead of the planner's own."""

    amounts: Mapping[Goal, Amount]
    grid: Mapping[str, Sequence[int]]
    places: Sequence[Place] = PLACES
    schedules: Sequence[ScheduleName] = SCHEDULES


GRID = {"gamma": (2, 4, 8), "width": (4, 16, 64), "children": (8,), "expand_depth": (3,)}
SHORT = Settings({"latency": Amount(6, 40, 1), "throughput": Amount(4, 16, 8)}, GRID)
FULL = Settings({"latency": Amount(18, 40, 1), "throughput": Amount(12, 16, 8)}, GRID)


def changes(settings: Settings, place: Place, goal: Goal) -> list[str]:
    """The study's changes to a cluster file, as ``--set`` takes them."""
    amount = settings.amounts[goal]
    names = [n for n in settings.schedules if goal == "throughput" or n != "specpipe_db"]
    targets = 4 if place.file == "one-draft-four-targets" else 1
    requests = amount.requests * targets if goal == "latency" else amount.requests
    return [
        *place.settings,
        f"runs={amount.runs}",
        f"workload.new_tokens={amount.new_tokens}",
        f"workload.requests={requests}",
        f"workload.concurrency={requests}",
        f"search.goal={METRICS[goal]}",
        f"search.schedules={json.dumps(names)}",
        f"search.grid={{schedule={{{', '.join(_values(settings.grid))}}}}}",
        "search.limits={}",
    ]


def _values(grid: Mapping[str, Sequence[int]]) -> list[str]:
    return [f"{key}={list(values)}" for key, values in grid.items()]
