"""The positions of a pool that make up a simulated text: whole recorded texts, or blocks of them.

A whole text keeps what its tokens have in common: simulated requests then differ as much as real
ones. Blocks of successive positions keep the correlation of neighbours. Texts and blocks are
equally likely, or tilted so that the text reaches given hit ratios: of all distributions over
blocks that do, the one nearest to the even one (least relative entropy; an exponential tilt,
Csiszar 1975). So easy passages come more often, and with them the draft's confidence there.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from treepipe.core.errors import UserError
from treepipe.profiles.hit_ratio import CHAIN, chain_rounds
from treepipe.sim.pool import Pool

Floats = npt.NDArray[np.float64]
_Ratios: TypeAlias = tuple[tuple[int, float], ...]
Bounds = npt.NDArray[np.int64]
"""[blocks, 2]: where a block begins, and where it stops."""
CLOSE = 1e-4
"""Tolerance of a tilted pool's hit ratios."""
FEWEST = 10
"""Minimum number of effective blocks (Kish); with fewer a text would repeat the same few blocks."""
SHORTEST = 16
"""Positions of the shortest block: a few rounds of most systems."""
WHOLE = 16
"""Block length in multiples of the longest text at which nearly all blocks are whole texts."""
FAITHFUL = 0.02
"""Tolerance of tokens per round, relative to the recorded texts'."""
DRAWN = 20_000
"""Number of positions drawn to measure tokens per round: to about half a percent."""
STEEPEST = 20.0
"""Largest tilt: a hit then weighs e^20 as much as a miss; more is out of reach."""
MOST_STEPS = 50
"""Most steps of Newton's method, and halvings of each; mostly it takes about five steps."""


@lru_cache(maxsize=2)
def block_length(pool: Pool) -> int:
    """Choose how many successive positions of this pool are drawn together.

    The least power of two from ``SHORTEST`` on at which drawn texts give chains of ``CHAIN`` tokens
    as many tokens per round as the recorded ones, within ``FAITHFUL``, both where a hit is the
    first candidate and where it is one of the first eight; else the length at which blocks are
    whole texts.
    """
    ranks = pool.ranks_by_depth
    whole = list(itertools.pairwise([*_offsets(pool.lengths), len(pool)]))
    wanted = {k: chain_rounds(ranks, whole, k, CHAIN) for k in (1, min(8, pool.candidates))}
    wanted = {k: rounds for k, rounds in wanted.items() if rounds.asked[0]}
    length = SHORTEST
    while wanted and length < WHOLE * max(pool.lengths):
        count = DRAWN // min(length, max(pool.lengths))
        drawn = Blocks(pool, length).draw(np.random.default_rng(0), count)
        text = np.concatenate([np.arange(first, stop) for first, stop in drawn])
        drawn_ranks = ranks[:, text]
        for k, rounds in wanted.items():
            found = chain_rounds(drawn_ranks, [(0, len(text))], k, CHAIN).tokens
            if abs(found / rounds.tokens - 1) > FAITHFUL:
                break
        else:
            break
        length *= 2
    return length


