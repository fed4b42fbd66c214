"""Blocks of a pool: evenly drawn, or tilted to hit ratios; and pools that answer by depth."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from treepipe.core.errors import UserError
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.profiles.pool_file import Prompt, Table
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.blocks import Blocks
from treepipe.sim.pool import Pool

WIDTH = 4
VECTOR = np.log([0.4, 0.3, 0.2, 0.1])


def _table(ranks: list[int]) -> Table:
    return Table(np.tile(VECTOR, (len(ranks), 1)), ranks)


def _pool(*prompts: list[int]) -> Pool:
    return Pool([Prompt(_table(ranks)) for ranks in prompts], {1: VECTOR[None, :]})


def _uneven() -> Pool:
    """Prompts of very different hit ratios, so that a tilt has something to choose from."""
    rng = np.random.default_rng(5)
    shares = np.linspace(0.2, 0.95, 30)
    return _pool(*(rng.choice(5, 40, p=[s, *[(1 - s) / 4] * 4]).tolist() for s in shares))


@pytest.mark.parametrize("length", [1, 7, 16, 100])
def test_every_recorded_position_is_drawn_equally_often(length: int) -> None:
    pool = _pool(*([0] * n for n in (40, 5, 1, 24)))
    counts = np.zeros(70)
    for first, stop in Blocks(pool, length).draw(np.random.default_rng(0), 30_000):
        assert 0 < stop - first <= length
        counts[first:stop] += 1
    edges = [0, 40, 45, 46, 70]
    assert counts / counts.mean() == pytest.approx(np.ones(70), abs=0.2)
    per_prompt = [counts[a:b].mean() for a, b in itertools.pairwise(edges)]
    assert per_prompt / counts.mean() == pytest.approx(np.ones(4), abs=0.15)


def test_whole_texts_are_drawn_equally_often() -> None:
    pool = _pool(*([0] * n for n in (40, 5, 1, 24)))
    drawn = Blocks(pool, None).draw(np.random.default_rng(0), 8000)
    counts = [drawn.count(bounds) for bounds in ((0, 40), (40, 45), (45, 46), (46, 70))]
    assert sum(counts) == 8000
    assert counts == pytest.approx([2000] * 4, rel=0.1)


@pytest.mark.parametrize("length", [None, 16])
def test_resamples_of_prompts_differ_as_prompts_do(length: int | None) -> None:
    """The mean over a resample of 30 has their variance over 30 (the bootstrap's plug-in law)."""
    pool = _uneven()
    ratios = [np.mean(np.array(pool.ranks[i : i + 40]) == 0) for i in range(0, 1200, 40)]
    blocks, means = Blocks(pool, length), []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        drawn = blocks.resampled(rng).draw(rng, 600)
        text = np.concatenate([np.array(pool.ranks[first:stop]) for first, stop in drawn])
        means.append(np.mean(text == 0))
    assert np.mean(means) == pytest.approx(np.mean(ratios), abs=0.01)
    # What 600 draws add is a twentieth of it.
    assert np.std(means) == pytest.approx(np.std(ratios) / 30**0.5, rel=0.15)


def test_tilted_blocks_are_not_resampled() -> None:
    blocks = Blocks(_uneven(), 16, {1: 0.5})
    assert blocks.resampled(np.random.default_rng(0)) is blocks


@pytest.mark.parametrize("ratio", [None, {1: 0.5}])
def test_a_block_stays_within_its_prompt(ratio: dict[int, float] | None) -> None:
    pool = _pool(*[[0, 1] * 5] * 3)
    drawn = {*Blocks(pool, 4, ratio).draw(np.random.default_rng(0), 2000)}
    assert all(first // 10 == (stop - 1) // 10 for first, stop in drawn)
    assert (0, 1) in drawn  # a run may begin before its prompt, and end behind it
    assert (9, 10) in drawn


@pytest.mark.parametrize(
    ("length", "ratio"), [(1, {1: 0.8}), (16, {1: 0.4}), (8, {1: 0.75, 3: 0.9})]
)
def test_tilted_blocks_reach_the_hit_ratios(length: int, ratio: dict[int, float]) -> None:
    pool = _uneven()
    ranks = np.array(pool.ranks)
    blocks = Blocks(pool, length, ratio)
    drawn = blocks.draw(np.random.default_rng(1), 40_000)
    text = np.concatenate([ranks[first:stop] for first, stop in drawn])
    assert blocks.hit_ratio(2) == pytest.approx(np.mean(text < 2), abs=0.01)
    for k, share in ratio.items():
        assert blocks.hit_ratio(k) == pytest.approx(share, abs=1e-3)
        assert np.mean(text < k) == pytest.approx(share, abs=0.01)


def test_other_hit_ratios_keep_the_blocks_that_their_weights_allow() -> None:
    """The share that stays is the overlap of the two distributions, which no coupling exceeds."""
    stated = Blocks(_uneven(), 16, {1: 0.7})
    changed, alone = Blocks(_uneven(), 16, {1: 0.65}, stated), Blocks(_uneven(), 16, {1: 0.65})
    draws = [each.draw(np.random.default_rng(2), 60_000) for each in (stated, changed, alone)]
    shares = [a == b for a, b in zip(*draws[:2], strict=True)]
    overlap = np.minimum(stated._weights, changed._weights).sum()
    assert np.mean(shares) == pytest.approx(overlap, abs=0.01)
    assert overlap > 0.8 > np.mean([a == b for a, b in zip(draws[0], draws[2], strict=True)])
    counts = Counter(draws[1])
    bounds = [tuple(each) for each in changed._bounds.tolist()]
    expected = dict.fromkeys(bounds, 0.0)
    for each, weight in zip(bounds, changed._weights, strict=True):
        expected[each] += 60_000 * weight
    found = [(counts[each], share) for each, share in expected.items() if share > 20]
    assert sum((n - share) ** 2 / share for n, share in found) < 1.2 * len(found)


@pytest.mark.parametrize(
    ("ratio", "message"),
    [
        ({9: 0.5}, "k = 9, but the pool has 4 candidates"),
        ({1: 0.999}, "no mixture of the pool's passages reaches"),
        ({1: 0.6, 3: 0.5}, "no mixture"),
    ],
)
def test_a_ratio_out_of_reach_is_refused(ratio: dict[int, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Blocks(_pool([0, 1, 2, 3] * 10), 4, ratio)


# --- answers by depth ----------------------------------------------------------------------------

GUESSED = [[1, 0, 2, 4, 0, 3], [2, 2, 0, 0, 4, 4]]
KNOWN = [0, 1, 0, 2, 4, 3]


def _by_depth() -> Pool:
    flat = [VECTOR, np.log([0.3, 0.3, 0.2, 0.2]), np.log([0.25] * 4)]
    tables = [
        Table(np.tile(vector, (6, 1)), ranks)
        for vector, ranks in zip(flat, [KNOWN, *GUESSED], strict=True)
    ]
    return Pool([Prompt(tables[0], tables[1:])], {1: np.log([[0.25] * 4])})


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_the_targets_token_keeps_its_id_at_every_depth(depth: int) -> None:
    pool = _by_depth()
    ranks = [KNOWN, *GUESSED][min(depth, 2)]
    for position, (token, rank) in enumerate(zip(KNOWN, ranks, strict=True)):
        (row,) = pool.tokens([pool.row(position, depth)], WIDTH).tolist()
        assert len({*row}) == WIDTH, "candidates are different tokens"
        assert (row.index(token) if token in row else WIDTH) == rank


def test_an_answer_depends_on_how_far_back_the_last_verified_token_is() -> None:
    pool = _by_depth()
    oracle = PoolSource(pool, 6, seed=3).open(1, prompt_tokens=2)
    text = [oracle.truth(index) for index in range(5)]

    def ask(*read: int, tokens: tuple[int, ...] = (), parent: int = NO_PARENT) -> list[float]:
        reset = bool(read)
        drafted = oracle.draft(DraftPass(1, read, tokens, (parent,) * len(tokens), reset, WIDTH))
        return [float(value) for value in drafted.log_probs[0]]

    def vector(position: int, depth: int) -> list[float]:
        return [float(value) for value in pool.vectors[pool.row(position, depth)]]

    records = oracle._records  # type: ignore[attr-defined]
    assert ask(0, 0) == vector(records[0], 0)
    assert ask(tokens=(text[0],)) == vector(records[1], 1)
    assert ask(tokens=(text[1],), parent=0) == vector(records[2], 2)
    assert ask(tokens=(text[2],), parent=1) == vector(records[3], 3)
    # Once two tokens are verified, the same place is right below what is known.
    assert ask(text[0], text[1]) == vector(records[2], 0)
    assert ask(tokens=(text[2],)) == vector(records[3], 1)
