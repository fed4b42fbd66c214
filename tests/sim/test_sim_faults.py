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
    flowspec,
    gaps,
    make_deployment,
    plain,
    run,
)
from treepipe.core.errors import RunError
from treepipe.core.failover import Spare
from treepipe.core.losses import Fault, FaultKind
from treepipe.core.recovery import TELL_MS
from treepipe.core.schedules import systems
from treepipe.physics.host import Factor, HostTimes
from treepipe.physics.timing import LinkTimes, TimeTable
from treepipe.results.result import make_result
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.faults import Faults, Injected
from treepipe.scenario.machines import Machine
from treepipe.scenario.resolve import deploy, resolve
from treepipe.sim.predict import predict
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import Simulation, simulate

REDEALT = "faults.redeal_layers=true"
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


# --- decoded plainly while a draft is away -------------------------------------------------------

DRAFTING = [name for name in SCHEDULES if systems()[name].drafts]


def away(trace: Trace, draft: str) -> list[tuple[float, float]]:
    """From when to when nobody drafted in its place, restarts included."""
    lost = [fault for fault in trace.faults if fault.plain_from_ms is not None]
    assert {fault.worker for fault in lost} <= {draft}
    return [(fault.detected_ms or 0.0, fault.plain_until_ms or math.inf) for fault in lost]


@pytest.mark.parametrize("name", DRAFTING)
@examples(24)
@given(drawn_faults(3000.0))
def test_a_draft_that_is_away_changes_no_text(name: str, faults: list[DrawnFault]) -> None:
    """No spare is left for the draft, and stages are dealt anew: no token is lost, and none comes
    twice; meanwhile nobody drafts, and when what it was lost by is over, it drafts again."""
    deployment = asked(name, REDEALT)
    undisturbed = simulated(deployment)
    end_ms = ended_ms(undisturbed)
    draft = deployment.roles.devices[0]
    always: DrawnFault = (0.3, 0, "stop", TIMEOUT_MS)
    injected = []
    # One of those that strike a worker at one moment: the first decides how long it is away.
    for share, worker, kind, for_ms in {each[:2]: each for each in [*faults, always]}.values():
        if worker < 3:  # one stage is left at least
            lasts = None if kind == "kill" or worker else for_ms
            at_ms = share * end_ms
            injected.append(Injected(deployment.roles.devices[worker], kind, at_ms, for_ms=lasts))
    trace = simulated(failing(deployment, *injected, spares=0))
    assert texts(trace) == texts(undisturbed)
    for request in trace.requests:
        assert sum(count for _, count in request.emitted) == len(request.tokens)
    gone, last_ms = away(trace, draft), ended_ms(trace)
    for span in trace.spans:
        if span.device == draft and span.kind == "draft":
            assert not any(begin < span.start_ms < end for begin, end in gone)
    lengths = {(each.at_ms, each.worker): each.for_ms for each in injected}
    for fault in trace.faults:
        if fault.worker == draft and fault.detected_ms is not None:
            assert fault.at_ms is not None
            assert fault.plain_from_ms == fault.recovered_ms
            for_ms = lengths[fault.at_ms, draft]
            if for_ms is None:
                assert fault.plain_until_ms is None
            elif fault.plain_until_ms is not None:
                assert fault.plain_until_ms >= fault.at_ms + for_ms + RESTART_MS - 1e-6
            elif fault is trace.faults[-1]:
                assert last_ms <= max(fault.at_ms + for_ms, fault.plain_from_ms) + RESTART_MS


