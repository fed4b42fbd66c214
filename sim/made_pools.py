"""Pools made from one number (Bernoulli) or a few (hit-ratio table); used like recorded ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from treepipe.profiles.hit_ratio import at_depth, depths_of
from treepipe.profiles.pool_file import Prompt, Table
from treepipe.sim.pool import Pool

CANDIDATES = 16
"""Candidates per position of a made pool."""
RESOLUTION = 2000
"""Positions of a made pool: shares are exact to half a thousandth."""
OFF_PATH_FLATTENING = 2.0
"""Divisor of a made pool's log probabilities off the path, before normalization."""


@lru_cache(maxsize=8)
def bernoulli_pool(beta: float) -> Pool:
    """Make a pool in which the first candidate, and no other, is right with probability ``beta``.

    The draft's confidence is ``beta`` for the first candidate; the rest is shared evenly.
    """
    shares = np.full(CANDIDATES, (1 - beta) / (CANDIDATES - 1))
    shares[0] = beta
    hits = round(beta * RESOLUTION)
    ranks = [0] * hits + [CANDIDATES] * (RESOLUTION - hits)
    return _made_pool([shares], [ranks])


def hit_ratio_pool(table: Mapping[int, float | Sequence[float]]) -> Pool:
    """Make a pool of shares of positions whose target token is among the first k candidates.

    Between the given k the share grows linearly in log k, outside them it is constant (so that all
    of the first share falls on the first candidate); the draft's confidence in a rank is that
    rank's share. Shares must not fall with k. There are ``CANDIDATES`` candidates, or as many as
    the largest k if that is more.

    Shares by depth are those of a draft whose last verified token is as far back, given that all
    between was right. A position that is hit at some depth is hit at every depth with a larger
    share; positions are independent, so a chain's rounds have exactly these shares.
    """
    pairs = ((k, each if isinstance(each, float | int) else (*each,)) for k, each in table.items())
    return _hit_ratio_pool(tuple(sorted(pairs)))


@lru_cache(maxsize=8)
def _hit_ratio_pool(pairs: tuple[tuple[int, float | tuple[float, ...]], ...]) -> Pool:
    table = dict(pairs)
    ks = sorted(table)
    count = max(CANDIDATES, ks[-1])
    shares, ranks = [], []
    for depth in range(depths_of(table)):
        values = [at_depth(table[k], depth) for k in ks]
        cumulative = np.interp(np.log(np.arange(1, count + 1)), np.log(ks), values)
        shares.append(np.diff(cumulative, prepend=0.0))
        edges = np.round(cumulative * RESOLUTION).astype(int)
        ranks.append(np.searchsorted(edges, np.arange(RESOLUTION), side="right").tolist())
    return _made_pool(shares, ranks)


def _made_pool(shares: Sequence[npt.NDArray[np.float64]], ranks: Sequence[Sequence[int]]) -> Pool:
    """Make a pool from ``shares`` of candidates and ``ranks`` of positions, both by depth. Every
    position is a prompt of its own, so that blocks of any length stay independent."""
    vectors = []
    for each in shares:
        ordered = np.sort(np.maximum(each, 1e-6))[::-1]
        vectors.append(np.log(ordered / max(1.0, ordered.sum()))[None, :])
    flat = vectors[0] / OFF_PATH_FLATTENING
    flat -= np.log(np.exp(flat).sum())
    prompts = []
    for by_depth in zip(*ranks, strict=True):
        known, *guessed = (
            Table(vector, [rank]) for vector, rank in zip(vectors, by_depth, strict=True)
        )
        prompts.append(Prompt(known, guessed))
    return Pool(prompts, {1: flat})
