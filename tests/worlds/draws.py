"""Distributions, seeds and scripted numbers, for the rules that draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np
from hypothesis import strategies as st

from treepipe.core.verification import Distribution

SEEDS = st.integers(0, 2**32)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Script:
    """Stands in for a generator: gives the numbers that it was handed, one by one."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._numbers: Iterator[float] = iter(numbers)

    def random(self) -> float:
        return next(self._numbers)


def scripted(*numbers: float) -> np.random.Generator:
    return cast("np.random.Generator", Script(numbers))


ALMOST_ONE = 1 - 1e-12
"""A number that rejects wherever rejection is possible."""


def threshold(below: Callable[[float], bool]) -> float:
    """Where a predicate of a number in [0, 1) turns false, by bisection."""
    if below(ALMOST_ONE):
        return 1.0
    low, high = 0.0, 1.0
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


@st.composite
def distributions(draw: st.DrawFn, size: int = 5) -> Distribution:
    """[size] distributions with zeros and ties in them."""
    weights = draw(st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any))
    p: Distribution = np.array(weights, dtype=np.float64)
    p /= p.sum()
    return p
