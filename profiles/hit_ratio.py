"""Hit ratios: shares of positions whose target token is among the draft's first k candidates.

A share is one number, or one for each depth of a round: at the first token that is drafted below
what is verified, at the second if the first was right, and so on (the last share holds below). How
they are counted in recorded texts is here, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Shares: TypeAlias = Share | Annotated[tuple[Share, ...], Field(min_length=1, max_length=64)]
"""The same at every depth, or by depth."""
CHAIN = 5
"""Tokens of the chain whose rounds sum a pool up."""
Ranks: TypeAlias = npt.NDArray[np.int64]
"""[1 + guessed depths, positions]: the target's token's place among the draft's candidates."""


def at_depth(shares: float | Sequence[float], depth: int) -> float:
    """The share at a depth (0: right below what is verified).

    >>> at_depth(0.8, 3), at_depth((0.8, 0.7), 1), at_depth((0.8, 0.7), 5)
    (0.8, 0.7, 0.7)
    """
    return shares if isinstance(shares, float | int) else shares[min(depth, len(shares) - 1)]


def said(shares: float | Sequence[float]) -> str:
    """Give shares in words.

    >>> said(0.81), said((0.81, 0.7))
    ('0.81', '0.81, 0.7 by depth')
    """
    if isinstance(shares, float | int):
        return f"{shares:g}"
    return ", ".join(f"{each:g}" for each in shares) + " by depth"


def depths_of(table: Mapping[int, float | Sequence[float]]) -> int:
    """How many depths a table of shares by k tells apart (1: none)."""
    lengths = (1 if isinstance(each, float | int) else len(each) for each in table.values())
    return max(lengths, default=1)


def check_rising(table: Mapping[int, float | Sequence[float]], key: str) -> None:
    """Raises ``ValueError`` if a share falls with k at some depth."""
    for depth in range(depths_of(table)):
        shares = [(k, at_depth(table[k], depth)) for k in sorted(table)]
        for (low, less), (high, more) in itertools.pairwise(shares):
            if more < less:
                where = f" (depth {depth + 1})" if depths_of(table) > 1 else ""
                raise ValueError(
                    f"key {key}: the share falls from {less:g} at {low} to {more:g} at "
                    f"{high}{where}; a token among the first {low} is among the first {high}, too"
                )


class Rounds(NamedTuple):
    """Rounds that a chain of ``len(asked)`` tokens has in recorded texts, by depth.

    Attributes:
        asked: rounds in which all tokens above that depth were right.
        hits: of these, rounds in which the token there was right, too.
    """

    asked: tuple[int, ...]
    hits: tuple[int, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """P(hit at a depth | hits above it), as far as rounds reach."""
        pairs = zip(self.asked, self.hits, strict=True)
        return tuple(hits / asked for asked, hits in pairs if asked)

    @property
    def tokens(self) -> float:
        """Mean tokens per round, with the target's own behind the accepted ones: 1 + p1 + p1 p2
        + ..."""
        return 1 + sum(self.hits) / self.asked[0] if self.asked[0] else 1.0


def chain_rounds(ranks: Ranks, pieces: Iterable[tuple[int, int]], k: int, gamma: int) -> Rounds:
    """Replay recorded positions in rounds of ``gamma`` drafted tokens, a hit among the first ``k``.

    Only whole rounds are counted: one that the end of a piece would cut is left out.

    Args: ``pieces``: (first, stop) of positions that follow each other.
    """
    hits = (ranks < k).tolist()
    deepest = len(hits) - 1
    asked, found = [0] * gamma, [0] * gamma
    for first, stop in pieces:
        place = first
        while place + gamma < stop:
            depth = 0
            while depth < gamma:
                asked[depth] += 1
                if not hits[min(depth, deepest)][place + depth]:
                    break
                found[depth] += 1
                depth += 1
            place += depth + 1
    return Rounds(tuple(asked), tuple(found))
