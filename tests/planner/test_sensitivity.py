"""What would change the answer: against simulations of other inputs, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.worlds.profile_files import model_file
from tests.worlds.searches import METRIC, found
from tests.worlds.written_studies import say
from treepipe.core.errors import UserError
from treepipe.planner.halving import SearchResult
from treepipe.planner.report import plan_content
from treepipe.planner.robustness import stress_cases
from treepipe.planner.sensitivity import (
    RATE,
    Axis,
    BreakEven,
    Sensitivity,
    sensitivities,
)
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import bernoulli_pool, hit_ratio_pool
from treepipe.sim.points import Outcome, Point, simulate_points

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
    rows, plan = by_key(each), each.winner.candidate.scenario.with_(runs=3)
    stated = each.winner.outcome.metrics[METRIC].mean
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


def test_a_plan_without_the_scaled_device_is_compared_as_it_is() -> None:
    """A draft on the stages' own devices (``search.drafts``), where the best plan has another."""
    plan = found().winner.candidate.scenario
    slower = Axis("scale.devices.h100", 1.0, 0.1, 10.0).changed(plan, 2.0, 3)
    assert simulate_points([Point("", slower)], say)[""].metrics == (
        simulate_points([Point("", plan.with_(runs=3))], say)[""].metrics
    )


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


TWO = {"search.schedules": ["pp", "chain"], "search.grid": {"schedule.gamma": [3]}}
ALWAYS = {
    **TWO,
    "acceptance.beta": 1.0,
    "links.default": {"latency_ms": 3.0},
    "workload.new_tokens": 13,
    "pipelines.0.stages.0.device.stage_ms": {1: 20.0},
}


def along(key: str, each: SearchResult) -> BreakEven:
    (row,) = sensitivities(each, say, [key])
    return row.break_even


def test_a_draft_that_is_never_wrong_is_worth_its_time_up_to_a_value_by_hand() -> None:
    """A round of plain decoding is 2 x 20 + 3 x 3 = 49 ms and gives a token; a round of a chain
    is as long and 3 draft passes of 5 ms, and gives 4. These are equal at passes 147 / 15 times
    as long, in each run."""
    even = along("scale.drafts=1:32", found(**ALWAYS))
    assert (even.before, even.after) == ("chain", "pp")
    assert even.value == pytest.approx(147 / 15, rel=1e-3)
    assert even.low == pytest.approx(147 / 15, rel=1e-3)
    assert even.high == pytest.approx(147 / 15, rel=1e-3)


def test_a_key_that_changes_nothing_is_said_to() -> None:
    each = found(**TWO)
    assert not along("drafts.0.device.price_usd_per_hour=1:3", each).matters
    same = along("scale.latency=1:1.00001", each)
    assert (same.value, same.matters) == (None, True)
    (row,) = sensitivities(each, say, ["scale.latency=1:1.00001"])
    assert row.turn == "none from 1 to 1.00001", "however narrow it is"
    alone = along("scale.stages", found())
    assert (alone.value, alone.before, alone.after) == (None, "pp", "pp")


def test_an_input_of_zero_is_looked_at_where_a_range_is_given() -> None:
    """A round of either schedule waits for as many messages, and a chain's gives more tokens."""
    even = along("links.default.jitter_ms=0.5:4", found(**ALWAYS))
    assert (even.before, even.value) == ("chain", None)


def test_the_best_schedule_changes_at_the_value_and_surely_beyond_the_interval() -> None:
    each = found(**TWO, runs=6)
    even = along("scale.drafts", each)
    assert even.low < even.value < even.high
    plans = {name: ranked.candidate.scenario for name, ranked in each.best_of_each.items()}
    for value, best in ((0.98 * even.value, even.before), (1.02 * even.value, even.after)):
        points = [Point(n, s.with_(runs=6, **{"scale.drafts": value})) for n, s in plans.items()]
        outcomes = simulate_points(points, say)
        assert best == min(plans, key=lambda name: outcomes[name].metrics[METRIC].mean)


def test_of_a_third_schedule_in_between_the_end_next_to_the_stated_value_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By hand: pp (v) is the least up to 2/3, chain (0.5 + 0.25 v) up to 0.7, eagle (0.64 + 0.05 v)
    from there on, so at the end next to the stated 1; the first values see only pp and eagle."""

    def costs(points: list[Point], *more: object) -> dict[str, Outcome]:
        lines = {"pp": (0.0, 1.0), "chain": (0.5, 0.25), "eagle": (0.64, 0.05)}
        outcomes = {}
        for point in points:
            at_0, slope = lines[point.scenario.schedule.name]
            value = at_0 + slope * (point.scenario.number_at("scale.latency") or 1.0)
            outcomes[point.label] = Outcome({}, {}, observations={METRIC: (value,) * 4})
        return outcomes

    each = found(**{**TWO, "search.schedules": ["pp", "chain", "eagle"]})
    monkeypatch.setattr("treepipe.planner.sensitivity.simulate_points", costs)
    even = along("scale.latency=0.1:0.95", each)
    assert (even.before, even.after) == ("chain", "eagle")
    assert even.value == pytest.approx(0.7, rel=1e-3)


def test_a_value_that_a_plan_refuses_names_the_option() -> None:
    """The cluster takes it, but the plan's layers do not fit into so little memory."""
    stage = {"stage_ms": {1: 20.0, 64: 40.0}, "memory_mib": 900.0}
    stages = {
        "pipelines.0.stages.0.device": stage,
        "target": {"profile": model_file(4, 100.0, 1.0)},
    }
    with pytest.raises(UserError, match=r"\(--break-even KEY=LOW:HIGH bounds the values of KEY"):
        along("pipelines.0.stages.0.device.memory_mib=1:900", found(**TWO, **stages))
