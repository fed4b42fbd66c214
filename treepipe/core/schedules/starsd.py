"""StarSD's session: one draft server for many targets, a static tree or chain per round.

(StarSD, section 4, has a fixed depth; choosing it on line is what its section on limitations
leaves open.) Who is served when is decided by the front desk and the draft desk, for all systems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treepipe.core.decoding.drafting import Growth
from treepipe.core.decoding.keys import ChainKeys, chain_grid, fixed_tree, fixed_tree_tokens
from treepipe.core.decoding.static_tree import StaticTree
from treepipe.core.decoding.tree_schedule import TreeParameters
from treepipe.core.system import Block, Load, Seat, System, key


@dataclass(frozen=True)
class StarKeys(ChainKeys):
    """The tree of a round: a chain, one of a fixed shape, or a chain of a depth chosen on line."""

    branching: tuple[int, ...] | None = key(
        None, "children per node at each depth; default: a chain of gamma", least=1
    )
    adaptive_depth: bool = key(False, "depth by acceptance and queue")
    depth_range: tuple[int, int] = key((1, 8), "bounds of the adaptive depth", least=1)

    def check(self) -> None:
        low, high = self.depth_range
        if low > high:
            raise ValueError(f"depth_range = [{low}, {high}]: low exceeds high")

    def overruled(self) -> Mapping[str, str]:
        if self.adaptive_depth:
            return dict.fromkeys(("gamma", "branching"), "adaptive_depth = true")
        found = {"depth_range": "adaptive_depth = false"}
        return found | {"gamma": "branching"} if self.branching else found

    def candidates(self) -> Mapping[str, int]:
        if self.adaptive_depth or not self.branching:
            return {}
        return {"branching": max(self.branching)}

    def lengths(self) -> Mapping[str, int]:
        if self.adaptive_depth:
            return {"depth_range": self.depth_range[1]}
        return {} if self.branching else {"gamma": self.gamma}

    @property
    def deepest(self) -> tuple[int, ...]:
        """Children per depth of the largest tree."""
        if self.adaptive_depth:
            return (1,) * self.depth_range[1]
        return self.branching or (1,) * self.gamma


class AdaptiveDepth:
    """Draft depth chosen for each round from what was accepted and how many wait.

    The depth d in ``low``..``high`` that promises the most tokens per time: E[l](d) = beta
    (1 - beta^d) / (1 - beta) + 1 tokens (StarSD, eq. 3, and the target's own token) for the d
    draft passes of this session, as many for each session that waits for the draft meanwhile, and
    one verification of ``verify_passes`` draft passes' length. beta is the share of drafted tokens
    that were accepted, averaged exponentially.
    """

    def __init__(
        self,
        low: int,
        high: int,
        verify_passes: float,
        smoothing: float = 0.1,
        *,
        drawn: bool = False,
    ) -> None:
        self._low, self._high, self._verify = low, high, verify_passes
        self._smoothing, self._drawn = smoothing, drawn
        self._beta = 0.7

    def observe(self, accepted: int, depth: int) -> None:
        """A round of ``depth`` drafted levels had ``accepted`` of them accepted."""
        tried = min(accepted + 1, depth)  # the first rejection ends the trials
        share = accepted / tried if tried else 0.0
        self._beta += self._smoothing * (min(share, 1.0) - self._beta)

    def growth(self, waiting: int) -> Growth:
        """A chain of the next round's depth."""
        return Growth((1,) * self.depth(waiting), None, self._drawn)

    def depth(self, waiting: int) -> int:
        """The depth of the next round, while so many turns wait for the draft."""
        beta, sharing = min(self._beta, 0.999), 1 + waiting

        def rate(d: int) -> float:
            tokens = 1 + beta * (1 - beta**d) / (1 - beta)
            return tokens / (d * sharing + self._verify)

        return max(range(self._low, self._high + 1), key=rate)


def _make(parameters: StarKeys, seat: Seat) -> StaticTree:
    chunk = parameters.prefill_chunk
    if not parameters.adaptive_depth:
        return fixed_tree(parameters.deepest, chunk, seat)
    low, high = parameters.depth_range
    adaptive = AdaptiveDepth(low, high, float(seat.stages), drawn=seat.drawn)
    tree = TreeParameters(high, high + 1, False, adaptive.growth, adaptive.observe)
    return StaticTree(seat.session, chunk, tree, 1)


def _tokens(parameters: StarKeys, stages: int) -> int:
    return fixed_tree_tokens(parameters.deepest)


def _grid(load: Load) -> Sequence[Block]:
    return (*chain_grid(load), {"branching": ((2, 2, 1, 1), (4, 2, 1, 1))})


SYSTEMS = (
    System(
        name="starsd",
        year=2026,
        order=11,
        source="StarSD, section 4",
        summary="one draft for many targets",
        parameters=StarKeys,
        make=_make,
        tree_tokens=_tokens,
        segment_tokens=_tokens,
        drawn=True,
        grid=_grid,
        closed_form="star",
    ),
)
