"""The simulated world: hand calculations, repeatability, and what acceptance sources promise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treepipe.errors import RunError, UserError
from treepipe.metrics import run_metrics, utilization
from treepipe.plan import Placed, Plan, RequestSpec
from treepipe.planning import new_schedule
from treepipe.protocol import NO_PARENT, Drafted, DraftPass
from treepipe.recording import Recorder, Recording
from treepipe.scenario import ScheduleSection
from treepipe.sim.acceptance import AcceptanceSource, Oracle, PoolSource, ReplaySource
from treepipe.sim.pool import Pool, bernoulli_pool, hit_ratio_pool
from treepipe.sim.world import Simulation, simulate
from treepipe.timing import DeviceTimes, LinkTimes, TimeTable

C, G, V, D, P, L = 20.0, 3.0, 2.0, 1.0, 0.5, 1.0
"""Milliseconds of a stage pass, draft pass, evaluation, decision, prune, and link latency."""
TIMES = DeviceTimes(TimeTable({1: C}), TimeTable({1: G}), TimeTable({1: V}), D, P)
STAGES = 4


def make_plan(name: str, *, tokens: int = 21, requests: int = 1, **tree: object) -> Plan:
    section = ScheduleSection.model_validate({"name": name, **tree})
    stages = tuple(Placed(f"pipeline0.stage{n}", TIMES) for n in range(1, STAGES + 1))
    return Plan(
        "test",
        Placed("draft0", TIMES),
        stages,
        lambda session: new_schedule(section, STAGES, session),
        (RequestSpec((0,) * 10, tokens),) * requests,
        LinkTimes(L),
    )


def source(beta: float, seed: int = 0) -> AcceptanceSource:
    return PoolSource(bernoulli_pool(beta), 1, seed)


def tbt(plan: Plan, acceptance: AcceptanceSource) -> float:
    return run_metrics(simulate(plan, acceptance))["time_between_tokens_ms"]


def test_plain_decoding_takes_all_stages_and_links_per_token() -> None:
    # Draft -> 4 stages -> draft: 4 passes, 5 links, evaluation of the one row, decision.
    assert tbt(make_plan("pp"), source(1.0)) == pytest.approx(4 * C + 5 * L + V + D)


def test_stages_of_different_speed_add_up() -> None:
    plan = make_plan("pp")
    slow = replace(TIMES, stage=TimeTable({1: 50.0}))
    stages = (*plan.stages[:3], replace(plan.stages[3], times=slow))
    plan = replace(plan, stages=stages)
    assert tbt(plan, source(1.0)) == pytest.approx(3 * C + 50.0 + 5 * L + V + D)


def _naive_round() -> float:
    """Fill, then one segment per stage time; the last of 5 is evaluated after its decision."""
    draft = 7 * G
    last_leaves = (4 + 4) * C + 5 * L
    return draft + last_leaves + V + D


def test_naive_pp_round_without_a_hit() -> None:
    # Every round commits the target's own token only. The word overtakes nothing: pruning at the
    # stages overlaps with the next round's drafting (7 passes of 3 ms, far longer than 1.5 ms).
    # A returned segment is evaluated and decided on (3 ms) before the next arrives (20 ms).
    assert tbt(make_plan("naive_pp"), source(0.0)) == pytest.approx(_naive_round())


def test_naive_pp_round_with_every_hit() -> None:
    # 7 levels below the root are accepted, and the target's own token: 8 per round.
    trace = simulate(make_plan("naive_pp", tokens=33), source(1.0))
    metrics = run_metrics(trace)
    assert metrics["tokens_per_round"] == 8
    assert metrics["time_between_tokens_ms"] == pytest.approx(_naive_round() / 8)


def test_pruned_pp_ends_the_round_at_the_first_segment_back() -> None:
    # Drafting, the first segment's way through 4 stages, evaluation, decision; then the next
    # round's first segment finds stage 1 free only after the pass it is in (it runs 4 free ones).
    first = 7 * G + 4 * C + 5 * L + V + D
    metrics = run_metrics(simulate(make_plan("pruned_pp"), source(0.0)))
    assert metrics["time_between_tokens_ms"] == pytest.approx(first)
    assert metrics["tokens_per_step"] == 1


def test_flowspec_with_a_perfect_chain_commits_in_every_step_after_the_fill() -> None:
    plan = make_plan("flowspec", tokens=60, top_k=1, tree_size=7, segment_tokens=2, expand_size=7)
    trace = simulate(plan, source(1.0))
    (only,) = trace.requests[0].rounds
    assert only.tokens == 59
    # The chain of 8 nodes enters as 1, 1, 2, 2, 2; each step verifies one segment. A step lasts
    # evaluation + decision + word + prune + stage + link.
    gaps = np.diff([time for time, _ in trace.requests[0].emitted])
    assert gaps[1] == pytest.approx(V + D + L + P + C + L)


def test_same_seed_gives_the_same_trace_byte_for_byte() -> None:
    plan = replace(make_plan("flowspec", requests=2), default_link=LinkTimes(1.0, 100.0, 0.3))
    first, again = (simulate(plan, source(0.7, seed=5)).dumps() for _ in range(2))
    other = simulate(replace(plan, seed=1), source(0.7, seed=6)).dumps()
    assert first == again
    assert first != other


def test_jitter_keeps_messages_in_order_and_costs_time() -> None:
    plan = make_plan("naive_pp")
    shaky = replace(plan, default_link=LinkTimes(L, None, 2.0))
    assert tbt(shaky, source(0.5)) > tbt(plan, source(0.5))


def test_bandwidth_is_paid_per_row() -> None:
    plan = replace(make_plan("pp"), row_bytes=125_000 - 72, default_link=LinkTimes(0.0, 1000.0))
    # A row of 125,000 bytes with header takes 1 ms on each of 5 hops at 1 Gbit/s.
    assert tbt(plan, source(1.0)) == pytest.approx(4 * C + 5 * 1.0 + V + D)


def test_utilization_counts_what_occupies_a_device() -> None:
    shares = utilization(simulate(make_plan("pp", tokens=400), source(1.0)))
    period = 4 * C + 5 * L + V + D
    assert shares["pipeline0.stage2"] == pytest.approx(C / period, rel=0.01)
    assert shares["draft0"] == pytest.approx((V + D) / period, rel=0.01)


def test_deadlock_is_reported_not_returned() -> None:
    simulation = Simulation(make_plan("pp"), source(1.0), record_spans=False)
    simulation.send = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"deadlock at 0\.000 ms: draft0 waits for a segment"):
        simulation.run()


class RecordingSource:
    """Listens to another source's draft answers."""

    def __init__(self, inner: AcceptanceSource) -> None:
        self.inner, self.recorder = inner, Recorder()

    def open(self, session: int, prompt_tokens: int) -> Oracle:
        oracle, recorder = self.inner.open(session, prompt_tokens), self.recorder
        plain = oracle.draft

        def draft(order: DraftPass) -> Drafted:
            drafted = plain(order)
            recorder.drafted(session, order, drafted)
            return drafted

        oracle.draft = draft  # type: ignore[method-assign]
        return oracle