class Blocks:
    """Random prompts' whole texts, or runs of at most ``length`` successive positions of one.

    A run may begin up to ``length - 1`` before its prompt does, and only the part inside is taken;
    so every position is equally likely without a tilt.
    """

    def __init__(
        self,
        pool: Pool,
        length: int | None,
        hit_ratio: Mapping[int, float] | None = None,
        like: Blocks | None = None,
    ):
        """Choose the blocks of a pool.

        Args:
            length: number of positions; None: whole texts.
            like: the same blocks, tilted to other hit ratios, of which draws from equal generators
                keep as many as their weights allow (a maximal coupling; Lindvall, Lectures on the
                Coupling Method (1992), section I.5). So differences come from the hit ratio alone.

        Raises:
            UserError: no mixture of the pool's blocks has these hit ratios.
        """
        self._pool = pool
        self._bounds, self._prompts = _all_blocks(pool.lengths, length)
        self._weights: Floats | None = None
        self._edges: Floats = np.empty(0)
        if hit_ratio:
            weights = _tilt(pool, self._bounds, hit_ratio)
            self._weights = weights / weights.sum()
            self._edges = np.cumsum(self._weights)
        self._like = like
        if like is not None and self._weights is not None and like._weights is not None:
            surplus = np.maximum(self._weights - like._weights, 0.0)
            self._more: Floats = np.cumsum(surplus)  # of what these blocks have more often

    def resampled(self, rng: np.random.Generator) -> Blocks:
        """Draw as many prompts with repetition.

        A cluster bootstrap (Davison and Hinkley, Bootstrap Methods and their Application (1997),
        section 3.8). Tilted blocks stay as they are, since their hit ratios are given.
        """
        if self.is_tilted:
            return self
        count = len(self._prompts) - 1
        return self.of_prompts(rng.integers(count, size=count).tolist())

    def of_prompts(self, numbers: Sequence[int]) -> Blocks:
        """Select these prompts, each as often as it is named."""
        other = copy(self)
        firsts, stops = self._prompts[:-1], self._prompts[1:]
        other._bounds = np.concatenate([self._bounds[firsts[n] : stops[n]] for n in numbers])
        return other

    @property
    def is_tilted(self) -> bool:
        return self._weights is not None

    def draw(self, rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
        bounds, of = self._bounds, len(self._bounds)
        tilted = self.is_tilted
        chosen = self._chosen(rng.random(count)) if tilted else rng.integers(of, size=count)
        return [(first, stop) for first, stop in bounds[chosen].tolist()]

    def _chosen(self, at: Floats) -> npt.NDArray[np.signedinteger[Any]]:
        """Return the tilted blocks at uniform numbers, as far as possible those of ``like``."""
        if (like := self._like) is None or self._weights is None or like._weights is None:
            return _place_of(self._edges, at)
        chosen = like._chosen(at)
        old = like._weights[chosen]
        stays = np.minimum(1.0, self._weights[chosen] / old)
        within = (at - like._edges[chosen]) / old + 1  # uniform, whichever block it is
        gone = np.flatnonzero(within >= stays)
        again = (within[gone] - stays[gone]) / (1 - stays[gone]) * self._more[-1]
        chosen[gone] = _place_of(self._more, again)
        return chosen

    def hit_ratio(self, top_k: int) -> float:
        """Return the share of positions whose target token is among the first ``top_k``."""
        if self._weights is None:
            return self._pool.hit_ratio(top_k)
        firsts, stops = self._bounds.T
        hits = _hits(self._pool, top_k)
        return float(
            self._weights @ (hits[stops] - hits[firsts]) / (self._weights @ (stops - firsts))
        )


def _place_of(edges: Floats, at: Floats) -> npt.NDArray[np.signedinteger[Any]]:
    """Return the intervals, by their upper edges, in which numbers lie."""
    return np.minimum(edges.searchsorted(at, side="right"), len(edges) - 1)


def blocks_of(
    pool: Pool,
    length: int | None,
    hit_ratio: Mapping[int, float] | None = None,
    stated: Mapping[int, float] | None = None,
) -> Blocks:
    """Return cached blocks, shared by the plans of a search; drawing does not change them.

    Args: ``stated``: the hit ratios that ``hit_ratio`` is a change of: they share their draws.
    """
    ratios = (tuple(sorted((each or {}).items())) for each in (hit_ratio, stated))
    return _remembered(pool, length, *ratios)


@lru_cache(maxsize=8)
def _remembered(pool: Pool, length: int | None, hit_ratio: _Ratios, stated: _Ratios) -> Blocks:
    like = _remembered(pool, length, stated, ()) if stated else None
    return Blocks(pool, length, dict(hit_ratio), like)


def _all_blocks(lengths: list[int], length: int | None) -> tuple[Bounds, list[int]]:
    """Return every block of prompts of these lengths, prompt by prompt, and the offset of each
    prompt's blocks (and the end)."""
    sizes, offsets = np.array(lengths), np.array(_offsets(lengths))
    if length is None:
        return np.stack((offsets, offsets + sizes), axis=1), [*range(len(lengths) + 1)]
    counts = sizes + length - 1
    prompt = np.repeat(np.arange(len(sizes)), counts)
    first = np.arange(len(prompt)) - (np.cumsum(counts) - counts)[prompt] + 1 - length
    inside = np.maximum(first, 0), np.minimum(first + length, sizes[prompt])
    blocks: Bounds = np.stack(inside, axis=1) + offsets[prompt, None]
    return blocks, [0, *np.cumsum(counts).tolist()]


def _hits(pool: Pool, top_k: int) -> npt.NDArray[np.int64]:
    """Count the hits of the first 0, 1, ... positions."""
    found: npt.NDArray[np.int64] = np.insert(np.cumsum(np.array(pool.ranks) < top_k), 0, 0)
    return found


def _offsets(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths[:-1]).tolist()]


