"""Sampled continuations of a toy target have exactly its distribution, under every lossless rule.

A vocabulary of 6 tokens and 3 new tokens: all 216 continuations have a known probability. Trees are
drafted, walked and drafted anew until the text is long enough, and 20,000 texts are held against
the known probabilities (chi-square). Wrong and lossy rules must be found out by the same test.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

import numpy as np
import pytest
from scipy import stats

from tests.worlds.examples import THOROUGH
from treepipe.core.verification import (
    Adaptive,
    Distribution,
    Exact,
    MultiCandidate,
    RelaxedBest,
    RelaxedTopP,
    Rule,
    Sampling,
    draw,
    draw_without_replacement,
    target_distribution,
)

VOCABULARY, HORIZON = 6, 3
FEW_TEXTS = 3_000
TEXTS = 20_000 if THOROUGH else FEW_TEXTS
"""What finds a wrong rule out with few texts finds it out with more."""
WARM = Sampling(1.0)
NARROW = Sampling(0.6, 0.9, 5)
CHAIN = (1, 1, 1)

Path: TypeAlias = tuple[int, ...]
Propose: TypeAlias = Callable[[Distribution, int], Sequence[int]]
"""A draft's candidates: so many tokens from a distribution, in the order drafted."""
NewRule: TypeAlias = Callable[[np.random.Generator], Rule]


def _logits(path: Path, salt: int) -> Distribution:
    return np.random.default_rng([salt, len(path), *path]).normal(size=VOCABULARY)


@cache
def target(path: Path, sampling: Sampling) -> Distribution:
    """[6] the target's distribution behind a path; a rule that writes to it raises."""
    p = target_distribution(1.5 * _logits(path, 1), sampling)
    p.flags.writeable = False
    return p


@cache
def draft(path: Path, sampling: Sampling) -> Distribution:
    """[6] the draft's: the target's logits with as much noise on top."""
    q = target_distribution(1.5 * (_logits(path, 1) + _logits(path, 2)), sampling)
    q.flags.writeable = False
    return q


def most_probable(q: Distribution, count: int) -> list[int]:
    order = np.argsort(-q, kind="stable")
    return [int(token) for token in order[:count]]


def draft_tree(
    root: Path, branching: Sequence[int], sampling: Sampling, propose: Propose
) -> dict[Path, Sequence[int]]:
    """Children of every inner node, by its path; leaves have none."""
    tree: dict[Path, Sequence[int]] = {}
    layer = [root]
    for count in branching:
        tree |= {node: propose(draft(node, sampling), count) for node in layer}
        layer = [(*node, token) for node in layer for token in tree[node]]
    return tree


def continuation(
    rule: Rule, branching: Sequence[int], sampling: Sampling, propose: Propose
) -> Path:
    """One text: draft a tree, walk it until a miss or below a leaf, begin again there."""
    text: Path = ()
    while len(text) < HORIZON:
        tree = draft_tree(text, branching[: HORIZON - len(text)], sampling, propose)
        hit = True
        while hit and len(text) < HORIZON:
            children = tree.get(text, ())
            token = rule.next_token(target(text, sampling), children, draft(text, sampling))
            hit = token in children
            text = (*text, token)
    return text


def p_value(counts: Counter[Path], sampling: Sampling) -> float:
    """Chi-square of the texts; those expected fewer than 5 times share one cell."""
    shares: dict[Path, float] = {}
    for text in itertools.product(range(VOCABULARY), repeat=HORIZON):
        steps = [target(text[:i], sampling)[token] for i, token in enumerate(text)]
        shares[text] = float(np.prod(steps))
    if any(not shares[text] for text in counts):
        return 0.0
    total = counts.total()
    common = [text for text, share in shares.items() if share * total >= 5]
    expected = np.array([shares[text] * total for text in common])
    seen = np.array([counts[text] for text in common])
    if (rest := total - expected.sum()) > 1e-6:
        expected, seen = np.append(expected, rest), np.append(seen, total - seen.sum())
    found: float = stats.chisquare(seen, expected * (total / expected.sum())).pvalue
    return found


def measured(
    new_rule: NewRule,
    sampling: Sampling,
    branching: Sequence[int],
    *,
    drawn: bool,
    texts: int,
    seed: int,
) -> float:
    """p-value of ``texts`` continuations, all under one rule."""
    rng, draft_rng = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    rule = new_rule(rng)

    def draw_children(q: Distribution, count: int) -> list[int]:
        return draw_without_replacement(q, count, draft_rng)

    propose = draw_children if drawn else most_probable
    made = (continuation(rule, branching, sampling, propose) for _ in range(texts))
    return p_value(Counter(made), sampling)


