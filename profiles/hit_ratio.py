"""Hit ratios: shares of positions whose target token is among the draft's first k candidates.

A share is one number, or one for each depth of a round: at the first token below the verified ones,
at the second if the first was right, and so on (the last share holds below).
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
"""One share for all depths, or shares by depth."""
MOST_DRAFTED = 10_000
"""Most drafted tokens of a round that is counted."""
CHAIN = 5
"""Length of the chain by whose rounds a pool is summarized, in tokens."""
Ranks: TypeAlias = npt.NDArray[np.int64]
"""Ranks [1 + guessed depths, positions] of the target's tokens among the draft's candidates."""


def at_depth(shares: float | Sequence[float], depth: int) -> float:
    """Share at a depth (0: right below the verified tokens).

    >>> at_depth(0.8, 3), at_depth((0.8, 0.7), 1), at_depth((0.8, 0.7), 5)
    (0.8, 0.7, 0.7)
    """
    return shares if isinstance(shares, float | int) else shares[min(depth, len(shares) - 1)]


def said(shares: float | Sequence[float]) -> str:
    """Write shares as text.

    >>> said(0.81), said((0.81, 0.7))
    ('0.81', '0.81, 0.7 by depth')
    """
    if isinstance(shares, float | int):
        return f"{shares:g}"
    return ", ".join(f"{each:g}" for each in shares) + " by depth"


def depths_of(table: Mapping[int, float | Sequence[float]]) -> int:
    """Number of depths with their own shares in a table by k."""
    lengths = (1 if isinstance(each, float | int) else len(each) for each in table.values())
    return max(lengths, default=1)


def check_rising(table: Mapping[int, float | Sequence[float]], key: str) -> None:
    """Raise ``ValueError`` if a share falls with k at some depth."""
    for depth in range(depths_of(table)):
        shares = [(k, at_depth(table[k], depth)) for k in sorted(table)]
        for (low, less), (high, more) in itertools.pairwise(shares):
            if more < less:
                where = f" (depth {depth + 1})" if depths_of(table) > 1 else ""
                raise ValueError(
                    f"key {key}: the share falls from {less:g} at {low} to {more:g} at "
                    f"{high}{where}; a token among the first {low} is among the first {high}, too"
                )


def conditional(reached: Sequence[float]) -> tuple[float, ...]:
    """Share of each depth's count that reaches the next depth, up to the first zero. Raises
    ``ValueError`` if a count rises.

    >>> conditional([100, 80, 60])
    (0.8, 0.75)
    """
    shares = list[float]()
    for above, here in itertools.pairwise(reached):
        if not 0 <= here <= above:
            raise ValueError(
                f"position {len(shares)} has {here:g} accepted, above it there are {above:g}; "
                f"deeper ones cannot be more"
            )
        if above == 0:
            break
        shares.append(here / above)
    return tuple(shares)


def round_tokens(shares: Iterable[float]) -> float:
    """Mean tokens of a chain's round, including the target's own: 1 + p1 + p1 p2 + ...

    >>> round_tokens((0.5, 0.5)), round_tokens(())
    (1.75, 1)
    """
    return 1 + sum(itertools.accumulate(shares, lambda above, share: above * share))


def even_share(tokens: float, drafted: int) -> float:
    """Solve 1 + p + ... + p^drafted = tokens for p, the share that all depths have alike. Raises
    ``ValueError`` if no share between 0 and 1 does it.

    >>> round(even_share(1.75, 2), 12)
    0.5
    """
    if not 1 <= tokens <= drafted + 1:
        raise ValueError(f"a mean length of {tokens:g} tokens does not go with {drafted} drafted")
    low, high = 0.0, 1.0
    for _ in range(60):  # to the last bit
        middle = (low + high) / 2
        if round_tokens([middle] * drafted) < tokens:
            low = middle
        else:
            high = middle
    return high if tokens > 1 else 0.0


class Rounds(NamedTuple):
    """Rounds that a chain of ``len(asked)`` tokens has in recorded texts, by depth.

    Attributes:
        asked: rounds in which all tokens above that depth were right.
        hits: rounds among these in which the token at that depth was right, too.
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
        """Mean tokens per round with the target's own: 1 + p1 + p1 p2 + ..."""
        return 1 + sum(self.hits) / self.asked[0] if self.asked[0] else 1.0


def chain_rounds(ranks: Ranks, pieces: Iterable[tuple[int, int]], k: int, gamma: int) -> Rounds:
    """Replay recorded positions in rounds of ``gamma`` drafted tokens, a hit among the first ``k``.

    Pieces are (first, stop) of consecutive positions. A round that the end of its piece would cut
    is left out.
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
