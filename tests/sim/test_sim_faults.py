"""Workers that fail in the simulated world: the text is kept, and times follow by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.any_section import SCHEDULES
from tests.worlds.changed import changed
from tests.worlds.demo import POOL, demo, deployed, simulated
from tests.worlds.examples import examples
from tests.worlds.recording_source import RecordingSource
from tests.worlds.timed_pipeline import (
    DECIDE,
    EVALUATE,
    HOP,
    gaps,
    make_deployment,
    plain,
    run,
)
from treepipe.core.errors import RunError
from treepipe.core.failover import Fault, FaultKind, Spare
from treepipe.core.recovery import TELL_MS
from treepipe.physics.timing import Factor, HostTimes, LinkTimes, TimeTable
from treepipe.results.result import make_result
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, Machine
from treepipe.scenario.faults import Faults, Injected
from treepipe.scenario.resolve import resolve
from treepipe.sim.predict import predict
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

KINDS: tuple[FaultKind, ...] = ("kill", "stop", "cut")
RESTART_MS, TIMEOUT_MS = 700.0, 1000.0
NOTICED_MS: dict[FaultKind, float] = {"kill": 0.0, "stop": 800.0, "cut": 900.0}
"""A sign of life every 100 ms, and a look as often."""

FLAT = TimeTable({1: 0.4})
COSTS = HostTimes(FLAT, FLAT, 0.2, FLAT, Factor({}), 0.0, Factor({}))
"""Of a host on which messages and decisions take time."""


def asked(name: str, *settings: str) -> Deployment:
    workload = "workload={requests=3,concurrency=2,prompt_tokens=9,new_tokens=8}"
    schedule = f"schedule={{name={name!r},tree_size=8,tree_depth=3,width=4,expand_depth=2}}"
    return deployed(workload, schedule, *settings)


def failing(deployment: Deployment, *injected: Injected, spares: int = 9) -> Deployment:
    return changed(
        deployment,
        timeout_ms=TIMEOUT_MS,
        spares=spares,
        restart_ms=RESTART_MS,
        injected=injected,
        spare_workers=(),
    )


DrawnFault: TypeAlias = tuple[float, int, FaultKind, float | None]
"""When, as a share of the undisturbed run; whose, counted in the deployment; how; for how long."""


def drawn_faults(longest_ms: float) -> st.SearchStrategy[list[DrawnFault]]:
    lasts = st.none() | st.floats(1.0, longest_ms)
    kinds = st.sampled_from(KINDS)
    each = st.tuples(st.floats(0, 1), st.integers(0, 4), kinds, lasts)
    return st.lists(each, min_size=1, max_size=3)


def ended_ms(trace: Trace) -> float:
    return max(request.finished_ms for request in trace.requests)


def texts(trace: Trace) -> list[tuple[int, ...]]:
    return [request.tokens for request in trace.requests]


@pytest.mark.parametrize("name", SCHEDULES)
@examples(24)
@given(drawn_faults(1500.0))
def test_no_fault_changes_a_text(name: str, faults: list[DrawnFault]) -> None:
    """Whoever fails, whenever: no token is lost, none comes twice, and a recording is whole."""
    deployment = asked(name)
    undisturbed = simulated(deployment)
    end_ms = ended_ms(undisturbed)
    devices = deployment.roles.devices
    injected = [
        Injected(devices[worker], kind, share * end_ms, for_ms=None if kind == "kill" else for_ms)
        for share, worker, kind, for_ms in faults
    ]
    source = RecordingSource(POOL)
    trace = simulate(failing(deployment, *injected), source)
    assert texts(trace) == texts(undisturbed)
    for request in trace.requests:
        assert sum(count for _, count in request.emitted) == len(request.tokens)
        assert [at for at, _ in request.emitted] == sorted(at for at, _ in request.emitted)
    assert trace.faults
    for fault in trace.faults:
        if fault.detected_ms is not None:
            assert fault.at_ms is not None
            assert fault.detected_ms == pytest.approx(fault.at_ms + NOTICED_MS[fault.kind])
            assert fault.recovered_ms == pytest.approx(fault.detected_ms + RESTART_MS)
    replay = ReplaySource(source.recording(trace))
    assert texts(simulate(deployment, replay)) == texts(undisturbed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lost", ["stage1", "draft"])
def test_recovery_by_hand(lost: str, kind: FaultKind) -> None:
    """Plain decoding: the committed text is read as a prompt is, then every token takes a lap.

    A stage's loss does not touch what is committed. Of a draft's last tokens those that it had not
    told are decoded again.
    """
    deployment = make_deployment(plain, requests=1)
    before = run(deployment, 0.5)
    (request,) = before.requests
    times = [at for at, _ in request.emitted]
    (lap,) = {round(gap, 6) for gap in gaps(request)}
    assert lap < TELL_MS < 2 * lap, "every second token is told"
    first_ms, at_ms = times[0], times[5] + 1.0
    after = run(failing(deployment, Injected(lost, kind, at_ms)), 0.5)
    (fault,) = after.faults
    noticed_ms = at_ms + NOTICED_MS[kind]
    recovered_ms = noticed_ms + RESTART_MS
    assert fault == Fault(lost, kind, at_ms, pytest.approx(noticed_ms), pytest.approx(recovered_ms))
    kept = 5 if lost == "draft" else 6
    left = len(request.tokens) - kept
    expected = times[:kept] + [recovered_ms + first_ms + n * lap for n in range(left)]
    assert [at for at, _ in after.requests[0].emitted] == pytest.approx(expected)
    assert after.requests[0].tokens == request.tokens


def test_a_spare_with_an_address_has_its_own_links() -> None:
    """Two stages in a row are lost, one after the other: then a token takes a lap to the first
    spare and on, then one to it, to the second one and on, which is far from the first."""
    first, second, far, between = "10.0.0.8:5600", "10.0.0.9:5600", 11.0, 40.0
    alone = make_deployment(plain, tokens=60)
    links = {(spare, role): far for spare in (first, second) for role in alone.roles.devices}
    links[first, second] = between
    both_ways = {
        ends: LinkTimes(latency) for pair, latency in links.items() for ends in (pair, pair[::-1])
    }
    lost = (Injected("stage1", "kill", 1000.0), Injected("stage2", "kill", 3500.0))
    faults = Faults(TIMEOUT_MS, 2, RESTART_MS, lost, (first, second))
    (request,) = run(changed(alone, pairs=both_ways, faults=faults), 0.5).requests
    times = [at for at, _ in request.emitted]
    found = [
        {round(b - a, 6) for a, b in itertools.pairwise(times) if since < a and b < until}
        for since, until in ((0.0, 1000.0), (1700.0, 3500.0), (4200.0, math.inf))
    ]
    (lap,) = {round(gap, 6) for gap in gaps(run(alone, 0.5).requests[0])}
    detour = 2 * (far - HOP)
    assert found == [{lap}, {lap + detour}, {lap + detour + between - HOP}]


@pytest.mark.parametrize(("kind", "early_ms"), [("stop", 1.0), ("kill", 0.0)])
def test_a_fault_that_nobody_notices_any_more_is_told(kind: FaultKind, early_ms: float) -> None:
    deployment = make_deployment(plain, requests=1)
    before = run(deployment, 0.5)
    at_ms = before.requests[0].finished_ms - early_ms
    trace = run(failing(deployment, Injected("stage1", kind, at_ms), spares=0), 0.5)
    assert trace.requests == before.requests
    (fault,) = make_result("simulation", "test", 0, [trace]).to_json()["faults"]
    assert {key: value for key, value in fault.items() if value is not None} == {
        "worker": "stage1",
        "kind": kind,
        "at_ms": at_ms,
    }
    assert "faults" not in make_result("simulation", "test", 0, [before]).to_json()


@pytest.mark.parametrize("kind", ["stop", "cut"])
def test_what_ends_by_itself_before_it_is_noticed_costs_its_time(kind: FaultKind) -> None:
    """In a pass of the stage it costs all tokens behind it as much; while the stage would have
    waited anyway, nothing; and one that is too long is a loss."""
    deployment = make_deployment(plain, requests=1)
    before = run(deployment, 0.5)
    times = [at for at, _ in before.requests[0].emitted]
    passes = (s.start_ms for s in before.spans if s.device == "stage2")
    begin_ms = next(start for start in passes if start > times[4])
    for after_ms, for_ms, late_ms in ((5.0, 300.0, 300.0), (21.0, 30.0, 0.0)):
        fault = Injected("stage2", kind, begin_ms + after_ms, for_ms=for_ms)
        trace = run(failing(deployment, fault, spares=0), 0.5)
        assert trace.faults == [Fault("stage2", kind, fault.at_ms, None)]
        expected = [at + (late_ms if at > begin_ms else 0.0) for at in times]
        assert [at for at, _ in trace.requests[0].emitted] == pytest.approx(expected)
    long = Injected("stage2", kind, begin_ms + 5.0, for_ms=TIMEOUT_MS)
    both = [run(failing(deployment, each), 0.5) for each in (long, replace(long, for_ms=None))]
    assert both[0].faults == both[1].faults


def test_a_draft_that_stands_still_for_a_while_answers_later() -> None:
    deployment = make_deployment(plain, requests=1)
    times = [at for at, _ in run(deployment, 0.5).requests[0].emitted]
    stopped = Injected("draft", "stop", times[4] + 10.0, for_ms=400.0)
    trace = run(failing(deployment, stopped, spares=0), 0.5)
    found = [at for at, _ in trace.requests[0].emitted]
    assert found[:5] == pytest.approx(times[:5])
    late_ms = {round(a - b, 6) for a, b in zip(found[5:], times[5:], strict=True)}
    assert len(late_ms) == 1
    assert found[5] == pytest.approx(times[4] + 410.0 + EVALUATE + DECIDE)


def test_a_loss_without_a_spare_is_one_sentence() -> None:
    fault = Injected("pipeline0.stage2", "kill", 40.0)
    with pytest.raises(RunError, match=r"^pipeline0\.stage2 fails 40 ms after .* no spare is left"):
        simulated(failing(asked("flowspec"), fault, spares=0))


@pytest.mark.parametrize("name", SCHEDULES)
@examples(16)
@given(st.floats(0, 1), st.integers(0, 3), st.sampled_from(KINDS), st.booleans())
def test_of_several_pipelines_the_others_go_on(
    name: str, share: float, stage: int, kind: FaultKind, hosts: bool
) -> None:
    """As in a run: what the lost one's requests had stays, and the others' texts are whole."""
    deployment = asked(name, 'pipelines=[{count=2,stages=[{count=4,device="emulated-20ms"}]}]')
    if hosts:
        box = Machine("box", deployment.roles.devices, costs=COSTS)
        deployment = changed(deployment, machines=(box,))
    undisturbed = simulated(deployment)
    at_ms = share * undisturbed.requests[0].finished_ms
    lost = Injected(f"pipeline0.stage{stage + 1}", kind, at_ms)
    again = replace(lost, at_ms=at_ms + TIMEOUT_MS)  # who is gone does not fail again
    trace = simulated(failing(deployment, lost, again, spares=0))
    assert len(trace.requests) == len(undisturbed.requests)
    for request, whole in zip(trace.requests, undisturbed.requests, strict=True):
        assert request.tokens == whole.tokens[: len(request.tokens)]
        if request.reason == "worker lost":
            assert request.pipeline == 0
        else:
            assert request.tokens == whole.tokens
    for fault in trace.faults:
        assert (fault.worker, fault.kind, fault.recovered_ms) == (lost.worker, kind, None)
    noticed = [fault for fault in trace.faults if fault.detected_ms is not None]
    said = [each for each in trace.warnings if "the other pipelines go on" in each]
    assert len(noticed) == len(said) <= 1
    if noticed:
        later = [r.pipeline for r in trace.requests if r.started_ms > noticed[0].detected_ms]
        assert 0 not in later, "it is given nothing more"


def test_that_no_critical_path_is_told_is_said_once() -> None:
    few = ["runs=2", "workload.requests=1", "workload.new_tokens=4"]
    inject = 'faults.inject=[{worker="draft0",kind="kill",at_ms=9}]'
    spared = demo(*few, inject, "faults.spares=1")
    traces = predict(spared, paths=True)
    content = make_result("simulation", "test", 0, traces).to_json()
    assert sum("no critical path is told" in each for each in content["warnings"]) == 1
    assert not any("critical path" in each for trace in predict(spared) for each in trace.warnings)


# --- in a scenario ------------------------------------------------------------------------------


def test_faults_of_a_scenario_are_a_list_or_a_table() -> None:
    one = '[{worker="draft0",kind="kill",at_ms=5}]'
    short, long = demo(f"faults={one}"), demo(f"faults.inject={one}")
    assert resolve(short).faults == resolve(long).faults
    spared = resolve(short.with_(**{"faults.spares": 2, "faults.inject.0.at_ms": 7})).faults
    assert (spared.all_spares, spared.injected[0].at_ms) == ((Spare(), Spare()), 7.0)
    named = resolve(short.with_(**{"faults.spares": ["127.0.0.1:5601"]})).faults
    assert named.all_spares == (Spare("127.0.0.1:5601"),)
