"""Drawn children, and rejection over them: by hand, and its whole law measured from outside."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.draws import (
    ALMOST_ONE,
    SEEDS,
    distributions,
    generator,
    scripted,
    threshold,
)
from tests.worlds.examples import examples
from treepipe.core.verification import Distribution, MultiCandidate, draw_without_replacement


@given(distributions(), st.integers(0, 7), SEEDS)
def test_draws_without_replacement_differ_and_end_with_the_support(
    q: Distribution, count: int, seed: int
) -> None:
    before = q.copy()
    drawn = draw_without_replacement(q, count, generator(seed))
    assert len(drawn) == len(set(drawn)) == min(count, np.count_nonzero(q))
    assert all(q[token] > 0 for token in drawn)
    assert np.array_equal(q, before)


def test_orders_drawn_are_as_likely_as_they_should_be() -> None:
    q, rng, times = np.array([0.5, 0.3, 0.2]), generator(1), 20_000
    counts = Counter(tuple(draw_without_replacement(q, 2, rng)) for _ in range(times))
    for first, second in itertools.permutations(range(3), 2):
        expected = q[first] * q[second] / (1 - q[first])
        # Four standard errors of 20,000 draws are at most 0.014.
        assert counts[first, second] / times == pytest.approx(expected, abs=0.014)


def outcome_law(p: Distribution, children: Sequence[int], q: Distribution) -> Distribution:
    """What a rejection rule gives with which probability, measured from outside.

    A number just below 1 rejects wherever rejection is possible, so the threshold of each child's
    own number is its probability of acceptance; the last number draws from what is left.
    """
    found, left = np.zeros(len(p)), 1.0
    for index, child in enumerate(children):

        def accepts(u: float, index: int = index, child: int = child) -> bool:
            numbers = [ALMOST_ONE] * index + [u] + [ALMOST_ONE] * len(p)
            return MultiCandidate(scripted(*numbers)).next_token(p, children, q) == child

        share = threshold(accepts)
        found[child] += left * share
        left *= 1 - share
        if share == 1:
            return found
    numbers = [ALMOST_ONE] * len(children)

    def up_to(token: int) -> float:
        return threshold(
            lambda u: MultiCandidate(scripted(*numbers, u)).next_token(p, children, q) <= token
        )

    edges = [0.0, *map(up_to, range(len(p)))]
    return found + left * np.diff(edges)


@examples(20)
@given(distributions(4), distributions(4), st.integers(1, 3))
def test_rejection_gives_exactly_the_targets_distribution(
    p: Distribution, q: Distribution, count: int
) -> None:
    """Over all draws of children, each as likely as it is: to 1e-8, without chance."""
    count = min(count, int(np.count_nonzero(q)))
    found = np.zeros(len(p))
    for children in itertools.permutations(np.flatnonzero(q).tolist(), count):
        shares, left = q[list(children)], 1 - np.cumsum([0.0, *q[list(children)]])
        found += np.prod(shares / left[:-1]) * outcome_law(p, children, q)
    assert found == pytest.approx(p, abs=1e-8)


def test_rejection_by_hand() -> None:
    """What is left of p after token 0 was rejected is all on token 2."""
    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2])

    def token(*numbers: float) -> int:
        return MultiCandidate(scripted(*numbers)).next_token(p, (0, 1), q)

    assert token(0.39) == 0  # 0.2 / 0.5
    assert token(0.41, 0.0, 0.0) == 2
    for liked in (1, 2):  # by the target as much as by the draft, or more
        assert MultiCandidate(scripted(0.999)).next_token(p, (liked,), q) == liked


@given(st.integers(0, 3), distributions(4), SEEDS)
def test_rejection_at_temperature_0_is_greedy(best: int, q: Distribution, seed: int) -> None:
    rng = generator(seed)
    children = draw_without_replacement(q, 3, rng)
    assert MultiCandidate(rng).next_token(np.eye(4)[best], children, q) == best


@given(distributions(4), SEEDS)
def test_rejection_accepts_the_targets_own_draws(p: Distribution, seed: int) -> None:
    rng = generator(seed)
    children = draw_without_replacement(p, 2, rng)
    assert MultiCandidate(rng).next_token(p, children, p) == children[0]


def test_a_child_that_cannot_have_been_drawn_is_not_judged() -> None:
    p, q = np.array([0.5, 0.45, 0.05]), np.array([0.6, 0.4, 0.0])
    assert MultiCandidate(scripted(0.4)).next_token(p, (2,), q) == 0
    best = np.array([0.0, 0.0, 1.0])
    assert MultiCandidate(scripted(0.5)).next_token(best, (0,), best) == 2


def test_rejection_by_a_rounding_leaves_the_child() -> None:
    p = np.array([0.5 - 1e-16, 0.5])
    assert MultiCandidate(scripted(1 - 2**-53)).next_token(p, (0,), np.array([0.5, 0.5])) == 0
