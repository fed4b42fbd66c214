"""Simulations in lanes: each lane is its own simulation, or it is not answered from the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.worlds.examples import examples
from tests.worlds.random_scenarios import scenarios
from treepipe.core.errors import RunError, UserError
from treepipe.results.trace import Trace
from treepipe.scenario.scenario import Scenario
from treepipe.sim import alike
from treepipe.sim.lanes import Kept, LaneClock, Times
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


def assert_own(variants: Sequence[Scenario]) -> None:
    for variant, found in zip(variants, predict_alike(variants), strict=True):
        expected = own(variant)
        if isinstance(found, list):
            assert not isinstance(expected, str)
            for trace, alone in zip(found, expected, strict=True):
                assert told(trace) == told(alone)
        else:
            assert str(found) == expected


factor = st.sampled_from([0.5, 0.9, 0.99, 1.0, 1.01, 1.1, 2.0])
lanes = st.lists(st.tuples(factor, factor, factor, factor), min_size=2, max_size=4)


@examples(200, suppress_health_check=list(HealthCheck), deadline=None)
@given(scenarios, lanes)
def test_a_lane_is_its_own_simulation(scenario: Scenario, factors: Any) -> None:
    """No number is rounded otherwise, so 1e-9 ms need no tolerance."""
    assert_own([scenario, *(varied(scenario, each) for each in factors)])


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
