"""Scenarios of one request at a time on stages of equal times, which end when segments come."""

from __future__ import annotations

from typing import Any

from treepipe.scenario.scenario import Scenario

LINK = {"latency_ms": 1.0, "bandwidth_mbit_s": 1000.0}


def one_at_a_time(stages: Any, section: Any, name: str, link: Any) -> Scenario:
    """A scenario of one request at a time on stages of equal times."""
    return Scenario.of(
        {
            "name": "one request at a time",
            "target": {"layers": 8, "hidden_size": 4096},
            "drafts": [{"device": {"draft_ms": {1: 6.0, 64: 8.0}}}],
            "pipelines": [{"stages": [stages]}],
            "links": {
                "default": link,
                "pairs": [{"ends": ["draft0", "pipeline0.stage2"], "latency_ms": 1.0}],
            },
            "schedule": {"name": name, **section},
            "acceptance": {"source": "bernoulli", "beta": 0.8},
            "workload": {"requests": 2, "new_tokens": 20},
        }
    )
