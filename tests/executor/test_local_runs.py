"""The workers of a run without processes: requests that share passes, preempt each other, sample.

What only processes add is in ``test_*_processes.py``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worlds.any_section import LAYERED, SCHEDULES
from tests.worlds.changed import changed
from tests.worlds.deployments import crowded, small_deployment, worker_roles
from tests.worlds.local_workers import LocalRun
from treepipe.core.cache_room import PAGE
from treepipe.core.messages import Flight
from treepipe.core.system import Ends
from treepipe.core.verification import Adaptive, Sampling, target_distribution
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.draft_worker import DraftWorker
from treepipe.executor.measure.calibration import WholeModel
from treepipe.executor.verifier import new_rule
from treepipe.scenario.deployment import RequestSpec, Room
from treepipe.scenario.schema import SamplingSection
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate
from treepipe.testing.random_model import save_random_checkpoint
from treepipe.testing.trials.sampling import chi_square


@pytest.mark.parametrize("ends", ["draft", "pipeline"])
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in LAYERED])
def test_requests_that_share_passes_keep_their_texts(
    pair: tuple[Path, Path], name: str, ends: Ends
) -> None:
    deployment = small_deployment(name, clients=3, batch=4, ends=ends)
    run = LocalRun(worker_roles(pair, deployment))
    run.assert_greedy(pair[0])
    sent = [message for message, _ in run.stations["pipeline0.stage1"].sent]
    assert any(len(each.segments) > 1 for each in sent if isinstance(each, Flight))


@pytest.mark.parametrize("ends", ["draft", "pipeline"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_runs_are_lossless_and_replay_step_by_step(
    pair: tuple[Path, Path], name: str, ends: Ends
) -> None:
    deployment = small_deployment(name, clients=3, ends=ends)
    run = LocalRun(worker_roles(pair, deployment))
    run.assert_greedy(pair[0])
    replay = simulate(deployment, ReplaySource(run.recording))
    assert [request.tokens for request in replay.requests] == run.texts
    if name != "flowspec_free":  # its steps depend on timing
        rounds = [request.rounds for request in run.requests]
        assert [request.rounds for request in replay.requests] == rounds


@pytest.mark.parametrize(
    ("name", "ends", "heard"),
    [("starsd", "pipeline", False), ("starsd", "draft", True), ("chain", "pipeline", True)],
)
def test_where_the_target_emits_tokens_are_out_when_it_has_decided(
    pair: tuple[Path, Path], name: str, ends: Ends, heard: bool
) -> None:
    """The stages' clocks stand at 0, the draft server's 9 ms later."""

    def later(draft: DraftWorker) -> None:
        draft._station.clock.now_ms = lambda: 9.0  # type: ignore[method-assign]

    deployment = small_deployment(name, clients=3, ends=ends)
    for request in LocalRun(worker_roles(pair, deployment), later).requests:
        times = {at for at, _ in request.emitted} | {request.finished_ms}
        assert times == {9.0 if heard else 0.0}


@pytest.mark.parametrize("name", SCHEDULES)
def test_runs_that_preempt_are_lossless_and_can_be_replayed(
    pair: tuple[Path, Path], name: str
) -> None:
    deployment = crowded(name)
    run = LocalRun(worker_roles(pair, deployment))
    assert sum(request.preemptions for request in run.requests) > 0
    run.assert_greedy(pair[0])
    replay = simulate(deployment, ReplaySource(run.recording))
    assert [request.tokens for request in replay.requests] == run.texts


# --- sampling: every continuation of a prompt has a known probability ----------------------------

VOCABULARY, HORIZON, REQUESTS = 8, 3, 250
PROMPT = (1, 5, 2, 7) * 3 + (1, 5, 2)
NARROW: dict[str, Any] = {"temperature": 0.6, "top_p": 0.9, "top_k": 5}


def exact(directory: Path, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every continuation, by the unpartitioned model."""
    whole = WholeModel(Checkpoint.open(directory), 32)

    def following(text: tuple[int, ...]) -> Any:
        whole.stage.open(0)
        logits = whole.read((*PROMPT, *text), range(len(PROMPT) + len(text)), None)[-1]
        return target_distribution(logits.double().numpy(), sampling)

    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(HORIZON):
        found = {
            (*text, token): probability * share
            for text, probability in found.items()
            for token, share in enumerate(following(text))
            if probability * share
        }
    return found


@pytest.mark.parametrize(
    ("name", "rule", "ends"),
    [("flowspec", "exact", "pipeline"), ("specinfer", "rejection", "draft")],
)
def test_continuations_have_the_targets_distribution(
    tmp_path: Path, name: str, rule: str, ends: Ends
) -> None:
    """Verified at the last stage, and where the draft is (chi-square).

    A prompt has 15 tokens: the second new one takes another page, of which there are four.
    Requests that are preempted draw again, anew; what was emitted stays."""
    pair = tuple(
        save_random_checkpoint(tmp_path / str(seed), layers=count, seed=seed, vocabulary=VOCABULARY)
        for count, seed in ((4, 5), (1, 6))
    )
    section = SamplingSection(rule=rule, **NARROW)
    sizes: dict[str, Any] = {"branching": (2, 2, 1)} if name == "specinfer" else {}
    deployment = changed(
        small_deployment(name, clients=3, sampling=section, ends=ends, children=3, **sizes),
        requests=(RequestSpec(PROMPT, HORIZON),) * REQUESTS,
        seed=11,
        cache="paged",
        room=Room((4 * PAGE,), (4 * PAGE,)),
    )
    run = LocalRun(worker_roles((pair[0], pair[1]), deployment, sampling=section))
    assert sum(request.preemptions for request in run.requests) > REQUESTS / 10
    counts = Counter(run.texts)
    shares = exact(pair[0], Sampling(section.temperature, section.top_p, section.top_k))
    assert set(counts) <= set(shares), "an impossible continuation was sampled"
    assert chi_square(counts, shares) > 1e-4


def test_the_signals_weights_reach_the_rule() -> None:
    """p and q differ, and their best tokens are the same: only the signal that counts is low."""
    p, q = np.array([0.6, 0.4, 0.0]), np.array([0.9, 0.1, 0.0])
    contrast = (0.6 / 0.9) ** 0.9 * (0.4 / 0.1) ** 0.1
    for alone, tau in (("contrast", contrast), ("matches", 0.55), ("agreement", 0.7)):
        others = {f"{name}_weight": 0.0 for name in ("contrast", "matches", "agreement")}
        weights = {**others, f"{alone}_weight": 1.0}
        rule = new_rule(
            SamplingSection(rule="adaptive", tau_max=1.0, **weights), np.random.default_rng(0)
        )
        assert isinstance(rule, Adaptive)
        assert rule._tau(p, q) == pytest.approx(tau), alone
