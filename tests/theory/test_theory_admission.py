"""Admission by N_max: the number, what it does in a simulation, and where there is none."""

from __future__ import annotations

import math

import pytest

from tests.worlds.theory_scenarios import Written, stages_of, targets_of
from treepipe import simulate
from treepipe.core.errors import UserError
from treepipe.planner.candidates import find_candidates
from treepipe.planner.cluster import Cluster
from treepipe.scenario.resolve import resolve
from treepipe.sim.theory.closed_form import resolve_admission
from treepipe.sim.theory.tokens import committed

AUTO = ("serving.admission=auto", "workload.requests=20", "workload.concurrency=20")


@pytest.mark.parametrize("targets", [1, 12])
def test_n_max_by_hand_is_what_a_simulation_admits(targets: int) -> None:
    """Alone 15 ms per token; c tokens per round of N * 12 ms: N = 15 c / 12 = 3.47."""
    scenario = Written("starsd", *targets_of(targets, 15.0), *AUTO).scenario
    n_max = int(15.0 * committed(0.7, 4) / 12.0)
    assert n_max == 3
    assert resolve_admission(scenario).serving.admitted == n_max
    result = simulate(scenario)
    assert f"serving.admission = {n_max} by N_max (StarSD, section 4.2)" in result.warnings
    assert sum(each.finished == "refused" for each in result.sessions) == 20 - n_max
    assert resolve_admission(scenario.with_(**{"serving.admission": 2})).serving.admitted == 2


@pytest.mark.parametrize(("stages", "alone_ms"), [(1, 15.0), (2, 40.0)])
def test_a_target_alone_sends_nothing_to_the_draft(stages: int, alone_ms: float) -> None:
    """Links of 5 ms. By hand: 15 ms a token on one device; on two, two passes, the hop between them
    and the token's way back."""
    slow = ("links.default.latency_ms=5", stages_of(*[15.0] * stages))
    scenario = Written("starsd", *targets_of(1, 15.0), *AUTO, *slow).scenario
    n_max = int(alone_ms * committed(0.7, 4) / 12.0)
    assert n_max == {1: 3, 2: 9}[stages]
    assert resolve_admission(scenario).serving.admitted == n_max


def test_each_plan_has_the_n_max_of_its_own() -> None:
    """As above on targets of 15 ms; twice as many fit those that are twice as slow, and a plan
    that has no N_max is refused."""
    content = Written("starsd", *targets_of(4, 15.0), *AUTO).scenario.content
    del content["schedule"]
    slow = {"pipelines.0.stages.0.device": [{"stage_ms": {"1": ms}} for ms in (15.0, 30.0)]}
    schedules, grid = ["starsd", "chain"], {"schedule.gamma": [4], "serving.batch": [1], **slow}
    found, refused = find_candidates(
        Cluster.of({**content, "runs": 2, "search": {"schedules": schedules, "grid": grid}})
    )
    each = committed(0.7, 4) / 12.0
    admitted = [plan.scenario.serving.admitted for plan in found]
    assert admitted == [math.floor(15.0 * each), math.floor(30.0 * each)]
    assert {plan.scenario.serving.admission for plan in found} == {"auto"}, "also where it is run"
    assert all("no closed form" in plan.reason for plan in refused)
    assert "chain" in {plan.schedule for plan in refused}


NO_FORM, ALONE = "key schedule: no closed form applies", "pipelines.0.count=1"
WITHOUT = [
    (("schedule.depth_range=[1,8]",), NO_FORM),
    (("schedule.tree_size=9",), NO_FORM),
    (("acceptance.beta=0.01",), "not even one target is as fast as alone"),
    (("schedule.name=chain", ALONE), "is N_max of StarSD, not of 'chain'"),
    (("schedule.name=eagle", ALONE), "key schedule.name: no closed form"),
    (('acceptance={source="replay",file="x.json"}',), "needs an acceptance to reckon N_max"),
]


@pytest.mark.parametrize(("settings", "sentence"), WITHOUT)
def test_where_there_is_no_n_max_a_sentence_says_so(
    settings: tuple[str, ...], sentence: str
) -> None:
    scenario = Written("starsd", *targets_of(2, 15.0), *AUTO, *settings).scenario
    with pytest.raises(UserError) as refused:
        simulate(scenario)
    assert sentence in str(refused.value)


def test_nobody_else_takes_auto_for_a_number() -> None:
    with pytest.raises(UserError, match="'auto' is for simulate, run, validate, plan and sweep"):
        resolve(Written("starsd", *targets_of(2, 15.0), *AUTO).scenario)
