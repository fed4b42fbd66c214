"""Inputs that are estimates: what their cases change in an answer, against values by hand."""

from __future__ import annotations

from math import log, log1p

import numpy as np
import pytest
from scipy import stats

from tests.worlds.written_studies import say
from treepipe.planner.cluster import Cluster
from treepipe.planner.drawn import RUNS, drawn_factors, in_case, orthogonal_levels
from treepipe.planner.halving import SearchResult
from treepipe.planner.plan import search
from treepipe.planner.report import plan_content, verdict
from treepipe.scenario.scale import Estimated
from treepipe.sim.points import Point, simulate_points

CLUSTER = {
    "name": "estimated",
    "runs": 2,
    "target": {"profile": "llama-3.2-1b"},
    "drafts": [{"device": {"draft_ms": {1: 5.0, 64: 5.0}}}],
    "pipelines": [{"stages": [{"device": "jetson-agx-orin", "count": 2}]}],
    "links": {"default": {"latency_ms": 0.0}},
    "acceptance": {"source": "bernoulli", "beta": 0.6},
    "workload": {"new_tokens": 12},
    "search": {
        "schedules": ["pp", "chain"], "partitions": ["even"], "grid": {"schedule.gamma": [3]}
    },
}  # fmt: skip
METRIC = "time_between_tokens_ms"


def found(**changes: object) -> SearchResult:
    return search(Cluster.of(CLUSTER).with_(**changes), say)


def test_plain_decoding_is_as_uncertain_as_its_stages_and_a_ratio_less() -> None:
    """Its time is that of the stages, so the wider interval is the profile's own 40 %; what both
    plans rest on cancels out, only a chain's draft does not change with the stages."""
    each = found()
    assert dict(each.cases.inputs) == {Estimated("device", "jetson-agx-orin"): 0.4}
    point = each.best_of_each["pp"].outcome.metrics[METRIC]
    wide = each.cases.widened("pp", point)
    assert wide.low == pytest.approx(point.mean / 1.4, rel=0.03)
    assert wide.high == pytest.approx(point.mean * 1.4, rel=0.03)
    ratio = each.cases.ratio_widened("pp", "chain", point)
    assert log(ratio.high / ratio.low) < 0.5 * log(wide.high / wide.low)


@pytest.mark.long
def test_shares_of_the_cases_add_up_and_stand_in_the_verdict() -> None:
    each = found(**{"acceptance.uncertainty": 0.3})
    entry = plan_content(each)["uncertain_inputs"]
    assert sum(plan["best_in"] for plan in entry["plans"].values()) == pytest.approx(1)
    assert entry["estimates"] == {"device jetson-agx-orin": 0.4, "acceptance": 0.3}
    assert "of 20 cases that the inputs allow" in verdict(each)[-2]
    assert verdict(each)[-1].startswith("It hangs most on: ")


def test_a_few_cases_on_short_texts_tell_what_all_drawn_ones_do() -> None:
    """Plain decoding is its stages alone, so slopes of logarithms are exact; a chain's texts differ
    from case to case by a few hits, and its time is no power of the misses. What a case changes
    hardly depends on the texts' length."""
    each = found(**{"acceptance.uncertainty": 0.3, "workload.new_tokens": 96})
    assert (each.cases.simulated, each.cases.count) == (4, 20)
    stated = dict.fromkeys(each.cases.inputs, 1.0)
    drawn = [stated, *drawn_factors(each.cases.inputs, 20, 0)]
    for name, tokens, share in (("pp", 32, 1e-6), ("pp", 96, 1e-3), ("chain", 96, 0.12)):
        plan = each.best_of_each[name].candidate.scenario.with_(**{"workload.new_tokens": tokens})
        points = [
            Point(str(n), in_case(plan, each.cases.inputs, case)) for n, case in enumerate(drawn)
        ]
        first, *means = [o.metrics[METRIC].mean for o in simulate_points(points, say).values()]
        factors = each.cases.values[name] / each.cases.stated[name]
        assert factors * first == pytest.approx(means, rel=share), (name, tokens)
    assert found(**{"acceptance.uncertainty": 0.3, "search.cases": 4}).cases.simulated == 4
    assert (
        found(
            **{"search.goal": "slo_attainment", "serving.slo.time_to_first_token_ms": 99.0}
        ).cases.simulated
        == 20
    )


def test_orthogonal_levels_have_the_spread_of_normal_ones() -> None:
    for inputs in range(1, 10):
        levels = orthogonal_levels(inputs)
        assert (levels.T @ levels == len(levels) * np.eye(inputs)).all()
        assert not levels.sum(axis=0).any()
        assert inputs < len(levels) <= 2 * inputs


def test_measured_inputs_and_no_cases_leave_the_verdict_as_it_is() -> None:
    measured = found(pipelines=[{"stages": [{"device": "emulated-20ms"}]}], target={"layers": 4})
    assert measured.cases is None
    assert found(**{"search.cases": 0}).cases is None
    assert plan_content(measured)["uncertain_inputs"] == {}


def test_factors_are_lognormal_and_independent() -> None:
    inputs = {Estimated("device", "a"): 0.4, Estimated("link", "b"): 1.0}
    drawn = np.log([list(factors.values()) for factors in drawn_factors(inputs, 512, 3)])
    for column, share in zip(drawn.T, inputs.values(), strict=True):
        assert stats.kstest(column / (log1p(share) / 1.96), "norm").pvalue > 0.01
        assert np.mean(np.abs(column) < log1p(share)) == pytest.approx(0.95, abs=0.01)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.15


def test_a_plan_with_all_figures_of_another_shares_its_cases() -> None:
    """For a single request SpecPipe-DB is SpecPipe: in the cases, too."""
    names, one = ("specpipe", "specpipe_db"), ("batch", "layers_per_step")
    grid = {"schedule.width": [2], "schedule.children": [2], **{f"schedule.{k}": [1] for k in one}}
    each = found(**{"search.schedules": [*names], "search.grid": grid})
    assert len(each.ranking) == 1
    first, second = (each.cases.values[name].tolist() for name in names)
    assert first == second
    scale = {"devices": {"jetson-agx-orin": 1.3}, "misses": 0.8}
    plans = [each.best_of_each[name].candidate.scenario for name in names]
    points = [Point(p.schedule.name, p.with_(scale=scale, runs=RUNS)) for p in plans]
    first, second = (o.metrics[METRIC].mean for o in simulate_points(points, say).values())
    assert first == second
