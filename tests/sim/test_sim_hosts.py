"""Roles that share a machine, what idling and a host itself cost: against times by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.worlds.changed import changed
from tests.worlds.demo import demo, deployed
from tests.worlds.profile_files import model_file
from tests.worlds.theory_scenarios import Written
from tests.worlds.timed_pipeline import STAGES, gaps, make_deployment, plain, static, times
from treepipe.core.errors import UserError
from treepipe.core.messages import HEADER_BYTES
from treepipe.core.schedules import systems
from treepipe.physics.timing import Factor, HostTimes, LinkTimes, TimeTable
from treepipe.results.metrics import run_metrics, utilization
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, Machine
from treepipe.scenario.faults import START_MS
from treepipe.scenario.resolve import deploy, input_warnings
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.clock import Clock
from treepipe.sim.device import RolePlace, places
from treepipe.sim.made_pools import bernoulli_pool
from treepipe.sim.world import simulate
from treepipe.validation.judgement import company_warnings

ORIGIN = """
[origin]
source = "made up"
date = 2026-11-22
hardware = "none"
versions = "none"
"""
TWO_STAGES = (
    'drafts=[{host="box",device={draft_ms={1=4.0}}}]',
    'pipelines=[{stages=[{host="box",device={stage_ms={1=20.0,3=30.0}},count=2}]}]',
    "links={local={latency_ms=0.0}}",
    "workload.prompt_tokens=1",
    "workload.new_tokens=4",
    "emulate=false",
)


def box(folder: Path, profile: str, *settings: str, schedule: str = "pp") -> Written:
    """Both stages and the draft on a host of this profile."""
    (folder / "box.toml").write_text(profile + ORIGIN)
    named = 'hosts.box.profile="./box.toml"'
    return Written(schedule, *TWO_STAGES, named, *settings, folder=folder)


def simulated(folder: Path, profile: str, *settings: str, schedule: str = "pp") -> Trace:
    (trace,) = box(folder, profile, *settings, schedule=schedule).simulated()
    return trace


def token_ms(folder: Path, profile: str, *settings: str) -> float:
    return gaps(simulated(folder, profile, *settings).requests[0])[-1]


@pytest.mark.parametrize(
    ("profile", "added"),
    [
        ("", 0.0),
        ("wake_ms = 0.5", 3 * 0.5),  # both stages and the draft sleep meanwhile
        ("send_ms = { 1 = 0.25 }", 3 * 0.25),  # from each of the three
        ("look_ms = 0.2", 3 * 0.2),  # each of the three reads one message
        ("desk_ms = { 1 = 2.0 }", 2.0),
        ("stage_factor = { 1 = 1.5 }", 2 * 10.0),
        ("draft_factor = { 1 = 3.0 }", 0.0),
        ("together = { 1 = 1.0, 2 = 5.0 }", 0.0),  # one after another: no company
        ("draft_cold = { 1 = 3.0 }", 0.0),
    ],
)
def test_each_cost_adds_what_it_says(tmp_path: Path, profile: str, added: float) -> None:
    """A token of plain decoding on two stages is 40 ms, its three messages aside."""
    assert token_ms(tmp_path, profile) - token_ms(tmp_path, "") == pytest.approx(added, abs=1e-6)


def test_a_draft_server_wakes_for_a_request_that_arrives(tmp_path: Path) -> None:
    """Both stages, and the draft for the request and for what comes back."""
    arrives = "workload.arrivals={process='poisson',rate_per_s=1.0}"
    asked = [simulated(tmp_path, each, arrives).requests[0] for each in ("wake_ms = 0.5", "")]
    first_ms, without_ms = (each.first_token_ms - each.started_ms for each in asked)
    assert first_ms - without_ms == pytest.approx(4 * 0.5, abs=1e-6)


def test_a_message_costs_its_receiver_by_its_bytes(tmp_path: Path) -> None:
    """Hidden states travel between the stages only."""
    by_size = f"receive_ms = {{ {HEADER_BYTES + 100} = 0.0, {HEADER_BYTES + 4200} = 4.1 }}"
    added = token_ms(tmp_path, by_size, "target.hidden_size=1000") - token_ms(tmp_path, "")
    assert added == pytest.approx((4 * 1000 + 8 - 100) / 1000)


def test_a_report_costs_its_receiver_the_bytes_that_it_has(tmp_path: Path) -> None:
    """A state of 8192 bytes beside the header (SPD's anchor at layer 0), without the states that
    an EAGLE-3 head reads: those travel with the rows. By hand, 1 ms per 4096 bytes."""
    by_size = f"receive_ms = {{ {HEADER_BYTES} = 0.0, {HEADER_BYTES + 4096} = 1.0 }}"
    eagle3 = ("target={ layers = 8, hidden_size = 2048 }", 'drafts.0.source="eagle3"')
    trace = simulated(tmp_path, by_size, *eagle3, "acceptance.beta=1", schedule="spd")
    heard = [s.length_ms for s in trace.spans if (s.device, s.kind) == ("draft0", "receive")]
    assert 2.0 in [pytest.approx(each) for each in heard]


def test_messages_that_are_read_together_cost_one_look(tmp_path: Path) -> None:
    """A stage that computes for 20 ms reads what came meanwhile in one go: the first of these
    messages takes 0.5 ms, all others 0.1."""
    both = "receive_ms = { 1 = 0.1 }\nlook_ms = 0.4"
    trees = ("schedule.name='naive_pp'", "schedule.tree_size=8", "schedule.segment_tokens=1")
    trace = simulated(tmp_path, both, *trees)
    before: dict[str, str] = {}
    for span in trace.spans:
        if span.kind == "receive":
            goes_on = before.get(span.device) == "receive"
            assert span.length_ms == pytest.approx(0.1 if goes_on else 0.5)
        if "->" not in span.device:
            before[span.device] = span.kind
    lengths = [span.length_ms for span in trace.spans if span.kind == "receive"]
    assert {0.1, 0.5} == {round(each, 6) for each in lengths}, "both happen"


def work(machine: Machine, asks: list[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """(role, start, end) of pieces of work, each asked for as (role, time, duration)."""
    clock = Clock()
    at = places(clock, dict.fromkeys(machine.roles, machine), set(machine.roles), 0, cancels=False)
    found: list[tuple[str, float, float]] = []

    def done(role: str, place: RolePlace, event: object) -> None:
        found.append((role, place.started_ms, clock.now))

    def ask(role: str, duration: float, event: object) -> None:
        at[role].work(duration, partial(done, role, at[role]))

    for role, time, duration in asks:
        clock.after(time, partial(ask, role, duration))
    clock.run()
    return found


def ends(costs: HostTimes, asks: list[tuple[str, float, float]]) -> list[tuple[str, float]]:
    """(role, end) of pieces of work on a host with these costs."""
    found = work(Machine("box", ("a", "b", "c"), costs=costs), asks)
    return [(role, end) for role, _, end in found]


def costs(
    together: dict[int, float], variation: float = 0.0, **more: float | int | None
) -> HostTimes:
    none = TimeTable({1: 0.0})
    known = HostTimes(none, none, 0.0, none, Factor(together), variation, Factor({}))
    return replace(known, **more)


def test_company_slows_what_is_under_way() -> None:
    """10 ms of a: 4 alone, then at half speed; b's 3 ms take 6 of these; c's come meanwhile."""
    two = costs({1: 1.0, 2: 2.0, 3: 4.0})
    assert ends(two, [("a", 0.0, 10.0), ("b", 4.0, 3.0)]) == [("b", 10.0), ("a", 13.0)]
    found = dict(ends(two, [("a", 0.0, 10.0), ("b", 4.0, 3.0), ("c", 8.0, 0.5)]))
    # At 8 ms a has 4 left and b has 1; c needs 2 ms of three's company, b then 1 more of two's.
    assert found == pytest.approx({"c": 10.0, "b": 11.0, "a": 14.0})


def test_no_work_is_lost_or_made_by_company() -> None:
    rng = np.random.default_rng(5)
    asks = [(role, float(i * 40), float(rng.uniform(1, 9))) for i in range(20) for role in "abc"]
    found = ends(costs({1: 1.0, 2: 2.0, 3: 3.0}), asks)
    for number in range(20):
        batch = asks[3 * number : 3 * number + 3]
        last = max(at for _, at in found[3 * number : 3 * number + 3])
        assert last == pytest.approx(40 * number + sum(each for _, _, each in batch))


ABC = [(role, 0.0, 10.0) for role in "abc"]


@pytest.mark.parametrize(
    ("host", "asks", "expected"),
    [
        ({"processors": 2}, ABC, {"a": 10, "b": 10, "c": 20}),
        # a c, b c, a b, and c again: whoever waits goes first after each turn of 4 ms.
        ({"processors": 2, "turn": 4.0}, ABC, {"a": 14, "b": 14, "c": 16}),
        ({"processors": 1, "turn": 4.0}, ABC, {"a": 26, "b": 28, "c": 30}),
        # b wakes in a's first turn, and waits for its end; c wakes in a later one, and does not.
        (
            {"processors": 1, "turn": 4.0},
            [("a", 0.0, 20.0), ("b", 2.0, 1.0), ("c", 10.0, 1.0)],
            {"a": 22, "b": 5, "c": 11},
        ),
        ({"processors": 1}, [("a", 0.0, 20.0), ("c", 10.0, 1.0)], {"a": 20, "c": 21}),
        # Another program gives way to who wakes, and has every second turn then.
        ({"processors": 1, "turn": 4.0, "company": 1}, ABC[:1], {"a": 18}),
        ({"processors": 2, "turn": 4.0, "company": 1}, ABC[:1], {"a": 10}),
        ({"processors": 2, "turn": 4.0, "company": 1}, ABC[:2], {"a": 14, "b": 14}),
    ],
)
def test_processes_take_turns_at_processors(
    host: dict[str, float], asks: list[tuple[str, float, float]], expected: dict[str, float]
) -> None:
    assert dict(ends(costs({}, **host), asks)) == pytest.approx(expected)


def test_a_role_keeps_its_processor_until_it_waits(tmp_path: Path) -> None:
    """Two requests on one processor: after each pass a stage sends (2 ms) before another role has
    a turn, and the roles' work fills the time."""
    profile = "processors = 1\nsend_ms = { 1 = 2.0 }\n"
    trace = simulated(tmp_path, profile, "workload.requests=2", "workload.concurrency=2")
    for stage in (span for span in trace.spans if span.kind == "compute"):
        assert any(
            span.device == stage.device
            and span.kind == "send"
            and span.start_ms == pytest.approx(stage.end_ms)
            for span in trace.spans
        )
    spans = sorted((s.start_ms, s.end_ms) for s in trace.spans if s.kind in ("compute", "send"))
    assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(spans))


