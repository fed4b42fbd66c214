"""A target and drafts of every quality as pure functions of the token path; orders of moves."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

VOCABULARY = 7
Choose = Callable[[int], int]
Logits = Callable[[list[int]], np.ndarray]


@functools.lru_cache(100_000)
def _hashed(salt: int, length: int, tail: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng([salt, length, *tail])
    return np.asarray(rng.normal(scale=2.0, size=VOCABULARY))


def _logits(path: list[int], salt: int) -> np.ndarray:
    return _hashed(salt, len(path), tuple(path[-4:]))


def target(path: list[int]) -> np.ndarray:
    return _logits(path, 1)


def greedy(prompt: list[int], new_tokens: int, ends: frozenset[int] = frozenset()) -> list[int]:
    """Plain greedy decoding of the whole target."""
    return list(_greedy(tuple(prompt), new_tokens, ends))


@functools.lru_cache(10_000)
def _greedy(prompt: tuple[int, ...], new_tokens: int, ends: frozenset[int]) -> list[int]:
    path = list(prompt)
    while len(path) < len(prompt) + new_tokens and (
        len(path) == len(prompt) or path[-1] not in ends
    ):
        path.append(int(np.argmax(target(path))))
    return path[len(prompt) :]


def noisy(noise: float) -> Logits:
    return lambda path: target(path) + noise * _logits(path, 2)


def _sure(path: list[int]) -> np.ndarray:
    """One token has probability 1.0 exactly, so that parents and children tie; often wrong."""
    return np.asarray(900.0 * np.eye(VOCABULARY)[np.argmax(noisy(1.0)(path))])


DRAFTS: dict[str, Logits] = {
    "perfect": target,
    "noisy": noisy(0.7),
    "poor": noisy(4.0),
    "random": lambda path: _logits(path, 3),
    "tied": lambda path: np.zeros(VOCABULARY),
    "sure": _sure,
}


def any_order(seed: int) -> Choose:
    rng = np.random.default_rng(seed)
    return lambda count: int(rng.integers(count))
