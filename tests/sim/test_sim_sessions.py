"""Requests of the simulated world: how they end, fail, and are replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.worlds.changed import changed
from tests.worlds.recording_source import RecordingSource
from tests.worlds.timed_pipeline import HOP, flowspec, make_deployment, plain, pruned, run, static
from tests.worlds.timed_pipeline import times as device_times
from treepipe.core.errors import RunError
from treepipe.core.protocol import Announce, Command, Event, Schedule
from treepipe.core.schedules import systems
from treepipe.physics.timing import LinkTimes
from treepipe.profiles.pool_file import Prompt, Table
from treepipe.scenario.deployment import NewSchedule
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.pool import Pool
from treepipe.sim.predict import predict
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate


@pytest.mark.parametrize("schedule", [static, pruned, flowspec])
def test_a_closed_session_is_dropped_where_its_messages_are(schedule: NewSchedule) -> None:
    devices = [device_times(), device_times(60.0), *[device_times()] * 3]
    trace = run(make_deployment(schedule, devices, requests=3, tokens=12), 0.6)
    assert [len(request.tokens) for request in trace.requests] == [12] * 3
    ends = {request.session: request.finished_ms for request in trace.requests}
    passes = [span for span in trace.spans if span.kind == "compute"]
    # A stage finishes the pass it is in, and begins none after it heard of the end.
    assert all(span.start_ms <= ends[span.session] + HOP for span in passes)
    if schedule is not static:  # it ends a request only when everything is back
        assert any(span.end_ms > ends[span.session] + HOP for span in passes)


@pytest.mark.parametrize("schedule", [static, pruned, flowspec])
def test_words_that_come_after_the_next_request_began(schedule: NewSchedule) -> None:
    # The end of request 1 reaches stage 4 long after the first segment of request 2.
    deployment = make_deployment(schedule, requests=3)
    slow = changed(deployment, pairs={("draft", "stage4"): LinkTimes(1000.0)})
    found, expected = (run(each, 0.6).requests for each in (slow, deployment))
    assert [request.rounds for request in found] == [request.rounds for request in expected]


class Hushed:
    """A schedule whose commands of some type never reach the world."""

    def __init__(self, inner: Schedule, hushed: type) -> None:
        self._inner, self._hushed = inner, hushed

    def handle(self, event: Event) -> Sequence[Command]:
        commands = self._inner.handle(event)
        return [each for each in commands if not isinstance(each, self._hushed)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_deadlock_says_who_waits_for_what() -> None:
    deployment = make_deployment(lambda *made: Hushed(flowspec(*made), Announce))
    with pytest.raises(RunError, match="deadlock at") as caught:
        run(deployment, 0.6)
    sentence = str(caught.value)
    assert "draft waits for segments of requests [1]" in sentence
    assert "stage1 holds segments of requests {1: " in sentence
    assert "and waits for words {1: 0}" in sentence


def test_nothing_to_do_is_a_deadlock_too() -> None:
    deployment = make_deployment(lambda *made: Hushed(plain(*made), object))
    with pytest.raises(RunError, match=r"deadlock at 0\.000 ms: .* stage4 waits for a segment"):
        run(deployment, 0.6)


class Failing(Hushed):
    """A schedule with a defect."""

    def handle(self, event: Event) -> Sequence[Command]:
        raise RuntimeError("a defect")


def test_a_defect_is_not_called_a_deadlock() -> None:
    with pytest.raises(RuntimeError, match="a defect"):
        run(make_deployment(lambda *made: Failing(plain(*made), object)), 0.6)


# --- replay --------------------------------------------------------------------------------------


def _recorded_pool() -> Pool:
    """Three prompts with hits in runs, and off-path vectors for two depths."""
    rng = np.random.default_rng(8)

    def vectors(count: int, spread: float) -> npt.NDArray[np.float64]:
        return -np.sort(-np.log(rng.dirichlet(np.full(12, spread), size=count)))

    prompts = []
    for _ in range(3):
        hit = np.repeat(rng.random(12) < 0.7, 5)
        ranks = np.where(hit, rng.integers(0, 3, 60), rng.integers(3, 13, 60))
        prompts.append(Prompt(Table(vectors(60, 0.3), ranks.tolist())))
    return Pool(prompts, {1: vectors(20, 0.8), 2: vectors(20, 1.5)})


@pytest.mark.parametrize("schedule", [static, pruned, flowspec])
@pytest.mark.parametrize(("stage", "draft"), [(2.0, 9.0), (70.0, 0.1)])
def test_replay_repeats_every_step_under_other_durations(
    schedule: NewSchedule, stage: float, draft: float
) -> None:
    deployment = make_deployment(schedule, tokens=30, requests=2)
    source = RecordingSource(PoolSource(_recorded_pool(), 16, 3))
    trace = simulate(deployment, source)
    other = replace(
        make_deployment(schedule, device_times(stage, draft), tokens=30, requests=2), seed=9
    )
    other = changed(other, default=LinkTimes(0.3, 50.0, 1.0), row_bytes=900)
    replayed = simulate(other, ReplaySource(source.recording(trace)))
    for before, after in zip(trace.requests, replayed.requests, strict=True):
        assert [r.committed_per_step for r in after.rounds] == [
            r.committed_per_step for r in before.rounds
        ]
        assert after.tokens == before.tokens
    assert replayed.requests[-1].finished_ms != trace.requests[-1].finished_ms


def test_a_turn_waits_from_when_its_flight_arrived() -> None:
    """Also if the server was busy then: its flight is not looked at before it looks up."""
    deployment = make_deployment(static, tokens=30, requests=3)
    second = tuple(
        replace(stage, name=f"other{n}") for n, stage in enumerate(deployment.roles.pipelines[0])
    )
    deployment = changed(deployment, pipelines=(deployment.roles.pipelines[0], second), clients=3)
    trace = run(deployment, 0.7)
    delivered = {s.end_ms for s in trace.spans if s.device.endswith("->draft")}
    turns = [turn for turn in trace.turns if turn.pipeline is not None]
    assert {turn.arrived_ms for turn in turns} <= delivered
    assert any(turn.started_ms > turn.arrived_ms + 1.0 for turn in turns), "some had to wait"


@pytest.mark.parametrize("schedule", [name for name, each in systems().items() if each.drafts])
def test_a_request_ends_while_the_last_stage_computes_for_it(schedule: str) -> None:
    """A draft that reads states is sent those of accepted rows; of a request that is over, none."""
    scenario = Scenario.of(
        {
            "name": "heads",
            "target": {"layers": 4, "hidden_size": 64},
            "drafts": [{"source": "eagle", "device": {"draft_ms": {1: 3.0}}}],
            "pipelines": [{"stages": [{"device": {"stage_ms": {1: 10.0, 64: 14.0}}, "count": 2}]}],
            "acceptance": {"source": "hit_ratio", "table": {1: 0.5, 8: 0.9}},
            "workload": {"requests": 12, "concurrency": 4, "new_tokens": 7, "prompt_tokens": 8},
            "schedule": {"name": schedule, "ends": "pipeline"},
        }
    )
    (trace,) = predict(scenario)
    assert [len(request.tokens) for request in trace.requests] == [7] * 12
