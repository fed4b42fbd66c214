"""Distributions, seeds and scripted numbers, for the rules that draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


@st.composite
def distributions(draw: st.DrawFn, size: int = 5) -> Distribution:
    """[size] distributions with zeros and ties in them."""
    weights = draw(st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any))
    p: Distribution = np.array(weights, dtype=np.float64)
    p /= p.sum()
    return p
