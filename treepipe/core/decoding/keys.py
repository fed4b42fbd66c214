"""Parameters that several systems share, for trees of a fixed shape and of EAGLE-2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treepipe.core.decoding.drafting import Growth
from treepipe.core.decoding.tree_schedule import StaticTree, TreeParameters
from treepipe.core.registry import key
from treepipe.core.system import Block, Ends, Load, Parameters, ScheduleContext

TREES = ((20, 4), (48, 5), (80, 6))
"""Nodes and depth that a planner tries; the last one is FlowSpec's (section 5)."""


@dataclass(frozen=True)
class TreeKeys(Parameters):
    """Keys of a round's EAGLE-2 tree (FlowSpec, appendix A.1, for the defaults)."""

    tree_size: int = key(80, "L, nodes below the root", least=1)
    tree_depth: int = key(6, "d0, passes behind catch-up", least=0)
    top_k: int = key(10, "k, candidates per node", least=1)

    def candidates(self) -> Mapping[str, int]:
        return {"top_k": self.top_k}

    @property
    def growth(self) -> Growth:
        return Growth.dynamic(self.top_k, self.tree_depth)


@dataclass(frozen=True)
class SegmentKeys(TreeKeys):
    """Keys of a tree cut into segments (FlowSpec, 3.2), whose draft has the ends (3.1: D0)."""

    ends: Ends = key("draft", "where embedding, projection, verification and decision are")

    segment_tokens: int = key(16, "l_max, tokens of a segment", least=1)
    score_order: bool = key(True, "score-based segmentation; false: in tree order")

    def tree(self, context: ScheduleContext) -> TreeParameters:
        segment, order, independent = (
            self.segment_tokens,
            self.score_order,
            context.independent_levels,
        )
        return TreeParameters(
            self.tree_size, segment, order, self.growth, independent_levels=independent
        )


@dataclass(frozen=True)
class ChainKeys(Parameters):
    """Keys of a chain, as in classical speculative decoding."""

    gamma: int = key(5, "tokens of a chain; StarSD's depth d", least=1)

    def lengths(self) -> Mapping[str, int]:
        return {"gamma": self.gamma}


@dataclass(frozen=True)
class AheadKeys(ChainKeys):
    """Keys of a chain that is drafted while the one before it is verified."""

    @property
    def drafts_ahead(self) -> bool:
        return True


@dataclass(frozen=True)
class CutChainKeys(ChainKeys):
    """Keys of a chain that is verified whole or in part."""

    dynamic_length: bool = key(
        False, "verify as much of each chain as pays at the flight's load (DSpark)"
    )

    @property
    def cut(self) -> bool:
        return self.dynamic_length


def fixed_tree(
    branching: Sequence[int],
    chunk: int,
    context: ScheduleContext,
    kind: type[StaticTree] = StaticTree,
    *,
    cut: bool = False,
) -> StaticTree:
    """Make a schedule whose rounds all have one tree, in one batch.

    Args:
        branching: number of children at each depth.
        cut: as of ``TreeParameters``.
    """
    growth = Growth(tuple(branching), None, context.drawn)
    nodes = growth.nodes
    parameters = TreeParameters(nodes, nodes + 1, False, growth, keeps=context.keeps, cut=cut)
    return kind(context.session, chunk, parameters, 1)


def fixed_tree_tokens(branching: Sequence[int]) -> int:
    """Count the nodes of such a tree, its root included."""
    return Growth(tuple(branching)).nodes + 1


def scratch_of_tree(parameters: TreeKeys, stages: int) -> int:
    return parameters.top_k * parameters.tree_depth


def tree_grid(load: Load) -> Sequence[Block]:
    return tuple({"tree_size": (size,), "tree_depth": (depth,)} for size, depth in TREES)


def chain_grid(load: Load) -> Sequence[Block]:
    return ({"gamma": (1, 2, 3, 4, 6, 8)},)
