"""Roles that share a machine, and machines that idling slows down: figures written out by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tests.worlds.changed import changed
from tests.worlds.demo import demo, deployed
from tests.worlds.timed_pipeline import STAGES, make_deployment, plain, static, times
from treepipe.core.errors import UserError
from treepipe.physics.timing import LinkTimes
from treepipe.results.metrics import run_metrics, utilization
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.machines import Machine
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.clock import Clock
from treepipe.sim.device import RolePlace, places
from treepipe.sim.made_pools import bernoulli_pool
from treepipe.sim.world import simulate

NAMES = ["draft", *(f"stage{n}" for n in range(1, STAGES + 1))]


def shared(deployment: Deployment, *roles: str, capacity: int = 1) -> Deployment:
    """The deployment with these roles on one machine, and no time on links."""
    machine = Machine("box", roles, capacity)
    return changed(deployment, machines=(machine,), default=LinkTimes(0.0))


def decode(deployment: Deployment, beta: float = 1.0) -> Trace:
    return simulate(deployment, PoolSource(bernoulli_pool(beta), 1, 0))


def work(machine: Machine, asks: list[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """(role, start, end) of pieces of work, each asked for as (role, time, duration)."""
    clock = Clock()
    at = places(clock, dict.fromkeys(machine.roles, machine), set(machine.roles), 0)
    found: list[tuple[str, float, float]] = []

    def done(role: str, place: RolePlace, event: object) -> None:
        found.append((role, place.started_ms, clock.now))

    def ask(role: str, duration: float, event: object) -> None:
        at[role].work(duration, partial(done, role, at[role]))

    for role, time, duration in asks:
        clock.after(time, partial(ask, role, duration))
    clock.run()
    return found


def test_one_at_a_time_first_come_first_served() -> None:
    asks = [("a", 0.0, 10.0), ("c", 1.0, 5.0), ("b", 2.0, 1.0), ("a", 30.0, 2.0)]
    found = work(Machine("box", ("a", "b", "c")), asks)
    assert found == [("a", 0, 10), ("c", 10, 15), ("b", 15, 16), ("a", 30, 32)]


def test_as_many_at_once_as_the_capacity() -> None:
    asks = [("a", 0.0, 10.0), ("b", 1.0, 5.0), ("c", 2.0, 1.0)]
    found = work(Machine("box", ("a", "b", "c"), capacity=2), asks)
    assert found == [("b", 1, 6), ("c", 6, 7), ("a", 0, 10)]


def test_a_pipeline_on_one_machine_loses_its_overlap() -> None:
    """A static tree's segments follow one behind another; on one machine nothing overlaps."""
    deployment = changed(make_deployment(static, times(prune=0.0)), default=LinkTimes(0.0))
    alone, together = decode(deployment), decode(shared(deployment, *NAMES[1:]))
    assert [r.tokens for r in alone.requests] == [r.tokens for r in together.requests]
    spans = [span for span in together.spans if span.kind == "compute"]
    assert sum(s.end_ms - s.start_ms for s in spans) == pytest.approx(20.0 * len(spans))
    ends = sorted(span.end_ms for span in spans)
    starts = sorted(span.start_ms for span in spans)
    assert all(start >= end - 1e-9 for end, start in zip(ends, starts[1:], strict=False))
    # One round of five segments over four stages: 8 stage times alone, 20 on one machine.
    assert together.requests[0].finished_ms > 2 * alone.requests[0].finished_ms


def test_plain_decoding_of_one_request_needs_no_more_than_one_machine() -> None:
    deployment = changed(make_deployment(plain), default=LinkTimes(0.0))
    alone, together = decode(deployment), decode(shared(deployment, *NAMES))
    assert run_metrics(alone) == run_metrics(together)
    busy = utilization(together)
    assert busy["box"] == pytest.approx(sum(busy[name] for name in NAMES))
    assert busy["box"] == pytest.approx(1.0), "one thing after another, and no link"
    assert "box" not in utilization(alone)


def test_two_pipelines_on_one_machine_take_turns() -> None:
    """Two requests of plain decoding, a stage each: alone 20 + 3 ms per token, together the
    machine is the bottleneck with 40 ms for two tokens."""
    one = make_deployment(plain, [times(), times()], requests=2, tokens=101)
    second = replace(one.roles.pipelines[0][0], name="other1")
    deployment = changed(one, pipelines=(one.roles.pipelines[0], (second,)), clients=2)
    deployment = changed(deployment, default=LinkTimes(0.0))
    gaps = [
        run_metrics(decode(each))["time_between_tokens_ms"]
        for each in (deployment, shared(deployment, "stage1", "other1"))
    ]
    assert gaps[0] == pytest.approx(23.0, rel=0.01), "stage, evaluation, decision"
    assert gaps[1] == pytest.approx(40.0, rel=0.01)
    metrics = utilization(decode(shared(deployment, "stage1", "other1", capacity=2)))
    assert metrics["box"] == pytest.approx((metrics["stage1"] + metrics["other1"]) / 2)


def test_a_pass_behind_an_idle_gap_takes_longer() -> None:
    machine = Machine("box", ("a",), idle_factor=((0.0, 1.0), (10.0, 1.0), (30.0, 2.0)))
    asks = [("a", 0.0, 4.0), ("a", 28.0, 4.0), ("a", 45.0, 4.0), ("a", 50.0, 4.0)]
    # Idle since ever: twice as long. Then 20 ms: halfway. Then 11 ms: 1.05. Then 0.8 ms: warm.
    found = work(machine, asks)
    assert [end - start for _, start, end in found] == pytest.approx([8.0, 6.0, 4.2, 4.0])


def test_a_turn_of_the_draft_is_as_cold_as_its_beginning() -> None:
    """Seven passes of 3 ms each; whatever comes back took 20 ms, so all turns are cold."""
    deployment = changed(make_deployment(static, times(prune=0.0)), default=LinkTimes(0.0))
    cold = Machine("draft", ("draft",), idle_factor=((0.0, 1.0), (5.0, 1.5)))
    trace = decode(changed(deployment, machines=(cold,)))
    drafts = [s for s in trace.spans if s.kind == "draft"]
    lengths = [s.end_ms - s.start_ms for s in drafts]
    assert len(drafts) % 7 == 0
    assert lengths == pytest.approx([4.5] * len(drafts)), "a turn has one gap, before all of it"


HOSTS = 'pipelines=[{stages=[{device={},count=3,host="box"},{device={}}]}]'


def test_a_host_is_shared_by_all_that_name_it() -> None:
    deployment = deployed(HOSTS, "hosts.box.capacity=2", 'drafts.0.host="box"')
    box = deployment.roles.machine("draft0")
    assert box.roles == ("draft0", *(f"pipeline0.stage{n}" for n in (1, 2, 3)))
    assert box.capacity == 2
    assert box.contended
    assert deployment.roles.machine("pipeline0.stage4").roles == ("pipeline0.stage4",)
    from treepipe.executor.launch import prepare

    with pytest.raises(UserError, match=r"share host 'box' of capacity 1.*hosts.box.capacity to 3"):
        prepare(demo(HOSTS))
