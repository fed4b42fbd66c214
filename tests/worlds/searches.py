"""Small clusters: one to search for a goal, and one whose devices are to be bought; for tests."""

from __future__ import annotations

from typing import Any

from tests.worlds.profile_files import model_file
from tests.worlds.written_studies import say
from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import SearchResult, search

CLUSTER: dict[str, Any] = {
    "name": "hangs on",
    "runs": 3,
    "target": {"layers": 4, "hidden_size": 1000},
    "drafts": [{"device": {"draft_ms": {1: 5.0}}}],
    "pipelines": [{"stages": [{"device": {"stage_ms": {1: 20.0, 64: 40.0}}, "count": 2}]}],
    "links": {"default": {"latency_ms": 3.0, "bandwidth_mbit_s": 8.0}},
    "acceptance": {"source": "bernoulli", "beta": 0.6},
    "workload": {"new_tokens": 12},
    "search": {"schedules": ["pp"]},
}  # fmt: skip
METRIC = "time_between_tokens_ms"
SLOW = {"stage_ms": {1: 20.0}, "draft_ms": {1: 3.0}}
FAST = {"stage_ms": {1: 10.0}, "draft_ms": {1: 3.0}, "memory_mib": 500.0}
KINDS = [
    {"name": "slow", "device": SLOW, "price_usd": 1.0},
    {"name": "fast", "device": FAST, "price_usd": 3.0, "most": 2},
]
BOUGHT: dict[str, Any] = {
    "name": "bought",
    "runs": 2,
    "target": {"profile": model_file(4, 1.0, 1.0)},
    "pipelines": [{"stages": [{"device": {"stage_ms": {1: 99.0}}}]}],
    "links": {"default": {"latency_ms": 0.0}},
    "workload": {"new_tokens": 4},
    "search": {
        "schedules": ["pp"],
        "drafts": ["stage"],
        "devices": {"kinds": KINDS, "counts": [1, 2], "mixed": True},
    },
}
"""A stage of a kind takes as long whatever it holds."""


def found(**changes: object) -> SearchResult:
    return search(Cluster.of(CLUSTER).with_(**changes), say)