def test_other_programs_that_the_profile_does_not_know_are_told(tmp_path: Path) -> None:
    def told(profile: str, company: float | None) -> list[str]:
        deployment = deploy(box(tmp_path, profile).scenario)
        return company_warnings(deployment, Trace((), company=company))

    (sentence,) = told("processors = 2\n", 0.9)
    assert sentence.startswith("host box: other programs worked beside the run, as much as 0.9")
    assert told("processors = 2\n", 0.1) == told("processors = 2\n", None) == []
    assert told("company = 1\n", 0.9) == []
    assert told("company = 1\n", 1.9)
    fitted = '[fit]\nschedules = ["pp"]\nprompts = "p"\npieces = 9\ncompany = 0.8\n'
    assert told(fitted, 0.9) == []


def test_variation_has_its_mean_and_spread() -> None:
    found = ends(costs({}, 0.3), [("a", float(i * 100), 10.0) for i in range(4000)])
    lengths = np.array([at - 100 * i for i, (_, at) in enumerate(found)])
    assert lengths.mean() == pytest.approx(10.0, rel=0.02)
    assert lengths.std() / lengths.mean() == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("schedule", systems())
def test_every_schedule_ends_with_its_text_and_all_of_a_roles_time_has_a_name(
    tmp_path: Path, schedule: str
) -> None:
    """What a role does never overlaps, whatever it waits for."""
    profile = """
send_ms = { 1 = 0.2 }
receive_ms = { 1 = 0.3 }
desk_ms = { 1 = 0.1, 9 = 0.4 }
wake_ms = 0.15
together = { 1 = 1.0, 2 = 1.4, 3 = 2.0 }
variation = 0.1
"""
    acceptance = 'acceptance={source="bernoulli",beta=0.6}'
    more = ("workload.requests=3", "workload.concurrency=2", f"schedule.name={schedule}")
    trace = simulated(tmp_path, profile, acceptance, *more)
    assert [len(request.tokens) for request in trace.requests] == [4] * 3
    for name in trace.devices:
        spans = sorted((s.start_ms, s.end_ms) for s in trace.spans if s.device == name)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(spans))