def _excess(pool: Pool, bounds: Bounds, hit_ratio: Mapping[int, float]) -> Floats:
    """Return each block's hits above the target for its length: [blocks, hit ratios by k]."""
    firsts, stops = bounds.T
    excess = []
    for k, ratio in sorted(hit_ratio.items()):
        if k > pool.candidates:
            raise UserError(
                f"key acceptance.hit_ratio: k = {k}, but the pool has {pool.candidates} candidates "
                f"per position"
            )
        hits = _hits(pool, k)
        excess.append(hits[stops] - hits[firsts] - ratio * (stops - firsts))
    by_block: Floats = np.array(excess, float).T
    return by_block


def _tilt(pool: Pool, bounds: Bounds, hit_ratio: Mapping[int, float]) -> Floats:
    """Compute the weights of the blocks.

    P(b) ~ exp(sum over k of tilt_k * (hits_k(b) - ratio_k * length(b))), the tilts such that the
    expected excess of hits is 0. That is the minimum of the logarithm of the sum, which is convex:
    Newton's method, whose steps are halved until they descend.
    """
    firsts, stops = bounds.T
    table = _excess(pool, bounds, hit_ratio)

    def weigh(tilts: Floats) -> tuple[float, Floats]:
        """Return the logarithm of the sum, and the blocks' weights."""
        exponents = table @ tilts
        top = exponents.max()
        weights = np.exp(exponents - top)
        return float(top + np.log(weights.sum())), weights / weights.sum()

    tilts = np.zeros(table.shape[1])
    height, weights = weigh(tilts)
    for _ in range(MOST_STEPS):
        gradient = weights @ table
        if np.abs(gradient).max() < CLOSE / 1000:
            break
        curvature = (table.T * weights) @ table - np.outer(gradient, gradient)
        step = -np.linalg.lstsq(curvature, gradient, rcond=None)[0]
        for _ in range(MOST_STEPS):
            nearer = np.clip(tilts + step, -STEEPEST, STEEPEST)
            lower, found = weigh(nearer)
            if lower < height:
                break
            step /= 2
        else:
            break
        tilts, height, weights = nearer, lower, found
    missed = weights @ table / (weights @ (stops - firsts))
    effective = weights.sum() ** 2 / (weights**2).sum()
    if np.abs(missed).max() > CLOSE or effective < FEWEST:
        shares = ", ".join(f"{k} = {pool.hit_ratio(k):.3f}" for k in sorted(hit_ratio))
        raise UserError(
            f"key acceptance.hit_ratio: no mixture of the pool's passages reaches "
            f"{dict(sorted(hit_ratio.items()))}; as recorded it has {shares}"
        )
    return weights
