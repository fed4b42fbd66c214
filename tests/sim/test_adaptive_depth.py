"""StarSD's depth chosen on line: what it knows is right, and what it chooses is about the best."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.worlds.changed import changed
from tests.worlds.demo import demo
from tests.worlds.theory_scenarios import EXACTLY, Written, draft_of, targets_of
from treepipe.core.decoding.pace import Pace
from treepipe.core.protocol import Event, Returned, Schedule
from treepipe.core.schedules.starsd import StarKeys, depth_of
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.resolve import deploy
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import bernoulli_pool
from treepipe.sim.predict import predict
from treepipe.sim.world import simulate

ADAPTIVE = "schedule.depth_range=[1,8]"


def rate(traces: list[Trace]) -> float:
    """Tokens per millisecond."""
    requests = [request for trace in traces for request in trace.requests]
    time = sum(max(r.finished_ms for r in trace.requests) for trace in traces)
    return sum(len(request.tokens) for request in requests) / time


@pytest.mark.long
@pytest.mark.parametrize(
    ("targets", "draft_ms", "beta"),
    [(1, 20.0, None), (8, 20.0, None), (2, 1.0, 0.9), (3, 3.0, 0.5), (8, 8.0, 0.7)],
)
def test_it_comes_within_3_percent_of_the_best_fixed_depth(
    targets: int, draft_ms: float, beta: float | None
) -> None:
    scenario = demo(
        draft_of(draft_ms),
        *(() if beta is None else (f"acceptance={{source='bernoulli',beta={beta}}}",)),
        f"pipelines.0.count={targets}",
        f"workload={{concurrency={targets},requests={targets},new_tokens=150}}",
        "runs=1",
        name="starsd",
    )
    fixed = [rate(predict(scenario.with_(**{"schedule.gamma": d}))) for d in range(1, 9)]
    adaptive = rate(predict(scenario.with_(**{"schedule.depth_range": (1, 8)})))
    assert adaptive > 0.97 * max(fixed)
    assert adaptive > 1.1 * min(fixed), "else any depth would do"


class Heard:
    """A schedule whose events are noted."""

    def __init__(self, schedule: Schedule, told: list[Event]) -> None:
        self._schedule, self._told = schedule, told

    def handle(self, event: Event) -> Any:
        self._told.append(event)
        return self._schedule.handle(event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedule, name)


def heard(deployment: Deployment, beta: float) -> list[Pace]:
    """What a simulation's schedules are told of their draft server, in order."""
    told: list[Event] = []
    noted = changed(
        deployment, new_schedule=lambda *seat: Heard(deployment.service.new_schedule(*seat), told)
    )
    simulate(noted, PoolSource(bernoulli_pool(beta), 1, 0))
    return [event.seen for event in told if isinstance(event, Returned)]


@pytest.mark.parametrize("ends", ["draft", "pipeline"])
@pytest.mark.parametrize("targets", [1, 3, 6])
def test_what_the_draft_server_measures_is_the_closed_forms_s_and_z(
    targets: int, ends: str
) -> None:
    """Constant times, so exactly; waiting in the draft's queue is no part of Z, and the pass that
    reads the prompt, ten times as long, is none of S."""
    verify = "evaluate_ms = { 1 = 2.0 }, decide_ms = 1.0"
    settings = (
        *targets_of(targets, 30.0),
        f"drafts=[{{ device = {{ draft_ms = {{ 1 = 3.0, 5 = 3.0, 9 = 30.0 }}, {verify} }} }}]",
        f"schedule.ends={ends}",
    )
    written = Written("starsd", *settings)
    terms = written.expected().terms
    four = Written("starsd", *settings, "schedule.depth_range=[4,4]")
    told = heard(deploy(four.scenario), 0.7)
    last = told[-1]
    assert last.first_ms is not None
    assert last.first_ms + 3 * last.pass_ms == pytest.approx(terms["service_ms"], rel=EXACTLY)
    assert last.back_ms == pytest.approx(terms["return_ms"], rel=EXACTLY)
    assert last.back_row_ms == 0
    (first,) = {pace.targets for pace in told[: targets + 1]}
    assert first == targets


def test_what_is_accepted_is_learned_across_requests() -> None:
    settings = (ADAPTIVE, "workload.requests=2", "acceptance.beta=1")
    (trace,) = Written("starsd", *targets_of(1, 30.0), *settings).simulated()
    first, second = (request.rounds for request in trace.requests)
    assert first[0].fed < 9
    assert {each.fed for each in second[:-1]} == {9}, "at once as deep as may be"


def test_nothing_is_drafted_beyond_what_is_wanted() -> None:
    settings = (ADAPTIVE, "acceptance.beta=1", "workload.new_tokens=30")
    (trace,) = Written("starsd", *targets_of(1, 30.0), *settings).simulated()
    for request in trace.requests:
        left = 29
        for each in request.rounds:
            assert each.fed <= max(2, left)
            left -= each.tokens


def paced(stage_ms: float, targets: int, share: float, **more: float) -> Pace:
    return Pace(targets, 3.0, 3.0, stage_ms, **more, levels=((share * 1e4, 1e4),) * 8)


def test_the_choice_by_hand() -> None:
    """Tokens over time for S = 3 d: a long way back asks for depth, a full draft for little."""
    choose = partial(depth_of, StarKeys(depth_range=(1, 8)))
    assert choose(Pace(), 99) == 4, "nothing is known"
    assert choose(paced(300.0, 1, 0.7), 99) == 8
    assert choose(paced(3.0, 1, 0.3), 99) == 1
    assert choose(paced(300.0, 1, 0.7), 4) == 3, "a round of depth 3 commits up to 4"
    assert choose(paced(0.0, 8, 0.7), 99) == 1, "N S grows faster than the tokens"
    assert choose(paced(6.0, 2, 0.9), 99) == 2, "from S = Z on the draft is full"
    assert choose(paced(30.0, 1, 0.9, back_row_ms=20.0), 99) < choose(paced(50.0, 1, 0.9), 99)


@pytest.mark.parametrize(
    ("more", "nodes"), [("schedule.branching=[3,2]", 3 + 6 * 7), ("schedule.tree_size=20", 20)]
)
def test_the_shape_of_the_tree_is_kept(more: str, nodes: int) -> None:
    settings = (*targets_of(1, 300.0), ADAPTIVE, "acceptance.beta=1", more)
    (trace,) = Written("starsd", *settings).simulated()
    assert max(each.fed for each in trace.requests[0].rounds) == nodes + 1
