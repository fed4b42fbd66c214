"""Shares of hits by depth: counted in texts, drawn from, and what one share for all overstates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.worlds.theory_scenarios import Written, draft_of
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.profiles.hit_ratio import Rounds, chain_rounds
from treepipe.profiles.library import LIBRARY
from treepipe.profiles.pool_file import Prompt, Table
from treepipe.results.metrics import run_metrics
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.acceptance_pool import acceptance_pool
from treepipe.sim.blocks import SHORTEST, block_length
from treepipe.sim.made_pools import hit_ratio_pool
from treepipe.sim.pool import Pool
from treepipe.sim.predict import predict
from treepipe.sim.theory.closed_form import closed_form

FALLING = (0.8, 0.5, 0.25)
VECTOR = np.log([0.6, 0.3, 0.1])


def _tokens_per_round(pool: Pool, gamma: int, rounds: int = 5000) -> float:
    """What chains drafted from a pool's simulated text commit on average."""
    oracle = PoolSource(pool, 1, seed=3).open(1, prompt_tokens=1)
    unread, place = [0], 0
    for _ in range(rounds):
        order = DraftPass(0, tuple(unread), (), (), True, 1)
        first = place
        for depth in range(gamma):
            (token,) = oracle.draft(order).tokens[0]
            if token != oracle.truth(place):
                break
            parent = depth - 1 if depth else NO_PARENT
            order, place = DraftPass(0, (), (token,), (parent,), False, 1), place + 1
        place += 1
        unread = [oracle.truth(index) for index in range(first, place)]
    return place / rounds


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_a_chain_has_the_closed_form_of_shares_by_depth(gamma: int) -> None:
    p1, p2, p3 = FALLING
    levels = [p1, p1 * p2, p1 * p2 * p3, p1 * p2 * p3 * p3, p1 * p2 * p3 * p3 * p3]
    expected = 1 + sum(levels[:gamma])
    assert _tokens_per_round(hit_ratio_pool({1: FALLING}), gamma) == pytest.approx(expected, 0.03)


def test_one_share_for_all_depths_overstates_a_chain() -> None:
    falling, first = (_tokens_per_round(hit_ratio_pool({1: s}), 5) for s in (FALLING, 0.8))
    assert (falling, first) == (pytest.approx(2.331, 0.03), pytest.approx(3.689, 0.03))
    assert (hit_ratio_pool({1: (0.8,)}).vectors == hit_ratio_pool({1: 0.8}).vectors).all()


def test_rounds_are_counted_as_by_hand() -> None:
    # Right below what is verified, and one further down; 3 candidates, so 3 is a miss.
    ranks = np.array([[0, 0, 0, 3, 0, 1, 0, 0, 0], [0, 0, 3, 0, 0, 0, 3, 0, 0]])
    found = chain_rounds(ranks, [(0, 9)], 1, 2)
    # Rounds begin at 0 (both right), 3 (a miss), 4 (right, right), and 7 is cut by the end.
    assert found == Rounds((3, 2), (2, 2))
    assert found.tokens == pytest.approx(7 / 3) == 1 + 2 / 3 + 2 / 3 * 1
    assert chain_rounds(ranks, [(0, 5), (5, 9)], 2, 2) == Rounds((2, 2), (2, 1))


@pytest.mark.parametrize("gamma", [1, 4])
def test_a_summary_by_depth_is_the_replay_it_was_counted_in(gamma: int) -> None:
    """Of the bundled head, whose answers depend on how much is verified."""
    pool = Pool.load(LIBRARY / "acceptance" / "reference-eagle.json.gz")
    edges = np.cumsum([0, *pool.lengths])
    texts = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    rounds = chain_rounds(pool.ranks_by_depth, texts, 1, gamma)
    by_depth = _tokens_per_round(hit_ratio_pool({1: rounds.ratios}), gamma)
    assert by_depth == pytest.approx(rounds.tokens, rel=0.03)


def test_a_position_drafted_again_nearer_is_not_drawn_anew() -> None:
    pool = hit_ratio_pool({1: (0.8, 0.5), 4: (0.9, 0.7)})
    near, far = pool.ranks_by_depth
    assert [np.mean(ranks < k) for ranks in (near, far) for k in (1, 4)] == [0.8, 0.9, 0.5, 0.7]
    assert not (far < near).any()


def test_the_closed_form_of_chains_takes_shares_by_depth() -> None:
    table = "acceptance={source='hit_ratio',table={1=[0.8,0.5,0.25]}}"
    chain = Written("chain", table, draft_of(3.0), "schedule.gamma=3", "workload.new_tokens=16")
    many = chain.scenario.with_(**{"workload.requests": 80})
    mean = closed_form(chain.scenario).metrics["time_between_tokens_ms"]
    (trace,) = predict(many)
    assert run_metrics(trace)["time_between_tokens_ms"] == pytest.approx(mean, rel=0.05)


def test_misses_are_scaled_at_every_depth() -> None:
    def pool(table: str, *settings: str) -> Pool:
        source = f"acceptance={{source='hit_ratio',table={table}}}"
        return acceptance_pool(Written("chain", source, *settings).scenario)[0]

    more, given = pool("{1=[0.8,0.6]}", "scale.misses=2"), pool("{1=[0.6,0.2]}")
    assert (more.ranks_by_depth == given.ranks_by_depth).all()


# --- blocks chosen from the pool -----------------------------------------------------------------


def _pool(ranks: npt.NDArray[np.int64]) -> Pool:
    """Args: ``ranks``: [texts, positions]."""
    vectors = np.tile(VECTOR, (ranks.shape[1], 1))
    return Pool([Prompt(Table(vectors, each)) for each in ranks.tolist()], {1: VECTOR[None, :]})


def test_blocks_are_as_long_as_what_neighbours_share() -> None:
    alone = np.random.default_rng(0).integers(4, size=(8, 512))
    assert block_length(_pool(alone)) == SHORTEST
    # Five hits and a miss, in step with the rounds: every seam costs about half a round.
    in_step = np.tile([0, 0, 0, 0, 0, 3], (8, 85))
    assert 64 <= block_length(_pool(in_step)) <= 512


def test_short_texts_are_drawn_whole() -> None:
    short = Prompt(Table(np.tile(VECTOR, (4, 1)), [0, 3, 0, 0]))
    assert block_length(Pool([short] * 3, {1: VECTOR[None, :]})) == SHORTEST