def exact(rng: np.random.Generator) -> Rule:
    return Exact(rng, greedy=False)


def strict_adaptive(rng: np.random.Generator) -> Rule:
    return Adaptive(Exact(rng, greedy=False), 0.0)


LOSSLESS = [
    pytest.param(exact, WARM, (3, 2, 2), False, id="exact-322-warm"),
    pytest.param(exact, NARROW, (3, 2, 2), False, id="exact-322-narrow"),
    pytest.param(strict_adaptive, WARM, CHAIN, False, id="adaptive-chain-warm"),
    pytest.param(MultiCandidate, WARM, (2, 2, 1), True, id="multi-221-warm"),
    pytest.param(MultiCandidate, NARROW, (2, 2, 1), True, id="multi-221-narrow"),
    pytest.param(MultiCandidate, WARM, (3, 1), True, id="multi-31-warm"),
    pytest.param(MultiCandidate, NARROW, (3, 1), True, id="multi-31-narrow"),
    pytest.param(MultiCandidate, WARM, CHAIN, True, id="multi-chain-warm"),
    pytest.param(MultiCandidate, NARROW, CHAIN, True, id="multi-chain-narrow"),
]


@pytest.mark.parametrize(("new_rule", "sampling", "branching", "drawn"), LOSSLESS)
def test_lossless_rules_keep_the_targets_distribution(
    new_rule: NewRule, sampling: Sampling, branching: tuple[int, ...], drawn: bool
) -> None:
    assert new_rule(np.random.default_rng(0)).lossless
    assert measured(new_rule, sampling, branching, drawn=drawn, texts=TEXTS, seed=3) > 0.001


# --- the test can fail ---------------------------------------------------------------------------


class FirstChild:
    """Accepts whatever was drafted first."""

    lossless, needs_draft = False, False

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def next_token(self, p: Distribution, children: Sequence[int], q: Distribution | None) -> int:
        return children[0] if children else draw(p, self._rng)


class ForgetsTheTried:
    """Rejection as if children were drawn *with* replacement: a tried child stays in ``q``."""

    lossless, needs_draft = False, True

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def next_token(self, p: Distribution, children: Sequence[int], q: Distribution | None) -> int:
        assert q is not None
        for child in children:
            if self._rng.random() * q[child] < p[child]:
                return child
            p = np.maximum(p - q, 0.0)
            p = p / p.sum()
        return draw(p, self._rng)


class KeepsTheRejected:
    """Rejection that draws from the whole of ``p`` afterwards."""

    lossless, needs_draft = False, True

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def next_token(self, p: Distribution, children: Sequence[int], q: Distribution | None) -> int:
        assert q is not None
        if children and self._rng.random() * q[children[0]] < p[children[0]]:
            return children[0]
        return draw(p, self._rng)


WRONG = [
    pytest.param(FirstChild, CHAIN, True, id="first-child"),
    pytest.param(ForgetsTheTried, (3, 1), True, id="forgets-the-tried"),
    pytest.param(KeepsTheRejected, CHAIN, True, id="keeps-the-rejected"),
    pytest.param(MultiCandidate, (2, 2, 1), False, id="rejection-of-most-probable"),
]


@pytest.mark.parametrize(("new_rule", "branching", "drawn"), WRONG)
def test_wrong_rules_are_found_out(
    new_rule: NewRule, branching: tuple[int, ...], drawn: bool
) -> None:
    assert measured(new_rule, WARM, branching, drawn=drawn, texts=FEW_TEXTS, seed=3) < 0.001


LOSSY = [
    pytest.param(lambda rng: RelaxedBest(Exact(rng, greedy=False)), id="best"),
    pytest.param(lambda rng: RelaxedTopP(Exact(rng, greedy=False), 0.8), id="top-p"),
    pytest.param(lambda rng: Adaptive(Exact(rng, greedy=False), 0.5), id="adaptive"),
]


@pytest.mark.parametrize("new_rule", LOSSY)
def test_lossy_rules_say_so_and_are(new_rule: NewRule) -> None:
    assert not new_rule(np.random.default_rng(0)).lossless
    assert measured(new_rule, WARM, CHAIN, drawn=False, texts=FEW_TEXTS, seed=3) < 0.001
