"""Simulations in lanes: each lane is its own simulation, or it is not answered from the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.worlds.any_section import SCHEDULES, sections
from tests.worlds.equal_stages import LINK, one_at_a_time
from tests.worlds.examples import examples
from tests.worlds.random_scenarios import scenarios
from treepipe.core.errors import RunError, UserError
from treepipe.results.metrics import run_metrics, utilization
from treepipe.results.trace import Trace
from treepipe.scenario.scenario import Scenario
from treepipe.sim import alike
from treepipe.sim.lanes import Kept, LaneClock, Times
from treepipe.sim.predict import alike as alike_ones
from treepipe.sim.predict import predict, predict_alike

SHIPPED = sorted((Path(__file__).parents[2] / "studies" / "scenarios").glob("*.toml"))
FACTORS = ("stages", "drafts", "latency", "bandwidth")


def varied(scenario: Scenario, factors: Sequence[float]) -> Scenario:
    scale = dict(zip(FACTORS, factors, strict=True))
    return scenario.with_(**{f"scale.{key}": factor for key, factor in scale.items()})


def told(trace: Trace) -> tuple[Any, ...]:
    """All events of a run, but for the order in which a simulation notes them."""
    spans = sorted(
        (s.device, s.kind, s.session, s.tokens, s.start_ms, s.end_ms) for s in trace.spans
    )
    turns = sorted((t.draft, t.arrived_ms, t.started_ms, t.ended_ms) for t in trace.turns)
    return spans, trace.requests, turns, trace.machines, trace.slo, sorted(trace.warnings)


def own(scenario: Scenario) -> list[Trace] | str:
    try:
        return predict(scenario)
    except (UserError, RunError) as error:
        return str(error)


def assert_own(variants: Sequence[Scenario], *, lanes_alone: bool = False) -> None:
    """``lanes_alone``: variants of one run that no lane answers, which are simulated as ``predict``
    does, are not simulated once more."""
    with patch.object(alike, "simulate", wraps=alike.simulate) as once_more:
        pairs = [(each, once_more.call_count) for each in predict_alike(variants)]
    calls = [0, *(count for _, count in pairs)]
    for number, (variant, (found, _)) in enumerate(zip(variants, pairs, strict=True)):
        if lanes_alone and isinstance(found, list) and calls[number + 1] > calls[number]:
            assert len(found) == 1
            continue
        expected = own(variant)
        if isinstance(found, list):
            assert not isinstance(expected, str)
            for trace, alone in zip(found, expected, strict=True):
                assert told(trace) == told(alone)
                figures = None if trace.figures is None else trace.figures()
                assert figures in (None, (run_metrics(alone), utilization(alone)))
        else:
            assert str(found) == expected


factor = st.sampled_from([0.5, 0.9, 0.99, 1.0, 1.01, 1.1, 2.0])
lanes = st.lists(st.tuples(factor, factor, factor, factor), min_size=2, max_size=4)


@examples(200, suppress_health_check=list(HealthCheck), deadline=None)
@given(scenarios, lanes)
def test_a_lane_is_its_own_simulation(scenario: Scenario, factors: Any) -> None:
    """No number is rounded otherwise, so 1e-9 ms need no tolerance."""
    assert_own([scenario, *(varied(scenario, each) for each in factors)])


def test_a_turn_at_the_time_of_the_end_is_counted_where_it_was_before_the_end() -> None:
    """A lane of which that cannot be told is simulated alone."""
    content = {
        "name": "a draft server that has a turn when the last request is over",
        "target": {},
        "schedule": {"name": "pipedec", "overlapped_pruning": True},
        "acceptance": {"source": "bernoulli", "beta": 0},
        "drafts": [{"device": {}, "host": "solo"}],
        "pipelines": [{"stages": [{"device": {}}, {"device": {}, "host": "solo"}]}],
        "workload": {"new_tokens": {"distribution": "uniform", "min": 1, "max": 9}},
    }
    scenario = Scenario.of(content)
    assert_own([scenario, *[varied(scenario, [0.5] * 4)] * 2])


def test_the_end_of_a_run_lets_nothing_follow_that_shares_its_event() -> None:
    """A stage answered the last message at the time of the end, in its own simulation only."""
    solo, box = {"device": {}, "host": "solo", "count": 2}, {"host": "box"}
    fast = {"device": {"stage_ms": {4: 1e-9}}, **box}
    lognormal = {"distribution": "lognormal", "mean": 5, "cv": 2.0}
    content = {
        "name": "a draft server beside two stages",
        "target": {},
        "schedule": {"name": "spd"},
        "acceptance": {"source": "hit_ratio", "table": {1: 0.5, 4: 0.9}},
        "drafts": [{"device": {}, "host": "solo"}],
        "pipelines": [
            {"stages": [solo, fast]},
            {"stages": [{"device": {}, **box, "count": 3}], "count": 2},
        ],
        "workload": {
            "requests": 3,
            "prompt_tokens": lognormal,
            "new_tokens": lognormal,
            "concurrency": 2,
            "arrivals": {"process": "poisson", "rate_per_s": 0.01},
        },
    }
    scenario = Scenario.of(content)
    assert_own([scenario, *[varied(scenario, [0.9] * 4)] * 2])


pipeline = st.fixed_dictionaries(
    {
        "device": st.fixed_dictionaries(
            {"stage_ms": st.sampled_from([{1: 20.0}, {1: 20.0, 64: 26.0}])},
            optional={"prune_ms": st.sampled_from([0.5, 3.0])},
        ),
        "count": st.integers(2, 4),
    }
)
requests_alone = st.builds(
    one_at_a_time,
    pipeline,
    st.just({})
    | st.builds(dict, tree_size=st.just(24), segment_tokens=st.just(6), cancels=st.booleans())
    | sections,
    st.sampled_from(["flowspec", "flowspec_free", "pruned_pp"]) | st.sampled_from(SCHEDULES),
    st.sampled_from([{"latency_ms": 1.0}, LINK]),
)
near = st.sampled_from([0.9, 0.999, 1.0, 1.001, 1.1])
words_ms = st.sampled_from([0.1, 1.0, 8.0, 21.0, 60.0, 200.0])


@examples(240, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    requests_alone, st.lists(st.tuples(near, near, near, near, words_ms), min_size=3, max_size=6)
)
def test_a_stage_acts_when_it_would_in_each_lane(scenario: Scenario, lanes: Any) -> None:
    """Equal stages end their work when segments come, so in many lanes these change places; and
    words come late to one of them."""
    variants = [varied(scenario, factors) for *factors, _ in lanes]
    late = [words for *_, words in lanes]
    pairs = zip(variants, late, strict=True)
    few = {"workload.new_tokens": 12}
    late_words = [each.with_(**{"links.pairs.0.latency_ms": at}, **few) for each, at in pairs]
    assert_own(late_words, lanes_alone=True)


def test_what_alike_scenarios_share_is_that_of_each() -> None:
    """Placements, requests and metrics: variants in all that may differ."""
    scenario = Scenario.load(SHIPPED[0].with_name("flowspec.toml"))
    scenario = scenario.with_(**{"workload.requests": 2, "workload.new_tokens": 8, "runs": 2})
    changes = (
        {"links.default": {"latency_ms": 0.5}},
        {"drafts.0.device": {"draft_ms": {1: 1.0}}},
        {"pipelines.0.stages.0.device.prune_ms": 1.0},
        {"scale.roles.draft0": 2.0},
        {"workload.arrivals": {"process": "poisson", "rate_per_s": 2.0}},
        {"workload.arrivals": {"process": "poisson", "rate_per_s": 3.0}},
    )
    variants = [scenario, *(scenario.with_(**each) for each in changes)]
    groups = alike_ones(variants)
    assert sorted(map(len, groups)) == [2, 5]
    for group in groups:
        assert_own([variants[number] for number in group])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenarios_lanes(path: Path) -> None:
    scenario = Scenario.load(path).with_(**{"workload.requests": 2, "workload.new_tokens": 24})
    scenario = scenario.with_(runs=1)
    draws = np.random.default_rng(0).uniform(0.95, 1.05, (5, len(FACTORS)))
    assert_own([scenario, *(varied(scenario, each) for each in draws.tolist())])


def answered(monkeypatch: pytest.MonkeyPatch, variants: Sequence[Scenario]) -> list[int]:
    """Return how many lanes each simulation in lanes has answered."""
    counts, in_lanes = list[int](), alike._in_lanes

    def counted(*args: Any) -> Any:
        found = in_lanes(*args)
        counts.append(sum(trace is not None for trace in found))
        return found

    monkeypatch.setattr(alike, "_in_lanes", counted)
    assert_own(variants)
    return counts


def test_lanes_keep_together_where_no_order_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario.load(SHIPPED[0].with_name("pp.toml"))
    scenario = scenario.with_(**{"workload.requests": 2, "workload.new_tokens": 8, "runs": 1})
    variants = [varied(scenario, (each, each, 1.0, 1.0)) for each in (0.5, 0.9, 1.0, 1.1, 2.0)]
    assert answered(monkeypatch, variants) == [5]
    traces = [found[0] for found in predict_alike(variants) if isinstance(found, list)]
    assert all(trace.figures is not None and trace.figures() for trace in traces)


def test_segments_may_come_before_or_behind_the_end_of_a_stage_s_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stages of equal times: which is first differs by rounding alone, and then by much."""
    stages = {"device": {"stage_ms": {1: 20.0, 64: 26.0}}, "count": 4}
    scenario = one_at_a_time(stages, {}, "flowspec", LINK)
    latencies = [
        scenario.with_(**{"links.default.latency_ms": each}) for each in (1.0, 1.2, 1.5, 2.0)
    ]
    assert answered(monkeypatch, latencies) == [4]


