"""What a tenth of each input does to the best plan: against searches of other inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.worlds.searches import METRIC, found
from tests.worlds.written_studies import say
from treepipe.planner.halving import SearchResult
from treepipe.planner.report import plan_content
from treepipe.planner.robustness import stress_cases
from treepipe.planner.sensitivity import RATE, Sensitivity, sensitivities
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import bernoulli_pool, hit_ratio_pool
from treepipe.sim.points import Point, simulate_points

CHAIN = {"search.schedules": ["chain"], "search.grid": {"schedule.gamma": [3]}}


def by_key(each: SearchResult) -> dict[str, Sensitivity]:
    return {row.key: row for row in sensitivities(each, say)}


def multiplied(factor: float) -> dict[str, dict[str, Any]]:
    """The changes of a cluster's own numbers that each factor of ``[scale]`` stands for."""
    stage_ms = {1: 20.0 * factor, 64: 40.0 * factor}
    return {
        "scale.stages": {"pipelines.0.stages.0.device.stage_ms": stage_ms},
        "scale.drafts": {"drafts.0.device.draft_ms": {1: 5.0 * factor}},
        "scale.latency": {"links.default.latency_ms": 3.0 * factor},
        "scale.bandwidth": {"links.default.bandwidth_mbit_s": 8.0 * factor},
        "scale.misses": {"acceptance.beta": 1 - 0.4 * factor},
    }


@pytest.mark.parametrize("schedule", [{}, CHAIN], ids=["pp", "chain"])
def test_factors_are_those_of_other_inputs_by_brute_force(schedule: dict[str, Any]) -> None:
    """A plan of a cluster whose own numbers are a tenth other, on the same texts."""
    each = found(**schedule)
    rows, plan = by_key(each), each.best.candidate.scenario.with_(runs=3)
    stated = each.best.outcome.metrics[METRIC].mean
    for side, factor in (("up", 1.1), ("down", 0.9)):
        points = [Point(key, plan.with_(**each)) for key, each in multiplied(factor).items()]
        for key, outcome in simulate_points(points, say).items():
            change = outcome.metrics[METRIC].mean / stated - 1
            assert getattr(rows[key], side) == pytest.approx(change, abs=1e-9), key
    drafting = min(rows["scale.misses"].up, rows["scale.drafts"].up)
    assert drafting > 0.005 if schedule else drafting == 0
    sizes = [row.size for row in rows.values()]
    assert sizes == sorted(sizes, reverse=True)
    for row in rows.values():
        assert row.fixed or row.low < getattr(row, row.larger) < row.high


def test_who_is_hit_with_more_misses_is_hit_with_fewer() -> None:
    """Of made pools; so misses are paired as closely as all other inputs."""
    for made in (bernoulli_pool, lambda hit: hit_ratio_pool({1: hit, 4: (1 + hit) / 2})):
        texts = []
        for hit in (0.6, 0.56):
            oracle = PoolSource(made(hit), 1, 7).open(1, 4)
            texts.append(np.array([oracle.truth(index) for index in range(500)]))
        assert np.all(texts[0] <= texts[1])
        assert 0 < np.mean(texts[0] < texts[1]) < 0.15


def test_several_device_profiles_each_have_a_row_and_an_own_factor_stays() -> None:
    """A profile of the draft alone is the draft's row; ``[scale]`` of the file counts, too."""
    stages = [{"stages": [{"device": "h100", "count": 2}]}]
    draft = {"drafts": [{"device": "l40", "model": {"profile": "llama-3.2-1b"}}]}
    profiles = {"pipelines": stages, "target": {"profile": "llama-3.1-8b"}, "search.cases": 0}
    rows = by_key(found(**CHAIN, **profiles, **draft, **{"scale.devices": {"l40": 1.5}}))
    assert rows["scale.devices.l40"].up == pytest.approx(rows["scale.drafts"].up)
    assert rows["scale.devices.h100"].up == pytest.approx(rows["scale.stages"].up)
    assert rows["scale.drafts"].up > 0.01
    assert not [key for key in by_key(found(**profiles)) if "devices" in key]


@pytest.mark.long
def test_load_is_an_input_where_requests_arrive() -> None:
    """Served one by one, requests wait longer the faster they come."""
    arrivals = {"process": "poisson", "rate_per_s": 2.0}
    workload = {"workload": {"new_tokens": 12, "requests": 12, "arrivals": arrivals}}
    goal = {"search.goal": "time_to_first_token_ms", "serving": {"places": 1}}
    row = by_key(found(**workload, **goal))[RATE]
    assert row.up > 0.01 > -0.01 > row.down
    assert RATE not in by_key(found())


def test_where_no_plan_keeps_the_limits_nothing_is_analysed() -> None:
    each = found(**{"search.limits": {METRIC: 1.0}})
    assert sensitivities(each, say) == stress_cases(each, say) == []
    content = plan_content(each)
    assert (content["sensitivity"], content["break_even"]) == ([], None)
