"""Requests that arrive by themselves: the dispatcher by hand, waiting times in the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.worlds.changed import changed
from tests.worlds.recording_source import RecordingSource
from tests.worlds.timed_pipeline import make_deployment, plain
from treepipe.core.front_desk import FrontDesk
from treepipe.core.requests import Assignment, RequestTrace
from treepipe.physics.timing import DeviceTimes, LinkTimes, TimeTable
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import bernoulli_pool
from treepipe.sim.predict import predict
from treepipe.sim.world import simulate

SERVICE_MS = 20.0
SERVER = f"""
name = "one server"
seed = 11
runs = 20
[target]
layers = 1
[[pipelines]]
stages = [{{ device = {{ stage_ms = {{ 1 = {SERVICE_MS} }} }} }}]
[links]
default = {{ latency_ms = 0.0 }}
[schedule]
name = "pp"
[workload]
prompt_tokens = 8
requests = 300
"""
"""Nothing but one stage takes time: a pass of a request is a customer of a single server."""


# --- the front desk ------------------------------------------------------------------------------


def over(session: int, at_ms: float, reason: str = "length") -> RequestTrace:
    return RequestTrace(session, 5, 0.0, at_ms, (), (), (), reason)


def test_arrivals_wait_are_refused_and_keep_the_time_they_came_at() -> None:
    desk = FrontDesk((5,) * 4, 1, limit=1, admission=2, arrivals_ms=(0.0, 10.0, 10.0, 50.0))
    assert desk.start(100.0) == []
    assert desk.next_arrival_ms == 100.0
    assert desk.arrive() == [Assignment(0, 100.0, 0, 0)]
    assert desk.next_arrival_ms == 110.0
    assert desk.arrive() == [], "the place is taken"
    assert desk.over == []
    assert desk.arrive() == []
    assert desk.over == [RequestTrace.refused(3, 5, 110.0)], "one is served, one waits"
    assert desk.finished(over(1, 130.0)) == [Assignment(1, 110.0, 0, 0)]
    assert desk.next_arrival_ms == 150.0
    assert desk.arrive() == []
    assert desk.next_arrival_ms is None
    assert not desk.done
    assert desk.finished(over(2, 200.0)) == [Assignment(3, 150.0, 0, 0)]
    assert not desk.done
    assert desk.finished(over(4, 230.0)) == [], "nobody asks again when a request is over"
    assert desk.done


def test_arrivals_go_where_the_fewest_are_open() -> None:
    desk = FrontDesk((5,) * 5, 1, drafts=2, pipelines=2, arrivals_ms=(0.0,) * 5)
    desk.start(0.0)
    placed = [desk.arrive()[0] for _ in range(4)]
    assert [(each.draft, each.pipeline) for each in placed] == [(0, 0), (1, 1)] * 2
    desk.finished(over(2, 5.0))
    assert desk.arrive() == [Assignment(4, 0.0, 1, 1)]


def test_a_turn_arrives_when_the_one_before_is_over_and_its_delay_has_passed() -> None:
    turns = {0: [(1, 5.0), (2, 0.0)], 2: [(3, 7.0)]}
    desk = FrontDesk((5,) * 4, 1, admission=1, arrivals_ms=(1.0, 0.0, 90.0, 0.0), turns=turns)
    desk.start(100.0)
    assert desk.arrive() == [Assignment(0, 101.0, 0, 0)]
    assert desk.next_arrival_ms is None
    assert desk.finished(over(1, 130.0)) == []
    assert desk.next_arrival_ms == 135.0, "the end and the delay"
    assert desk.arrive() == [Assignment(1, 135.0, 0, 0)]
    assert desk.next_arrival_ms == 190.0, "not before its own time"
    assert desk.arrive() == []
    assert desk.over[-1] == RequestTrace.refused(3, 5, 190.0)
    assert desk.next_arrival_ms == 197.0, "a refused turn is over at once"
    assert not desk.done
    desk.finished(over(2, 195.0))
    assert desk.arrive() == [Assignment(3, 197.0, 0, 0)]
    desk.finished(over(4, 199.0))
    assert desk.done


def test_some_arrival_times_are_no_arrival_times() -> None:
    with pytest.raises(ValueError, match="either every request has an arrival time, or none"):
        FrontDesk((5, 5), 1, arrivals_ms=(3.0,))


def test_the_closed_loop_knows_no_arrival() -> None:
    desk = FrontDesk((5, 5, 5), 2)
    assert desk.next_arrival_ms is None
    assert [each.request for each in desk.start(1.0)] == [0, 1]
    assert desk.finished(over(2, 9.0)) == [Assignment(2, 9.0, 0, 0)]


def test_the_closed_loop_asks_on_while_it_is_refused() -> None:
    desk = FrontDesk((5, 6, 7), 2, pipelines=2, admission=1)
    assert desk.start(4.0) == [Assignment(0, 4.0, 0, 0)]
    assert desk.over == [RequestTrace.refused(2, 6, 4.0), RequestTrace.refused(3, 7, 4.0)]
    assert not desk.done
    assert desk.finished(over(1, 9.0)) == []
    assert desk.over[-1] == over(1, 9.0)
    assert desk.done


def test_a_run_goes_on_while_a_pipeline_is_left() -> None:
    desk = FrontDesk((1, 1, 1), 1, pipelines=2)
    desk.start(0.0)
    assert desk.lose(0)
    assert desk.finished(over(1, 2.0, "worker lost")) == [Assignment(1, 2.0, 0, 1)]
    assert not desk.lose(1), "it was the last one"


# --- simulator, by hand --------------------------------------------------------------------------


def one_stage(arrivals_ms: list[float], tokens: int = 1, **service: int) -> Deployment:
    """A stage of 20 ms and nothing else."""
    nothing = TimeTable({1: 0.0})
    deployment = make_deployment(
        plain, DeviceTimes(TimeTable({1: SERVICE_MS}), nothing, nothing, 0.0, 0.0)
    )
    return changed(
        deployment,
        pipelines=(deployment.roles.pipelines[0][:1],),
        requests=tuple(RequestSpec((0,) * 8, tokens, arrival_ms=at) for at in arrivals_ms),
        default=LinkTimes(0.0),
        **service,
    )


def served(deployment: Deployment) -> Trace:
    return simulate(deployment, PoolSource(bernoulli_pool(1.0), 1, 0))


def test_waiting_is_part_of_the_time_to_the_first_token() -> None:
    requests = served(one_stage([3.0, 8.0, 8.0, 100.0])).requests
    assert [request.started_ms for request in requests] == [3.0, 8.0, 8.0, 100.0]
    assert [request.first_token_ms for request in requests] == [23.0, 43.0, 63.0, 120.0]


def test_requests_share_the_stage_or_wait_for_a_place() -> None:
    # Two of three tokens each: passes alternate, or the second one waits for the end of the first.
    shared = served(one_stage([0.0, 5.0], 3)).requests
    assert [request.finished_ms for request in shared] == [100.0, 120.0]
    queued = served(one_stage([0.0, 5.0], 3, limit=1)).requests
    assert [request.finished_ms for request in queued] == [60.0, 120.0]
    assert queued[1].started_ms == 5.0
    assert queued[1].first_token_ms == 80.0


def test_arrivals_beyond_admission_are_refused_at_once() -> None:
    requests = served(one_stage([0.0, 5.0, 19.0, 21.0], 1, admission=1)).requests
    assert [request.reason for request in requests] == ["length", "refused", "refused", "length"]
    assert [request.started_ms for request in requests] == [0.0, 5.0, 19.0, 21.0]
    assert requests[1].finished_ms == 5.0


def test_memory_is_reckoned_for_all_that_may_be_open() -> None:
    deployment = one_stage([0.0] * 9)
    assert deployment.most_open(0) == 9
    assert changed(deployment, limit=4).most_open(0) == 4
    assert changed(deployment, admission=3).most_open(0) == 3
    closed = tuple(replace(request, arrival_ms=None) for request in deployment.requests)
    assert replace(deployment, requests=closed).most_open(0) == 1


# --- simulator, against queueing theory ----------------------------------------------------------


def server(folder: Path, *settings: str, more: str = "") -> Scenario:
    path = folder / "server.toml"
    path.write_text(SERVER + more)
    return Scenario.load(path, settings)


def arriving(process: str, **keys: float) -> str:
    rest = "".join(f",{key}={value}" for key, value in keys.items())
    return f'workload.arrivals={{process="{process}"{rest}}}'


def test_who_is_served_alone_waits_for_all_passes_of_those_before(tmp_path: Path) -> None:
    """A service is then all passes of a request: with twice as many at half the rate, and so in
    twice the time, everything takes exactly twice as long."""
    latencies = []
    for tokens in (1, 2):
        rate = arriving("poisson", rate_per_s=1e3 * 0.7 / (tokens * SERVICE_MS))
        settings = (rate, f"workload.new_tokens={tokens}", "serving.places=1", "runs=1")
        (trace,) = predict(server(tmp_path, *settings))
        latencies.append([request.finished_ms - request.started_ms for request in trace.requests])
    assert latencies[1] == pytest.approx([2 * each for each in latencies[0]])
    assert max(latencies[0]) > 3 * SERVICE_MS, "some have waited"


def test_every_run_is_asked_something_else_and_every_prediction_the_same(tmp_path: Path) -> None:
    gamma = arriving("gamma", rate_per_s=20, cv=2)
    few = ("workload.new_tokens=2", "workload.requests=20", "runs=2")
    first, again = (predict(server(tmp_path, gamma, *few)) for _ in range(2))
    asked = [[request.started_ms for request in trace.requests] for trace in first]
    assert asked[0] != asked[1]
    assert first == again


@pytest.mark.parametrize(("name", "together"), [("pipedec", 1), ("specpipe_db", 2)])
def test_the_schedules_own_limits_hold_for_arrivals(
    tmp_path: Path, name: str, together: int
) -> None:
    acceptance = '[acceptance]\nsource = "bernoulli"\nbeta = 0.7\n'
    few = ("workload.new_tokens=8", "workload.requests=30", "runs=1")
    schedule = f"schedule={{name='{name}',batch=2}}"
    gamma = arriving("gamma", rate_per_s=20, cv=3)
    (trace,) = predict(server(tmp_path, gamma, schedule, *few, more=acceptance))
    begun = np.array([request.first_token_ms for request in trace.requests])
    ends = np.array([request.finished_ms for request in trace.requests])
    open_then = [int(((begun <= at) & (at < ends)).sum()) for at in begun]
    assert max(open_then) == together
    assert (np.diff(begun) >= 0).all(), "first come, first served"


def test_a_replay_asks_when_the_recorded_run_asked(tmp_path: Path) -> None:
    scenario = server(
        tmp_path,
        arriving("poisson", rate_per_s=20),
        "workload.new_tokens={distribution='uniform',min=2,max=9}",
        "workload.requests=12",
        more='[acceptance]\nsource = "replay"\nfile = "recording.json"\n',
    )
    recorded = predict(scenario.model_copy(update={"acceptance": None}))[0]
    heard = RecordingSource(PoolSource(bernoulli_pool(1.0), 1, 0)).recording(recorded)
    heard.save(tmp_path / "recording.json")
    (replayed,) = predict(scenario)
    expected = [(request.started_ms, request.finished_ms) for request in recorded.requests]
    found = [(request.started_ms, request.finished_ms) for request in replayed.requests]
    assert found == expected