def test_with_emulation_it_has_no_effect_and_a_warning(tmp_path: Path) -> None:
    scenario = box(tmp_path, "wake_ms = 5.0\n", "emulate=true").scenario
    deployment = deploy(scenario)
    assert all(machine.costs is None for machine in deployment.roles.machines)
    (warning,) = [w for w in input_warnings(scenario, deployment) if "hosts.box" in w]
    assert warning.endswith("it is read only in a simulation with emulate = false")


def test_closed_forms_refuse_a_hosts_own_costs(tmp_path: Path) -> None:
    words = r"key hosts: no closed form applies: .* not what a host's profile adds"
    with pytest.raises(UserError, match=words):
        box(tmp_path, "").expected()


LOSE = 'faults={spares=1,inject=[{worker="draft0",kind="kill",at_ms=30}]}'


def restart_ms(trace: Trace) -> float:
    (fault,) = trace.faults
    assert fault.detected_ms is not None
    assert fault.recovered_ms is not None
    return fault.recovered_ms - fault.detected_ms


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), 700.0),
        (("faults.restart_ms=50",), 50.0),
        (("emulate=true",), START_MS),
        (('pipelines.0.stages.0.host="slow"', 'hosts.slow.profile="./slow.toml"'), 900.0),
    ],
)
def test_a_restart_takes_what_was_measured_of_the_slowest_host(
    tmp_path: Path, settings: tuple[str, ...], expected: float
) -> None:
    (tmp_path / "slow.toml").write_text("restart_ms = 900" + ORIGIN)
    trace = simulated(tmp_path, "restart_ms = 700", LOSE, *settings)
    assert restart_ms(trace) == pytest.approx(expected)


