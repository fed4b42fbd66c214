"""How much of each drafted chain is verified, by what more rows cost (DSpark, section 5).

All chains of a flight compete for its rows. They are admitted in descending order of the chance
that they are accepted, as long as the flight then gives more tokens per time, and the first that
does not ends it. A later one might pay again, but to look for it would let the tokens drafted
behind a token decide whether that token is verified. As they follow from it, some tokens would be
verified more often than others, and sampled text would lose the target's distribution. For the same
reason a chance must not depend on the draw of its own token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from treepipe.core.messages import Flight

RoundMs: TypeAlias = Callable[[int], float]
"""Time of a round, in milliseconds, by the rows that its flight takes through the pipeline."""


def admitted(chances: Sequence[Sequence[float]], others: int, round_ms: RoundMs) -> list[int]:
    """Return how many drafted tokens of each chain are verified.

    Args:
        chances: by chain, the chance that its first token, its first two, ... are accepted; they
            never rise.
        others: rows that the flight has anyway, besides the chains' roots.
        round_ms: never falls.
    """
    found, tokens, rows = [0] * len(chances), float(len(chances)), len(chances) + others
    ranked = sorted(
        (-chance, chain, place)
        for chain, row in enumerate(chances)
        for place, chance in enumerate(row)
    )
    now_ms = round_ms(rows)
    for lost, chain, _ in ranked:
        more_ms = round_ms(rows + 1)
        if more_ms > now_ms and (tokens - lost) * now_ms <= tokens * more_ms:
            break
        tokens, rows, now_ms = tokens - lost, rows + 1, more_ms
        found[chain] += 1
    return found


def shortened(flight: Flight, chances: dict[int, Sequence[float]], round_ms: RoundMs) -> Flight:
    """Return the flight with the chains of the sessions in ``chances`` cut; their roots remain."""
    chains = [s for s in flight.segments if s.session in chances]
    others = sum(len(s.tokens) for s in flight.segments) - sum(len(s.tokens) for s in chains)
    counts = admitted([chances[s.session] for s in chains], others, round_ms)
    cut = {
        s.session: replace(
            s, tokens=s.tokens[: 1 + n], positions=s.positions[: 1 + n], parents=s.parents[: 1 + n]
        )
        for s, n in zip(chains, counts, strict=True)
    }
    return flight.holding(tuple([cut.get(s.session, s) for s in flight.segments]))
