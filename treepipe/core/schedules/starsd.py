"""StarSD's session: one draft server for many targets, a tree or chain per round.

(StarSD, section 3.1, has a fixed depth d, and section 5.1 EAGLE-2's dynamic tree as its draft;
choosing the depth on line is what its appendix I leaves open.) The front desk and the draft desk
decide the order of service, for all systems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from treepipe.core.decoding.drafting import Growth
from treepipe.core.decoding.in_flight import Walk
from treepipe.core.decoding.keys import ChainKeys, chain_grid
from treepipe.core.decoding.pace import UNKNOWN, Pace, PaceBook
from treepipe.core.decoding.tree_schedule import StaticTree, TreeParameters
from treepipe.core.protocol import Command, Gauge, Judged
from treepipe.core.registry import key
from treepipe.core.system import Block, Load, ScheduleContext, System


@dataclass(frozen=True)
class StarKeys(ChainKeys):
    """Keys of a round's tree: a chain, or static or dynamic; of fixed depth or chosen on line."""

    branching: tuple[int, ...] | None = key(
        None, "children per node at each depth; default: a chain of gamma", least=1
    )
    tree_size: int | None = key(None, "nodes of a dynamic tree; default: none", least=1)
    tree_depth: int = key(6, "d0, passes behind catch-up", least=0)
    top_k: int = key(10, "k, candidates per node", least=1)
    depth_range: tuple[int, int] | None = key(
        None, "bounds of a depth by acceptance, durations and load; default: fixed depth", least=1
    )

    def check(self) -> None:
        if self.depth_range is not None and self.depth_range[0] > self.depth_range[1]:
            raise ValueError(f"depth_range = {[*self.depth_range]}: low exceeds high")

    def ineffective_keys(self) -> Mapping[str, str]:
        if self.tree_size is None:
            found = dict.fromkeys(("tree_depth", "top_k"), "no tree_size")
            if self.branching or self.depth_range:
                found["gamma"] = "branching" if self.branching else "depth_range"
            return found
        found = {"tree_depth": "depth_range"} if self.depth_range else {}
        return found | dict.fromkeys(("gamma", "branching"), "tree_size")

    def candidates(self) -> Mapping[str, int]:
        if self.tree_size is not None:
            return {"top_k": self.top_k}
        return {"branching": max(self.branching)} if self.branching else {}

    def lengths(self) -> Mapping[str, int]:
        if self.depth_range is not None:
            return {"depth_range": self.depth_range[1]}
        return {} if self.branching or self.tree_size else {"gamma": self.gamma}

    @property
    def drawable(self) -> bool:
        return self.tree_size is None

    @property
    def depth(self) -> int:
        """Number of levels of the deepest tree."""
        if self.depth_range is not None:
            return self.depth_range[1]
        if self.tree_size is not None:
            return self.tree_depth + 1
        return len(self.branching) if self.branching else self.gamma

    def growth(self, depth: int, *, drawn: bool = False) -> Growth:
        """Make the growth of ``depth`` levels: below the last one of ``branching`` in chains."""
        if self.tree_size is not None:
            return Growth.dynamic(self.top_k, depth - 1)
        wide = (self.branching or ())[:depth]
        return Growth(wide + (1,) * (depth - len(wide)), None, drawn)

    def nodes(self, depth: int) -> int:
        """Return the maximum number of nodes below the root of a tree of ``depth`` levels."""
        return self.tree_size or self.growth(depth).nodes


USUAL, USUAL_WEIGHT, LEVEL_WEIGHT = 0.7, 5.0, 10.0
"""Acceptance assumed at first; its weight, and the mean's at one depth, in verified tokens."""