def test_plain_decoding_without_a_draft_by_hand() -> None:
    """Behind the restart every token takes plain decoding's lap; when the draft is back, the text
    is read once more, and the rounds are those of a draft that begins there."""
    deployment = changed(make_deployment(flowspec, tokens=60), stand_in=plain)
    before = run(deployment, 1.0)
    laps = run(make_deployment(plain, tokens=60), 1.0).requests[0].emitted
    first_ms, lap = laps[0][0], laps[1][0] - laps[0][0]
    at_ms = before.requests[0].emitted[1][0] + 1.0
    forever = run(failing(deployment, Injected("draft", "kill", at_ms), spares=0), 1.0)
    (fault,) = forever.faults
    plain_ms = at_ms + RESTART_MS
    assert fault == Fault("draft", "kill", at_ms, at_ms, plain_ms, plain_ms)
    behind = [at for at, _ in forever.requests[0].emitted if at > at_ms]
    expected = [plain_ms + first_ms + n * lap for n in range(len(behind))]
    assert behind == pytest.approx(expected)
    assert [n for at, n in forever.requests[0].emitted if at > at_ms] == [1] * len(behind)
    # The same, but it is over 3.5 laps after the first plain token.
    noticed_ms = at_ms + NOTICED_MS["stop"]
    plain_ms = noticed_ms + RESTART_MS
    over_ms = plain_ms + first_ms + 3.5 * lap
    stopped = Injected("draft", "stop", at_ms, for_ms=over_ms - at_ms)
    trace = run(failing(deployment, stopped, spares=0), 1.0)
    (fault,) = trace.faults
    again_ms = over_ms + RESTART_MS
    assert (fault.plain_from_ms, fault.plain_until_ms) == pytest.approx((plain_ms, again_ms))
    (request,) = trace.requests
    assert [at for at, _ in request.emitted if plain_ms < at < over_ms] == pytest.approx(
        [plain_ms + first_ms + n * lap for n in range(4)]
    )
    assert not [at for at, _ in request.emitted if over_ms < at < again_ms + first_ms - 1e-6]
    left = 60 - sum(n for at, n in request.emitted if at < again_ms)
    anew = run(make_deployment(flowspec, tokens=left), 1.0).requests[0]
    assert [at - again_ms for at, _ in request.emitted if at > again_ms] == pytest.approx(
        [at for at, _ in anew.emitted]
    )
    assert request.tokens == before.requests[0].tokens


def test_of_several_draft_servers_the_others_go_on_drafting() -> None:
    two = 'drafts=[{count=2,device="emulated-20ms"}]'
    deployment = asked("flowspec", two, "workload.requests=6", "workload.concurrency=4")
    lost = Injected("draft1", "kill", 60.0)
    trace = simulated(failing(deployment, lost, spares=0))
    assert texts(trace) == texts(simulated(deployment))
    ((gone_ms, _),) = away(trace, "draft1")
    drafting = {s.device for s in trace.spans if s.kind == "draft" and s.start_ms > gone_ms}
    deciding = {s.device for s in trace.spans if s.kind == "evaluate" and s.start_ms > gone_ms}
    assert drafting == {"draft0"}
    assert deciding == {"draft0", "draft1"}


def test_all_targets_of_a_shared_draft_are_decoded_plainly() -> None:
    targets = 'pipelines=[{count=3,stages=[{count=1,device="emulated-20ms"}]}]'
    more = "workload={requests=6,concurrency=3,prompt_tokens=9,new_tokens=90}"
    deployment = asked("starsd", targets, more)
    undisturbed = simulated(deployment)
    stopped = Injected("draft0", "cut", 200.0, for_ms=2500.0)
    trace = simulated(failing(deployment, stopped, spares=0))
    assert texts(trace) == texts(undisturbed)
    assert {request.pipeline for request in trace.requests} == {0, 1, 2}
    (fault,) = trace.faults
    assert fault.plain_until_ms == pytest.approx(200.0 + 2500.0 + RESTART_MS)


def test_whoever_is_away_does_not_fail_and_does_again_when_it_is_back() -> None:
    deployment = asked("flowspec", "workload.new_tokens=60")
    stops = [Injected("draft0", "stop", at, for_ms=2000.0) for at in (100.0, 1900.0, 3500.0)]
    trace = simulated(failing(deployment, *stops, spares=0))
    assert [fault.at_ms for fault in trace.faults] == [100.0, 3500.0]


def test_nobody_stands_in_where_nothing_can() -> None:
    adaptive = ('schedule={name="chain"}', 'sampling={rule="adaptive"}')
    for each in (("faults.plain_without_draft=false",), ('schedule={name="pp"}',), adaptive):
        assert not deployed(*each).faults.stand_in


