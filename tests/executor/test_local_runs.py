"""The workers of a run without processes: requests that share passes, preempt each other, sample.

What only processes add is in ``test_*_processes.py``.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worlds.any_section import LAYERED, SCHEDULES
from tests.worlds.changed import changed
from tests.worlds.command_line import ROOT
from tests.worlds.deployments import crowded, small_deployment, worker_roles
from tests.worlds.examples import THOROUGH
from tests.worlds.local_workers import LocalRun, LocalStation
from treepipe.core.cache_room import PAGE
from treepipe.core.messages import Flight
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.stage_desk import StageDesk
from treepipe.core.system import Ends
from treepipe.core.verification import Adaptive, Sampling, target_distribution
from treepipe.executor.measure.acceptance import WholeModel
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.draft_source import Passes
from treepipe.executor.models.verifier import new_rule
from treepipe.executor.run import launch
from treepipe.executor.run.draft_worker import DraftWorker
from treepipe.executor.wire.mailbox import Received
from treepipe.scenario.deployment import RequestSpec, Room
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import SamplingSection
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate
from treepipe.testing.random_model import save_random_checkpoint
from treepipe.testing.trials.sampling import chi_square

SCENARIOS = sorted((ROOT / "studies" / "scenarios").glob("*.toml"))
ENDS: tuple[Ends, Ends] = ("draft", "pipeline")
ONE, OTHER = ([(name, ENDS[(n + by) % 2]) for n, name in enumerate(SCHEDULES)] for by in (0, 1))
if THOROUGH:
    ONE = OTHER = [*product(SCHEDULES, ENDS)]
"""Every system with a placement of the target's ends. A usual run has each with both: with the one
alone, with the other where requests share passes or are preempted."""


@pytest.mark.parametrize(("name", "ends"), [each for each in OTHER if each[0] not in LAYERED])
def test_requests_that_share_passes_keep_their_texts(
    pair: tuple[Path, Path], name: str, ends: Ends
) -> None:
    deployment = small_deployment(name, clients=3, batch=4, ends=ends)
    run = LocalRun(worker_roles(pair, deployment))
    run.assert_greedy(pair[0])
    sent = [message for message, _ in run.stations["pipeline0.stage1"].sent]
    assert any(len(each.segments) > 1 for each in sent if isinstance(each, Flight))


@pytest.mark.parametrize(("name", "ends"), ONE)
def test_runs_are_lossless_and_replay_step_by_step(
    pair: tuple[Path, Path], name: str, ends: Ends
) -> None:
    deployment = small_deployment(name, clients=3, ends=ends)
    run = LocalRun(worker_roles(pair, deployment))
    run.assert_greedy(pair[0])
    replay = simulate(deployment, ReplaySource(run.recording))
    assert [request.tokens for request in replay.requests] == run.texts
    if name not in ("flowspec_free", "pipeinfer", "pipespec"):  # their steps depend on timing
        rounds = [request.rounds for request in run.requests]
        assert [request.rounds for request in replay.requests] == rounds


@pytest.mark.parametrize("ends", ENDS)
def test_passes_that_words_cancel_leave_caches_and_texts_right(
    pair: tuple[Path, Path], ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage takes a flight at a time, before all words, which reach it while it computes."""
    found, given_up, due = list[Flight](), StageDesk.given_up, LocalStation.due
    took = set[str]()

    def flight_first(station: LocalStation, until_ms: float | None = None) -> Received | None:
        name = station.settings.placed.name
        box = station._boxes[name]
        flights = [each for each in box if isinstance(each.message, Flight)]
        if flights and name not in took:
            took.add(name)
            box.remove(flights[0])
            box.appendleft(flights[0])
            return due(station)
        took.discard(name)
        return None if flights else due(station)

    def word(station: LocalStation) -> Received | None:
        box = station._boxes[station.settings.placed.name]
        staged = station.settings.kind == "stage" and box and isinstance(box[0].message, Flight)
        return None if staged else due(station)

    def noted(desk: StageDesk, flight: Flight) -> Flight | None:
        markers = given_up(desk, flight)
        found.extend([flight] if markers is not None else [])
        return markers

    monkeypatch.setattr(StageDesk, "given_up", noted)
    monkeypatch.setattr(LocalStation, "wait", flight_first)
    monkeypatch.setattr(LocalStation, "due", word)
    deployment = small_deployment("flowspec_free", clients=2, ends=ends, cancels=True)
    LocalRun(worker_roles(pair, deployment), pipelined=True).assert_greedy(pair[0])
    assert found


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