def test_lanes_that_leave_the_order_are_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link ten times as slow changes which of a word and a segment comes first."""
    scenario = Scenario.load(SHIPPED[0].with_name("flowspec.toml"))
    scenario = scenario.with_(**{"workload.requests": 1, "workload.new_tokens": 24, "runs": 1})
    variants = [varied(scenario, (1.0, 1.0, each, 1.0)) for each in (1.0, 100.0, 1.0, 1.0)]
    assert answered(monkeypatch, variants)[0] == 3


@pytest.mark.parametrize(
    ("places", "kept"), [(("role", "role"), [True, True, False]), (("role", "other"), [True] * 3)]
)
def test_a_place_meets_steps_in_lane_0_s_order(places: tuple[str, str], kept: list[bool]) -> None:
    lanes = Kept(3)
    clock, met = LaneClock(lanes), list[str]()

    def meet(place: str, _: object) -> None:
        clock.touch(place)
        met.append(place)

    for place, due in zip(places, ([1.0, 1.0, 3.0], [2.0, 3.0, 2.0]), strict=True):
        clock.after(Times(np.array(due), lanes), partial(meet, place))
    clock.step()
    clock.step()
    clock.check()
    assert met == [*places]
    assert lanes.lanes.tolist() == kept


def test_a_comparison_keeps_the_lanes_that_agree() -> None:
    lanes = Kept(3)
    assert Times(np.array([1.0, 2.0, 5.0]), lanes) < 3.0
    assert lanes.lanes.tolist() == [True, True, False]
    assert not Times(np.array([0.0, 2.0, 0.0]), lanes)
    assert lanes.lanes.tolist() == [True, False, False]