def depth_of(keys: StarKeys, pace: Pace, wanted: int) -> int:
    """Choose the next round's depth; the middle one before any round was timed.

    It is the depth that promises the most tokens per time: the target's own token and the sum over
    levels of the probability that all down to it are accepted (StarSD, eq. 2), for an iteration of
    max(S + Z, N S) (eq. 9 and 10), where S is a turn with its draft passes, Z the time until the
    segment is back, and N the number of open requests. No round drafts more than the tokens
    ``wanted``.
    """
    assert keys.depth_range is not None  # else it is fixed
    low, high = keys.depth_range
    high = max(low, min(high, wanted - 1))
    first_ms, tokens = pace.first_ms, expected_tokens(pace.levels, high)
    if first_ms is None:
        return (low + high) // 2

    def rate(depth: int) -> float:
        service = first_ms + (depth - 1) * pace.pass_ms
        back = pace.back_ms + (keys.nodes(depth) + 1) * pace.back_row_ms
        return tokens[depth] / (max(service + back, pace.targets * service) or 1.0)

    return max(range(low, high + 1), key=rate)


def expected_tokens(levels: Sequence[tuple[float, float]], depth: int) -> list[float]:
    """Return the tokens of rounds of 0..``depth`` levels, by (accepted, tried) per level.

    >>> [round(tokens, 2) for tokens in expected_tokens((), 2)]
    [1.0, 1.7, 2.19]
    """
    hits, tried = sum(each for each, _ in levels), sum(each for _, each in levels)
    usual = (hits + USUAL * USUAL_WEIGHT) / (tried + USUAL_WEIGHT)
    known = [*levels, *[(0.0, 0.0)] * (depth - len(levels))][:depth]
    shares = [(hit + LEVEL_WEIGHT * usual) / (n + LEVEL_WEIGHT) for hit, n in known]
    return [*accumulate(accumulate(shares, mul), initial=1.0)]


class AdaptiveTree(StaticTree):
    """A static tree per round, each as deep as the draft server's measurements suggest."""

    def __init__(self, context: ScheduleContext, keys: StarKeys, deepest: TreeParameters) -> None:
        super().__init__(context.session, keys.prefill_chunk, deepest, 1)
        self._keys, self._drawn = keys, context.drawn

    @property
    def gauge(self) -> type[Gauge]:
        return PaceBook

    def _growth(self) -> Growth:
        depth = depth_of(self._keys, self._seen or UNKNOWN, self._request.wanted)
        return self._keys.growth(depth, drawn=self._drawn)

    def _end_round(self, walk: Walk) -> list[Command]:
        assert self._base is not None  # of the round that ends
        judged = Judged(len(walk.accepted) - 1, self._base.layers)
        return [judged, *super()._end_round(walk)]


def _make(parameters: StarKeys, context: ScheduleContext) -> StaticTree:
    depth = parameters.depth
    size, growth = parameters.nodes(depth), parameters.growth(depth, drawn=context.drawn)
    tree = TreeParameters(size, size + 1, False, growth, context.keeps, context.independent_levels)
    if parameters.depth_range:
        return AdaptiveTree(context, parameters, tree)
    return StaticTree(context.session, parameters.prefill_chunk, tree, 1)


def _tokens(parameters: StarKeys, stages: int) -> int:
    return parameters.nodes(parameters.depth) + 1


def _scratch(parameters: StarKeys, stages: int) -> int:
    """Bound the scratch nodes; a dynamic tree drafts more nodes than it keeps."""
    if parameters.tree_size is None:
        return _tokens(parameters, stages)
    return parameters.top_k * (parameters.depth - 1)


def _grid(load: Load) -> Sequence[Block]:
    return (
        *chain_grid(load),
        {"branching": ((2, 2, 1, 1), (4, 2, 1, 1))},
        {"tree_size": (8, 24), "tree_depth": (3, 5), "top_k": (4,)},
        {"depth_range": ((1, 8),)},
    )


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
        scratch_tokens=_scratch,
        drawn=True,
        target_emits=True,  # appendix E.2: the target decodes, and asks the draft server
        grid=_grid,
        closed_form="star",
    ),
)
