"""A small cluster, searched for one goal; for tests."""

from __future__ import annotations

from tests.worlds.written_studies import say
from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import Found, search

CLUSTER = {
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


def found(**changes: object) -> Found:
    return search(Cluster.of(CLUSTER).with_(**changes), say)
