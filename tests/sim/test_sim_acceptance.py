"""Sources of acceptance: one answer per path, and the statistics that they are named after."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treepipe.core.errors import RunError
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.profiles.pool_file import Prompt, Table
from treepipe.results.recording import Answer, RecordedRequest, Recording
from treepipe.sim import made_pools
from treepipe.sim.acceptance import Oracle, PoolSource
from treepipe.sim.made_pools import bernoulli_pool, hit_ratio_pool
from treepipe.sim.pool import Pool
from treepipe.sim.replay import ReplaySource

CANDIDATES = 6
PROMPT = 3
Tokens = tuple[int, ...]


def recorded_pool(prompts: int = 2, positions: int = 480, run: int = 8) -> Pool:
    """Hits (rank 0) and misses in runs of ``run`` positions; every vector is unique."""
    rng = np.random.default_rng(2)

    def vectors(count: int) -> npt.NDArray[np.float64]:
        return -np.sort(-np.log(rng.dirichlet(np.ones(CANDIDATES), size=count)))

    found = []
    for _ in range(prompts):
        hits = np.repeat(rng.random(-(-positions // run)) < 0.5, run)[:positions]
        ranks = [0 if hit else int(rng.integers(1, CANDIDATES + 1)) for hit in hits]
        found.append(Prompt(Table(vectors(positions), ranks)))
    return Pool(found, {1: vectors(11), 2: vectors(12), 3: vectors(13)})


def read(oracle: Oracle, tokens: int) -> list[float]:
    """Let the draft read committed tokens; its answer for the last one."""
    drafted = oracle.draft(DraftPass(1, (0,) * tokens, (), (), True, CANDIDATES))
    return [float(value) for value in drafted.log_probs[0]]


def ask(oracle: Oracle, paths: list[Tokens]) -> dict[Tokens, list[float]]:
    """Answers for all paths, each given after its prefix; a fresh scratch must be given."""
    places: dict[Tokens, int] = {(): NO_PARENT}
    answers = {}
    for path in paths:
        order = DraftPass(1, (), path[-1:], (places[path[:-1]],), False, CANDIDATES)
        places[path] = len(places) - 1
        answers[path] = np.asarray(oracle.draft(order).log_probs)[0].tolist()
    return answers


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[Tokens], list[Tokens]]:
    """The paths of a token tree in two orders, prefixes first in both."""
    leaves = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=8))
    paths = {tuple(leaf[:n]) for leaf in leaves for n in range(1, len(leaf) + 1)}
    orders = []
    for _ in range(2):
        shuffled = draw(st.permutations(sorted(paths)))
        placed: list[Tokens] = []
        for path in shuffled:
            prefixes = [path[:n] for n in range(1, len(path) + 1)]
            placed += [prefix for prefix in prefixes if prefix not in placed]
        orders.append(placed)
    return orders[0], orders[1]


@given(st.integers(0, 2**64 - 1), trees())
def test_a_path_has_one_answer_in_whatever_order_it_is_asked(
    seed: int, orders: tuple[list[Tokens], list[Tokens]]
) -> None:
    source = PoolSource(recorded_pool(positions=40), 5, seed)
    found = []
    for order in orders:
        oracle = source.open(1, PROMPT)
        read(oracle, PROMPT)
        found.append(ask(oracle, order))
    assert found[0] == found[1]


@given(st.integers(0, 1000), st.integers(1, 4), st.lists(st.integers(0, 3), max_size=4))
def test_a_path_keeps_its_answer_when_its_beginning_is_committed(
    seed: int, committed: int, rest: list[int]
) -> None:
    """Continuous expansion drafts again at the new root: same path, same candidates."""
    source = PoolSource(recorded_pool(positions=40), 5, seed)
    whole, moved = source.open(1, PROMPT), source.open(1, PROMPT)
    text = [whole.truth(i) for i in range(committed)]
    long = [tuple(text + rest)[:n] for n in range(1, committed + len(rest) + 1)]
    read(whole, PROMPT)
    before = ask(whole, long)
    at_root = read(moved, PROMPT + committed)
    after = ask(moved, [tuple(rest[:n]) for n in range(1, len(rest) + 1)])
    assert before[tuple(text)] == at_root
    for path, answer in after.items():
        assert before[tuple(text) + path] == answer


def test_every_depth_off_the_path_has_its_own_vectors() -> None:
    pool = recorded_pool()
    oracle = PoolSource(pool, 16, 7).open(1, PROMPT)
    read(oracle, PROMPT)
    wrong = (oracle.truth(0) + 1) % CANDIDATES
    chain = [(wrong,) + (0,) * n for n in range(6)]
    answers = ask(oracle, chain)
    off = pool.vectors[len(pool) :].tolist()
    parts = [off[:11], off[11:23], off[23:]]
    for steps, path in enumerate(chain, start=1):
        assert answers[path] in parts[min(steps, 3) - 1]


def test_the_true_path_has_the_records_vectors() -> None:
    pool = recorded_pool()
    oracle = PoolSource(pool, 16, 7).open(1, PROMPT)
    answers = [read(oracle, PROMPT)]
    text = tuple(oracle.truth(i) for i in range(5))
    answers += ask(oracle, [text[:n] for n in range(1, 6)]).values()
    rows = [pool.vectors.tolist().index(answer) for answer in answers]
    assert max(rows) < len(pool)
    assert [pool.ranks[row] for row in rows[:5]] == list(text)


def test_a_head_keeps_its_guess_of_a_committed_token_until_it_catches_up() -> None:
    """As the real one (``test_draft_sources.py``): a node that becomes committed stays a guess."""
    rng = np.random.default_rng(4)
    vectors = -np.sort(-np.log(rng.dirichlet(np.ones(CANDIDATES), size=(5, 60))))
    tables = [Table(each, [0] * 60) for each in vectors]
    pool = Pool([Prompt(tables[0], tables[1:])], {1: vectors[0, :5]})
    oracle = PoolSource(pool, None, 7).open(1, PROMPT)

    def depth_of(answer: list[float]) -> int:
        return int(np.argwhere((vectors == answer).all(-1))[0, 0])

    assert depth_of(read(oracle, PROMPT)) == 0
    guessed = ask(oracle, [(0,), (0, 0)])
    assert [depth_of(answer) for answer in guessed.values()] == [1, 2]
    kept = DraftPass(1, (), (0,), (0,), False, CANDIDATES, keep=(0, 1), accepted=1)
    (answer,) = oracle.draft(kept).log_probs
    assert depth_of(list(answer)) == 3  # two verified by now are still read as guesses
    assert depth_of(read(oracle, 2)) == 0


def test_off_path_vectors_are_drawn_evenly() -> None:
    pool = recorded_pool()
    counts = np.zeros(13)
    for session in range(1, 60):
        oracle = PoolSource(pool, 16, 7).open(session, PROMPT)
        read(oracle, PROMPT)
        wrong = (oracle.truth(0) + 1) % CANDIDATES
        paths: list[Tokens] = [(wrong,), *((wrong, a) for a in range(6))]
        paths += [(wrong, a, b) for a in range(6) for b in range(6)]
        for path, answer in ask(oracle, paths).items():
            if len(path) == 3:
                counts[pool.vectors[-13:].tolist().index(answer)] += 1
    expected = counts.sum() / 13
    # 12 degrees of freedom: chi-square exceeds 33 once in a thousand draws.
    assert np.sum((counts - expected) ** 2 / expected) < 33


def test_sessions_and_seeds_have_texts_of_their_own() -> None:
    pool = recorded_pool()

    def text(seed: int, session: int) -> list[int]:
        oracle = PoolSource(pool, 16, seed).open(session, PROMPT)
        return [oracle.truth(i) for i in range(200)]

    assert text(1, 1) == text(1, 1)
    assert text(1, 1) != text(1, 2)
    assert text(1, 1) != text(2, 1)


# --- statistics ----------------------------------------------------------------------------------


def ranks_of(pool: Pool, block: int, count: int) -> npt.NDArray[np.intp]:
    oracle = PoolSource(pool, block, 3).open(1, 0)
    return np.array([oracle.truth(i) for i in range(count)])


def lag_1(hits: npt.NDArray[np.bool_]) -> float:
    return float(np.corrcoef(hits[:-1], hits[1:])[0, 1])


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("block", [1, 16])
def test_bernoulli_hits_are_as_likely_as_said_and_independent(beta: float, block: int) -> None:
    ranks = ranks_of(bernoulli_pool(beta), block, 20_000)
    assert set(ranks.tolist()) <= {0, made_pools.CANDIDATES}
    # Three standard errors of 20,000 draws are at most 0.011.
    assert float(np.mean(ranks == 0)) == pytest.approx(beta, abs=0.011)
    if 0 < beta < 1:
        assert abs(lag_1(ranks == 0)) < 0.03


def test_hit_ratios_are_met_at_and_between_the_given_ranks() -> None:
    pool = hit_ratio_pool({1: 0.81, 8: 0.99})
    ranks = ranks_of(pool, 16, 20_000)
    middle = 0.81 + (0.99 - 0.81) * np.log(3) / np.log(8)  # linear in log k
    for k, share in ((1, 0.81), (3, middle), (8, 0.99), (10, 0.99)):
        assert float(np.mean(ranks < k)) == pytest.approx(share, abs=0.011)
    assert abs(lag_1(ranks == 0)) < 0.03
    confidence = np.exp(pool.vectors[0])
    assert confidence[0] == pytest.approx(0.81, abs=1e-4)
    assert confidence[:8].sum() == pytest.approx(0.99, abs=1e-4)


def test_flattening_makes_the_draft_less_sure_off_the_path() -> None:
    pool = hit_ratio_pool({1: 0.7, 8: 0.95})
    on_path, off_path = pool.vectors[0], pool.vectors[-1]
    assert np.exp(off_path).sum() == pytest.approx(1.0)
    ratio = (off_path[0] - off_path[5]) / (on_path[0] - on_path[5])
    assert ratio == pytest.approx(1 / made_pools.OFF_PATH_FLATTENING)


def test_blocks_keep_the_correlation_of_neighbours() -> None:
    pool = recorded_pool()  # hits in runs of 8: neighbours agree unless a run ends
    assert abs(lag_1(ranks_of(pool, 1, 20_000) == 0)) < 0.03
    recorded = lag_1(np.array(pool.ranks) == 0)
    assert recorded > 0.8
    # One neighbour in 16 belongs to another block, so about 15/16 of the correlation is left.
    assert lag_1(ranks_of(pool, 16, 20_000) == 0) == pytest.approx(recorded * 15 / 16, abs=0.05)


# --- replay --------------------------------------------------------------------------------------


def small_recording() -> Recording:
    answers = [
        Answer(4, (), (50, 60), (-0.1, -2.0)),
        Answer(4, (50,), (70, 80), (-0.2, -3.0)),
        Answer(4, (60, 71), (90, 91), (-0.3, -4.0)),
    ]
    return Recording({5: RecordedRequest(PROMPT, (40, 50), answers)})


def test_replay_answers_by_path_whatever_root_it_is_asked_from() -> None:
    """The text is 40, 50: reading both and asking there is the path (50,) below the first."""
    oracle = ReplaySource(small_recording()).open(1, PROMPT)
    drafted = oracle.draft(DraftPass(8, (1, 1, 1, 40), (), (), True, 2))
    assert drafted.tokens == [(50, 60)]
    drafted = oracle.draft(DraftPass(9, (), (50,), (NO_PARENT,), False, 2))
    assert (drafted.ticket, drafted.tokens, drafted.log_probs) == (9, [(70, 80)], [(-0.2, -3.0)])
    assert [oracle.truth(i) for i in range(3)] == [40, 50, -1]
    moved = ReplaySource(small_recording()).open(1, PROMPT)
    assert moved.draft(DraftPass(8, (1, 1, 1, 40, 50), (), (), True, 2)).tokens == [(70, 80)]


def test_replay_borrows_for_a_path_that_was_never_recorded_and_says_so() -> None:
    source = ReplaySource(small_recording())
    oracle = source.open(1, PROMPT)
    oracle.draft(DraftPass(8, (1, 1, 1, 40), (), (), True, 2))
    assert source.warnings() == []
    drafted = oracle.draft(DraftPass(9, (), (60,), (NO_PARENT,), False, 2))
    assert len(drafted.tokens[0]) == len(drafted.log_probs[0]) == 2
    assert source.warnings() == [
        "1 of 2 draft answers are not in the recording; those of other places were taken"
    ]


def test_an_answer_without_candidates_is_none(tmp_path: Path) -> None:
    """Other programs write an empty list; a draft of ours says it with the probability zero."""
    recording = Recording({1: RecordedRequest(PROMPT, (40, 50), [Answer(4, (), (), ())])})
    recording.save(tmp_path / "empty.json")
    oracle = ReplaySource(Recording.load(tmp_path / "empty.json")).open(1, PROMPT)
    drafted = oracle.draft(DraftPass(8, (1, 1, 1, 40), (), (), True, 2))
    drafted.expect(1)
    assert drafted.log_probs == [(-inf,)]


def test_replay_of_another_workload_or_schedule_is_refused() -> None:
    with pytest.raises(RunError, match="prompt of 9 tokens, the recorded one of 3"):
        ReplaySource(small_recording()).open(1, 9)
    with pytest.raises(RunError, match="holds no request"):
        ReplaySource(Recording()).open(1, PROMPT)
    oracle = ReplaySource(Recording({1: RecordedRequest(3, (5, 6, 7))})).open(1, 3)
    with pytest.raises(RunError, match="the recorded run drafted nothing; a schedule that drafts"):
        oracle.draft(DraftPass(1, (1, 2, 3), (), (), True, 4))
