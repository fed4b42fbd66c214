"""One draft process for many targets: isolation, leaving targets, fair shares, several drafts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.worlds.deployments import PROMPT, TIMES, small_deployment, worker_roles
from tests.worlds.tiny_models import greedy
from treepipe.core.front_desk import ServiceLevels
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.controller import Controller
from treepipe.executor.draft_model import LanguageModelDraft
from treepipe.executor.stage_model import Part, StageModel, TargetEnds
from treepipe.scenario.deployment import Deployment, Placed, RequestSpec, Serving

TARGETS = 4


def _star(requests: int = 8, new_tokens: int = 12, **changes: object) -> Deployment:
    deployment = small_deployment("starsd", clients=TARGETS, pipelines=TARGETS)
    specs = tuple(RequestSpec(PROMPT[n : n + 9], new_tokens) for n in range(requests))
    return replace(deployment, requests=specs, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def star(pair: tuple[Path, Path]) -> Iterator[Controller]:
    deployment = _star()
    with Controller(worker_roles(pair, deployment), deployment) as running:
        yield running


@pytest.mark.processes
def test_every_target_gets_its_own_text(star: Controller, pair: tuple[Path, Path]) -> None:
    deployment = _star()
    trace, _ = star.run(deployment)
    assert {request.pipeline for request in trace.requests} == set(range(TARGETS))
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)


@pytest.mark.processes
def test_the_depth_is_chosen_by_what_the_draft_server_measures(pair: tuple[Path, Path]) -> None:
    """The draft is a random model, seldom right: what is learned makes the chains shorter."""
    keys = {"adaptive_depth": True, "tree_size": None}
    deployment = small_deployment("starsd", clients=TARGETS, pipelines=TARGETS, **keys)
    deployment = replace(deployment, requests=_star().requests)
    with Controller(worker_roles(pair, deployment), deployment) as running:
        trace, _ = running.run(deployment)
    for request, spec in zip(trace.requests, _star().requests, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
    fed = [each.fed - 1 for request in trace.requests for each in request.rounds]
    assert max(fed) > 1, "before anything was measured"
    last = [each.fed - 1 for request in trace.requests[-2:] for each in request.rounds]
    assert max(last) < max(fed)


@pytest.mark.processes
def test_requests_beyond_admission_are_refused_and_the_others_are_served(star: Controller) -> None:
    deployment = _star()
    deployment = replace(deployment, serving=replace(deployment.serving, admission=2))
    trace, _ = star.run(deployment)
    refused = [r.session for r in trace.requests if r.reason == "refused"]
    assert refused[:2] == [3, 4], "two clients were in, the third and the fourth were not"
    assert len(trace.requests) == len(deployment.requests)
    assert all(len(r.tokens) == 12 for r in trace.requests if r.reason == "length")


@pytest.mark.processes
def test_a_target_that_leaves_frees_its_state_and_the_others_go_on(
    pair: tuple[Path, Path],
) -> None:
    deployment = _star(requests=TARGETS, new_tokens=60)
    with Controller(worker_roles(pair, deployment), deployment) as running:
        # Somewhere in the middle: a request takes a few hundred emulated milliseconds.
        killer = threading.Timer(0.4, running.crew.inject, ["pipeline2.stage1", "kill"])
        killer.start()
        trace, _ = running.run(deployment)
        left = running.open_sessions()
    ended = {request.pipeline: request for request in trace.requests}
    assert ended[2].reason == "worker lost"
    assert 0 < len(ended[2].tokens) < 60
    whole = greedy(pair[0], list(deployment.requests[ended[2].session - 1].prompt), 60)
    assert list(ended[2].tokens) == whole[: len(ended[2].tokens)]
    for pipeline in (0, 1, 3):
        assert len(ended[pipeline].tokens) == 60
    assert left["draft0"] == 0
    assert len(trace.warnings) == 1
    assert "pipeline2.stage1 died (exit code -9) after" in trace.warnings[0]
    assert "their state was freed, and the other pipelines went on" in trace.warnings[0]


@pytest.mark.processes
def test_two_drafts_share_the_targets(pair: tuple[Path, Path]) -> None:
    deployment = _star()
    drafts = (Placed("draft0", TIMES), Placed("draft1", TIMES))
    deployment = replace(deployment, drafts=drafts)
    with Controller(worker_roles(pair, deployment), deployment) as running:
        trace, _ = running.run(deployment)
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
    turns = [sum(turn.draft == d for turn in trace.turns) for d in (0, 1)]
    # The first four requests are dealt evenly; who gets the others depends on who is done first.
    assert min(turns) > 0.2 * sum(turns), "requests go to the server with fewer of them"


@pytest.mark.processes
def test_deadlines_decide_who_waits(pair: tuple[Path, Path]) -> None:
    """With the draft beyond full load, the target with the tight deadline waits for one turn."""
    deployment = _star(requests=TARGETS, new_tokens=40)
    levels = ServiceLevels(deadlines_ms=(0.0, 1e3, 1e3, 1e3))
    serving = Serving(TARGETS, policy="earliest_deadline", levels=levels)
    deployment = replace(deployment, serving=serving)
    with Controller(worker_roles(pair, deployment), deployment) as running:
        trace, _ = running.run(deployment)
    waits = {
        pipeline: [t.started_ms - t.arrived_ms for t in trace.turns if t.pipeline == pipeline]
        for pipeline in range(TARGETS)
    }
    mean = {pipeline: sum(each) / len(each) for pipeline, each in waits.items()}
    assert mean[0] < 0.8 * min(mean[1], mean[2], mean[3])


# --- isolation of caches -------------------------------------------------------------------------


def _drafted(draft: LanguageModelDraft, session: int) -> list[list[int]]:
    order = DraftPass(2, (), (5, 6), (NO_PARENT, NO_PARENT), False, 4)
    return [list(map(int, row)) for row in draft.draft(session, order).tokens]


def test_a_corrupted_draft_cache_changes_no_other_session(pair: tuple[Path, Path]) -> None:
    drafts = [LanguageModelDraft(Checkpoint.open(pair[1]), 64) for _ in range(2)]
    for draft in drafts:
        for session in (1, 2, 3):
            draft.open(session)
            draft.draft(session, DraftPass(1, (session, 7, 9, 11), (), (), True, 4))
    spoiled, clean = drafts
    spoiled.cache(2).entries().fill_(100.0)
    assert _drafted(spoiled, 1) == _drafted(clean, 1)
    assert _drafted(spoiled, 3) == _drafted(clean, 3)
    assert _drafted(spoiled, 2) != _drafted(clean, 2), "the corruption is seen where it is"


def test_a_corrupted_stage_cache_changes_no_other_session_of_its_flight(
    pair: tuple[Path, Path],
) -> None:
    """Sessions that are computed in one ragged pass must not see each other's entries."""
    checkpoint = Checkpoint.open(pair[0])
    ends = TargetEnds(checkpoint)
    found = []
    for spoil in (False, True):
        stage = StageModel(checkpoint, range(4), 64)
        stage.check_causality = True
        for session in (1, 2, 3):
            stage.open(session)
            stage.forward(session, ends.embed((session, 7, 9)), range(3), None)
        if spoil:
            stage.cache(2).entries().fill_(100.0)
        parts = [Part(session, ends.embed((4, 8)), (3, 4), (NO_PARENT, 0)) for session in (1, 2, 3)]
        found.append(stage.forward_batch(parts))
    clean, spoiled = found
    torch.testing.assert_close(spoiled[0], clean[0])
    torch.testing.assert_close(spoiled[2], clean[2])
    assert not torch.allclose(spoiled[1], clean[1])


def test_a_ragged_pass_gives_what_single_passes_give(pair: tuple[Path, Path]) -> None:
    checkpoint = Checkpoint.open(pair[0])
    ends = TargetEnds(checkpoint)
    lengths = {1: 3, 2: 9, 3: 1}
    parts = [
        Part(1, ends.embed((4, 8)), (3, 4), (NO_PARENT, 0)),
        Part(2, ends.embed((5,)), (9,), None),
        Part(3, ends.embed((6, 7, 8)), (1, 1, 2), (NO_PARENT, NO_PARENT, 1)),
    ]
    results = []
    for together in (True, False):
        stage = StageModel(checkpoint, range(4), 64)
        stage.check_causality = True
        for session, length in lengths.items():
            stage.open(session)
            stage.forward(session, ends.embed(range(length)), range(length), None)
        if together:
            results.append(stage.forward_batch(parts))
        else:
            results.append([stage.forward_batch([part])[0] for part in parts])
    for ragged, single in zip(*results, strict=True):
        # The sums of attention run in another order over a wider mask.
        torch.testing.assert_close(ragged, single, rtol=1e-3, atol=1e-3)
