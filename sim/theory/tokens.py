"""Tokens of a round if every drafted token is accepted with probability ``beta``.

Acceptances are independent; the cost of a round is in the systems' own files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treepipe.profiles.hit_ratio import at_depth


def accepted(beta: float, depth: int) -> float:
    """Compute E[l]: drafted tokens accepted of a chain of ``depth`` (StarSD, eq. 2-4).

    It is the sum of beta^j for j = 1..depth, in closed form beta (1 - beta^d) / (1 - beta), which
    has no value at beta = 1. The target's own token is not counted.

    >>> accepted(0.5, 3), accepted(1.0, 5), accepted(0.0, 5)
    (0.875, 5.0, 0.0)
    """
    return beta * (1 - beta**depth) / (1 - beta) if beta < 1 else float(depth)


def committed(beta: float, depth: int) -> float:
    """Compute the tokens of a round with the target's own one: (1 - b^(d+1))/(1 - b).

    (Leviathan et al. 2023, eq. 1; DSD, section 3, "k + 1 steps".)

    >>> committed(0.5, 3), committed(1.0, 5), committed(0.0, 5)
    (1.875, 6.0, 1.0)
    """
    return 1 + accepted(beta, depth)


def acceptances(beta: float | Sequence[float], depth: int) -> list[float]:
    """Compute the probability that exactly l = 0..depth tokens of a chain are accepted. ``beta``
    may be by depth, each given that all above was accepted; the last holds below.

    >>> acceptances(0.5, 2)
    [0.5, 0.25, 0.25]
    >>> acceptances((0.5, 0.25), 2)
    [0.5, 0.375, 0.125]
    """
    found, reached = [], 1.0
    for level in range(depth):
        share = at_depth(beta, level)
        found.append(reached * (1 - share))
        reached *= share
    return [*found, reached]


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """One outcome of a decision: its probability, its tokens, and the time to the next decision."""

    probability: float
    tokens: int
    then_ms: float


def decoding_ms(tokens: int, first_ms: float, outcomes: Sequence[DecisionOutcome]) -> float:
    """Compute the expected time (ms) until ``tokens`` are committed.

    A renewal process, stopped: the first decision is ``first_ms`` after the start. There is no wait
    after the last one, and its tokens beyond ``tokens`` are cut off: a request of finite length has
    more rounds than ``tokens`` over the mean, and one wait less. 0 tokens take no time.

    >>> decoding_ms(4, 10.0, [DecisionOutcome(1.0, 2, 7.0)])
    17.0
    >>> decoding_ms(2, 10.0, [DecisionOutcome(0.5, 1, 4.0), DecisionOutcome(0.5, 2, 9.0)])
    12.0
    """
    if not tokens:
        return 0.0
    mean = [0.0] * (tokens + 1)  # of the time behind the next decision, by tokens wanted
    for wanted in range(1, tokens + 1):
        for each in outcomes:
            if each.tokens < wanted:
                mean[wanted] += each.probability * (each.then_ms + mean[wanted - each.tokens])
    return first_ms + mean[tokens]