HEAVY = f"target={{profile='{model_file(8, 1500, 1)}'}}"
ON_ONE_HOST = "pipelines.0.stages.0.host=box"


@pytest.mark.parametrize(
    ("settings", "weights_mib", "read_mib_s"),
    [
        ((HEAVY,), 2 * 1500, 3000),  # four stages of two layers, each on a machine of its own
        ((HEAVY, ON_ONE_HOST), 8 * 1500, 3000),
        ((), 0, 3000),
    ],
)
def test_a_restart_that_nobody_measured_reads_the_weights_of_the_fullest_host(
    settings: tuple[str, ...], weights_mib: float, read_mib_s: float
) -> None:
    (trace,) = Written("pp", LOSE, *settings).simulated()
    assert restart_ms(trace) == pytest.approx(START_MS + 1e3 * weights_mib / read_mib_s)
    (told,) = [each for each in trace.warnings if each.startswith("nobody measured a restart")]
    assert (f"{weights_mib:,} MiB" if weights_mib else "nothing tells the target's size") in told


@pytest.mark.parametrize(
    ("settings", "read_mib_s"),
    [
        (("pipelines.0.stages.0.device.read_mib_s=400",), 2 * 400),  # two stages at once
        ((), 3000),
    ],
)
def test_a_measured_restart_is_longer_by_the_weights_that_it_did_not_read(
    tmp_path: Path, settings: tuple[str, ...], read_mib_s: float
) -> None:
    lose = LOSE.replace("draft0", "pipeline0.stage1")
    restart = "restart_ms = 700\nrestart_mib = 2000"
    trace = simulated(tmp_path, restart, lose, HEAVY, 'drafts.0.host="other"', *settings)
    assert restart_ms(trace) == pytest.approx(700 + 1e3 * (8 * 1500 - 2000) / read_mib_s)


# --- roles that wait for each other, and machines that idling slows down --------------------------

NAMES = ["draft", *(f"stage{n}" for n in range(1, STAGES + 1))]


def shared(deployment: Deployment, *roles: str, capacity: int = 1) -> Deployment:
    """The deployment with these roles on one machine, and no time on links."""
    machine = Machine("box", roles, capacity)
    return changed(deployment, machines=(machine,), default=LinkTimes(0.0))


def decode(deployment: Deployment, beta: float = 1.0) -> Trace:
    return simulate(deployment, PoolSource(bernoulli_pool(beta), 1, 0))


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
    from treepipe.executor.run.launch import prepare

    with pytest.raises(UserError, match=r"share host 'box' of capacity 1.*hosts.box.capacity to 3"):
        prepare(demo(HOSTS))
