"""Requests that share too little room for keys and values, in the simulated world, by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from tests.worlds.any_section import SCHEDULES
from tests.worlds.changed import changed
from tests.worlds.demo import POOL, deployed, simulated
from tests.worlds.recording_source import RecordingSource
from tests.worlds.timed_pipeline import (
    DECIDE,
    EVALUATE,
    HOP,
    STAGES,
    gaps,
    make_deployment,
    plain,
    run,
)
from treepipe.core.cache_room import PAGE
from treepipe.results.metrics import run_metrics
from treepipe.results.result import make_result
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, Room
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

PROMPT, NEW, CLIENTS = 20, 24, 3
PASS, LAP = 20.0, STAGES * 20.0 + (STAGES + 1) * HOP + EVALUATE + DECIDE


def crowd(name: str, *settings: str) -> Deployment:
    asked = f"requests={CLIENTS},concurrency={CLIENTS},prompt_tokens={PROMPT},new_tokens={NEW}"
    schedule = f"schedule={{name={name!r},tree_size=12,tree_depth=3,width=6,expand_depth=3}}"
    return deployed(f"workload={{{asked}}}", schedule, *settings)


def nodes(name: str) -> int:
    """Entries that a request holds beside its text, here or there."""
    bounds = crowd(name).service.bounds
    return max(bounds.tree_tokens, bounds.scratch_tokens)


def texts(trace: Trace) -> list[tuple[int, ...]]:
    return [request.tokens for request in trace.requests]


@pytest.mark.parametrize("name", ["pp", "flowspec_free", "specpipe_db", "starsd"])
def test_reserved_room_for_k_requests_is_k_places(name: str) -> None:
    """The very same trace, as requests of equal length wait for the same."""
    tokens = 3 * (PROMPT + NEW + nodes(name)) - 1
    shared = crowd(name, "serving.cache=reserved", f"serving.cache_tokens={tokens}")
    placed = crowd(name, "serving.places=2")
    assert simulated(shared) == simulated(placed)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_preempted_requests_text_is_kept_and_replayed(name: str) -> None:
    """Texts are those of a room for all; a recording of the run finds all its answers again."""
    tokens = max(PROMPT + NEW + nodes(name) + PAGE, 2 * (PROMPT + nodes(name) + PAGE))
    crowded = crowd(name, "serving.cache=paged", f"serving.cache_tokens={tokens}")
    source = RecordingSource(POOL)
    trace = simulate(crowded, source)
    one_at_a_time = name in ("pipedec", "specpipe", "spd")
    assert (sum(request.preemptions for request in trace.requests) > 0) != one_at_a_time
    assert texts(trace) == texts(simulated(crowd(name)))
    replay = ReplaySource(source.recording(trace))
    assert simulate(crowded, replay) == trace
    assert not replay.borrowed


def two_in(room: Room) -> Trace:
    """Two prompts of 10 tokens, 21 new ones each: a page of 16 at first, and two from the seventh
    new token on."""
    deployment = make_deployment(plain, requests=2)
    return run(changed(deployment, clients=2, cache="paged", room=room), 0.5)


@pytest.mark.parametrize("room", [Room((3 * 16,), (inf,)), Room((inf,), (3 * 16 + 5,))])
def test_preemption_by_hand(room: Room) -> None:
    """Three pages: at its seventh token the first request takes the third one, and the second one
    finds none at its own: it gives way, and its 17 tokens are computed again. It goes on when the
    first one is over, by a pass over these."""
    trace = two_in(room)
    first, second = trace.requests
    assert (first.preemptions, first.recomputed_tokens) == (0, 0)
    assert (second.preemptions, second.recomputed_tokens) == (1, 10 + 7)
    assert len(first.tokens) == len(second.tokens) == 21
    assert gaps(first) == pytest.approx([LAP] * 20)
    waited = first.finished_ms - second.emitted[6][0]
    assert gaps(second) == pytest.approx([*[LAP] * 6, waited + LAP, *[LAP] * 13])
    assert second.finished_ms == pytest.approx(first.finished_ms + 14 * LAP)
    metrics = run_metrics(trace)
    assert metrics["preemptions_per_request"] == 0.5
    assert metrics["recomputed_tokens_per_request"] == 8.5
    sessions = make_result("simulation", "test", 0, [trace]).to_json()["sessions"]
    assert [each["recomputed_tokens"] for each in sessions] == [0, 17]


def test_a_room_for_all_preempts_nobody() -> None:
    trace = two_in(Room((4 * 16,), (4 * 16,)))
    assert run_metrics(trace)["preemptions_per_request"] == 0
    assert texts(trace) == texts(run(make_deployment(plain, requests=2), 0.5))
    ample = changed(make_deployment(plain, requests=2), clients=2)
    assert "preemptions_per_request" not in run_metrics(run(ample, 0.5))
    assert trace.requests == run(ample, 0.5).requests


def test_who_finds_no_room_at_one_pipeline_does_not_keep_others_from_another() -> None:
    """Two pipelines with room for one request each, at a draft with room for all."""
    stages = make_deployment(plain).roles.pipelines[0]
    other = tuple(replace(stage, name=f"other {stage.name}") for stage in stages)
    deployment = changed(
        make_deployment(plain, requests=4),
        pipelines=(stages, other),
        clients=4,
        cache="reserved",
        room=Room((31, 31), (inf,)),
    )
    trace = run(deployment, 0.5)
    starts = sorted(request.emitted[0][0] for request in trace.requests)
    assert starts[1] == pytest.approx(starts[0], abs=2 * PASS)
    assert starts[2] > starts[1] + 19 * LAP