# --- layers dealt anew ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@examples(16)
@given(
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 4), st.sampled_from(KINDS)),
        max_size=3,
    ),
    st.sampled_from(["emulated-20ms", "rtx-3090"]),
)
def test_layers_that_are_dealt_anew_change_no_text(
    name: str, faults: list[tuple[float, int, FaultKind]], device: str
) -> None:
    """Whatever stages are lost before the end: those that are left hold all layers, and no token is
    lost."""
    stages = f'pipelines=[{{stages=[{{count=4,device="{device}"}}]}}]'
    target = 'target={checkpoint="reference",layers=8}'
    deployment = asked(name, stages, target, REDEALT)
    undisturbed = simulated(deployment)
    end_ms = ended_ms(undisturbed)
    injected = [Injected(f"pipeline0.stage{n}", kind, at * end_ms) for at, n, kind in faults]
    world = Simulation(failing(deployment, *injected, spares=0), POOL, record_spans=True)
    trace = world.run()
    assert texts(trace) == texts(undisturbed)
    left = world.deployment.roles.pipelines[0]
    lost = [fault.worker for fault in trace.faults if fault.recovered_ms is not None]
    assert len(lost) == len({*lost}) == 4 - len(left), "who is lost stays lost"
    assert [layer for stage in left for layer in stage.layers] == [*range(8)]
    for stage in left:
        assert len(stage.layers) in (8 // len(left), -(-8 // len(left)))
    for fault in trace.faults:
        if fault.worker in lost:
            assert not any(
                span.device == fault.worker and span.start_ms > (fault.recovered_ms or 0)
                for span in trace.spans
            )
    assert sum("were dealt anew" in each for each in trace.warnings) == len(lost)


def test_times_of_dealt_layers_by_hand() -> None:
    """Plain decoding: four stages of 20 ms for two layers become three of 30, 30 and 20 ms; a
    token takes as long at the stages, and a hop of 1 ms less."""
    deployment = asked("pp", "workload.concurrency=1", "workload.requests=1", REDEALT)
    before = simulated(deployment)
    (lap,) = {round(gap, 6) for gap in gaps(before.requests[0])}
    at_ms = before.requests[0].emitted[3][0] + 1.0
    lost = Injected("pipeline0.stage3", "kill", at_ms)
    world = Simulation(failing(deployment, lost, spares=0), POOL, record_spans=True)
    after = world.run()
    assert [len(stage.layers) for stage in world.deployment.roles.pipelines[0]] == [3, 3, 2]
    (fault,) = after.faults
    assert fault.recovered_ms is not None
    behind = [at for at, _ in after.requests[0].emitted if at > fault.recovered_ms]
    hop_ms = 1.0  # and what its bytes take
    for one, another in itertools.pairwise(behind):
        assert another - one == pytest.approx(lap - hop_ms, abs=0.02)
    compute = [s for s in after.spans if s.kind == "compute" and s.start_ms > fault.recovered_ms]
    lengths = {span.device: round(span.length_ms, 6) for span in compute}
    assert lengths == {"pipeline0.stage1": 30, "pipeline0.stage2": 30, "pipeline0.stage4": 20}


def test_more_layers_go_where_they_are_done_first_and_none_where_there_is_no_room() -> None:
    fast = {"stage_ms": {1: 5.0}, "memory_mib": 1000}
    slow = {"stage_ms": {1: 20.0}, "memory_mib": 1000}
    stages = [{"device": device, "layers": 2} for device in (slow, fast, slow)]
    lost = Injected("pipeline0.stage3", "kill", 30.0)
    scenario = demo(REDEALT).with_(
        **{"target.layers": 6, "target.hidden_size": 192, "target.checkpoint": None},
        **{"pipelines": [{"stages": stages}]},
        **{"target.layer_mib": 100.0, "target.kv_kib": 1.0},
    )
    deployment = deploy(scenario)
    world = Simulation(failing(deployment, lost, spares=0), POOL, record_spans=False)
    world.run()
    assert [len(stage.layers) for stage in world.deployment.roles.pipelines[0]] == [1, 5]
    full = scenario.with_(**{"target.layer_mib": 400.0})
    with pytest.raises(RunError, match=r"layers of pipeline0 do not fit the stages that are left"):
        simulated(failing(deploy(full), lost, spares=0))


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