@pytest.mark.parametrize("name", ["naive_pp", "pruned_pp", "flowspec"])
@pytest.mark.parametrize("speed", [1.0, 0.3])
def test_replay_gives_every_step_of_a_recorded_run(name: str, speed: float, tmp_path: Path) -> None:
    plan = make_plan(name, tokens=50, requests=3, score_aware=True)
    listening = RecordingSource(PoolSource(hit_ratio_pool({1: 0.6, 8: 0.95}), 4, 3))
    trace = simulate(plan, listening)
    for request in trace.requests:
        listening.recorder.finished(request.session, 10, request.tokens)
    listening.recorder.recording.save(tmp_path / "recording.json")
    other = replace(TIMES, stage=TimeTable({1: C * speed}), draft=TimeTable({1: G / speed}))
    stages = tuple(replace(stage, times=other) for stage in plan.stages)
    recording = Recording.load(tmp_path / "recording.json")
    replayed = simulate(replace(plan, stages=stages), ReplaySource(recording))
    assert [r.rounds for r in replayed.requests] == [r.rounds for r in trace.requests]
    assert [r.tokens for r in replayed.requests] == [r.tokens for r in trace.requests]


def test_replay_of_another_schedule_says_what_is_missing() -> None:
    recording = Recording()
    recorder = Recorder()
    recorder.finished(1, 10, (1, 2, 3))
    recording.requests = recorder.recording.requests
    with pytest.raises(RunError, match="never drafted from"):
        simulate(make_plan("naive_pp", tokens=3), ReplaySource(recording))