@pytest.mark.parametrize(("name", "ends"), OTHER)
def test_runs_that_preempt_are_lossless_and_can_be_replayed(
    pair: tuple[Path, Path], name: str, ends: Ends
) -> None:
    deployment = crowded(name, ends=ends)
    run = LocalRun(worker_roles(pair, deployment))
    assert sum(request.preemptions for request in run.requests) > 0
    run.assert_greedy(pair[0])
    replay = simulate(deployment, ReplaySource(run.recording))
    assert [request.tokens for request in replay.requests] == run.texts


@pytest.mark.parametrize(
    ("name", "in_phases"), [("pipedec", True), ("specpipe_db", True), ("specpipe_db", False)]
)
def test_a_step_in_phases_sends_what_pruning_has_left(
    pair: tuple[Path, Path], name: str, in_phases: bool
) -> None:
    """In groups of one and of three stages; the first one's results cross the only boundary."""
    deployment = changed(
        small_deployment(name, clients=2, parallel_prefill=True),
        groups=(1, 3),
        overlapped_pruning=not in_phases,
    )
    run = LocalRun(worker_roles(pair, deployment))
    run.assert_greedy(pair[0])
    replay = simulate(deployment, ReplaySource(run.recording))
    assert [r.rounds for r in replay.requests] == [r.rounds for r in run.requests]
    spans = [
        [s for s in replay.spans if s.device == device and s.kind == kind]
        for device, kind in (
            ("pipeline0.stage1", "compute"),
            ("pipeline0.stage1->pipeline0.stage2", "transfer"),
            ("draft0", "draft"),
        )
    ]
    crossing = [run.stations[name].sent for name in ("draft0", "pipeline0.stage1")]
    ours = [sum(m.rows for m, _ in sent if isinstance(m, Flight)) for sent in crossing]
    for computed, sent in (ours, [sum(s.tokens for s in each) for each in spans[:2]]):
        assert sent < computed if in_phases else sent == computed
    first = spans[2][0]
    assert first.tokens == 35, "the prompt's first chunk"
    assert first.end_ms < replay.requests[0].emitted[0][0], "while the target reads it, too"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_workers_of_shipped_scenarios_decode_the_targets_text(path: Path) -> None:
    few = "workload.requests=1", "workload.new_tokens=6", "runs=1"
    made = launch.prepare(Scenario.load(path, few))
    LocalRun(made.roles).assert_greedy(made.target.directory)


def test_prompt_lookup_leads_a_draft_whose_passes_check_it() -> None:
    """Three levels: a look-up, the bundled draft, the bundled target. The look-up spares passes."""
    passes = dict[int, int]()
    for lookup in (0, 4):
        few = "workload.requests=1", "workload.new_tokens=24"
        keys = *few, "runs=1", f"schedule.lookup={lookup}"
        made = launch.prepare(Scenario.load(ROOT / "studies/scenarios/pipespec.toml", keys))
        drafted = list[DraftPass]()

        def noted(draft: DraftWorker, drafted: list[DraftPass] = drafted) -> None:
            run = draft._source.draft_batch

            def batch(orders: Passes) -> list[Drafted]:
                drafted.extend(order for _, order in orders)
                return run(orders)

            draft._source.draft_batch = batch  # type: ignore[method-assign]

        LocalRun(made.roles, noted).assert_greedy(made.target.directory)
        passes[lookup] = len(drafted)
        assert max(len(order.tokens) for order in drafted) == 1 + lookup
    assert passes[4] < passes[0]


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
    for place, tau in enumerate((contrast, 0.55, 0.7)):
        weights = tuple(float(number == place) for number in range(3))
        rule = new_rule(
            SamplingSection(rule="adaptive", tau_max=1.0, weights=weights), np.random.default_rng(0)
        )
        assert isinstance(rule, Adaptive)
        assert rule._tau(p, q) == pytest.approx(tau)