def _pool(rng: np.random.Generator) -> Pool:
    """Two prompts whose hits come in runs, so that neighbours agree."""
    prompts = []
    for _ in range(2):
        hits = np.repeat(rng.random(60) < 0.5, 8)
        vectors = np.log(rng.dirichlet(np.ones(6), size=480))
        prompts.append((-np.sort(-vectors), [0 if hit else 6 for hit in hits]))
    off = {1: -np.sort(-np.log(rng.dirichlet(np.ones(6), size=9)))}
    return Pool(prompts, off)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.data())
def test_same_path_gets_the_same_answer_whatever_was_asked_before(
    seed: int, data: st.DataObject
) -> None:
    pool = _pool(np.random.default_rng(1))
    path = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    distractions = data.draw(st.lists(st.integers(0, 5), max_size=6))
    found = []
    for first in ([], distractions):
        oracle = PoolSource(pool, 3, seed).open(1, 2)
        oracle.draft(DraftPass(1, (0, 0), (), (), True, 6))
        count = 0
        for token in first:
            oracle.draft(DraftPass(1, (), (token,), (NO_PARENT,), False, 6))
            count += 1
        parent = NO_PARENT
        for token in path:
            drafted = oracle.draft(DraftPass(1, (), (token,), (parent,), False, 6))
            parent, count = count, count + 1
        found.append(np.asarray(drafted.log_probs).tolist())
    assert found[0] == found[1]


def test_off_path_answers_come_from_their_own_pool() -> None:
    pool = _pool(np.random.default_rng(1))
    oracle = PoolSource(pool, 3, 7).open(1, 2)
    oracle.draft(DraftPass(1, (0, 0), (), (), True, 6))
    wrong = 5 if oracle.truth(0) == 0 else 0
    drafted = oracle.draft(DraftPass(2, (), (wrong,), (NO_PARENT,), False, 6))
    assert np.asarray(drafted.log_probs)[0].tolist() in pool.vectors[len(pool) :].tolist()


def test_blocks_keep_the_correlation_of_neighbours() -> None:
    pool = _pool(np.random.default_rng(2))

    def correlation(block: int) -> float:
        oracle = PoolSource(pool, block, 3).open(1, 0)
        hits = np.array([oracle.truth(i) == 0 for i in range(4000)], dtype=float)
        return float(np.corrcoef(hits[:-1], hits[1:])[0, 1])

    assert abs(correlation(1)) < 0.1
    assert correlation(16) > 0.6


@pytest.mark.parametrize("beta", [0.0, 0.37, 1.0])
def test_bernoulli_pool_has_its_probability(beta: float) -> None:
    pool = bernoulli_pool(beta)
    assert pool.hit_ratio(1) == pytest.approx(beta, abs=1e-3)
    assert pool.hit_ratio(pool.candidates) == pool.hit_ratio(1)


def test_hit_ratio_pool_has_the_given_shares() -> None:
    pool = hit_ratio_pool({1: 0.81, 8: 0.99})
    assert pool.hit_ratio(1) == pytest.approx(0.81, abs=1e-3)
    assert pool.hit_ratio(8) == pytest.approx(0.99, abs=1e-3)
    assert 0.81 < pool.hit_ratio(3) < 0.99


def test_wrong_acceptance_files_are_one_sentence(tmp_path: Path) -> None:
    bad = tmp_path / "pool.json"
    with pytest.raises(UserError, match="there is no such acceptance pool"):
        Pool.load(bad)
    for content in ("{", "[]", '{"schema": "x"}', json.dumps({"schema": "treepipe.acceptance/1"})):
        bad.write_text(content)
        with pytest.raises(UserError, match="is not an acceptance pool"):
            Pool.load(bad)
    with pytest.raises(UserError, match="must not fall with k"):
        hit_ratio_pool({1: 0.9, 8: 0.5})
    bad.write_text("{}")
    with pytest.raises(UserError, match="is not a recording"):
        Recording.load(bad)
