"""SpecInfer's tree under a pipeline, in one batch: a fixed number of children at each depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treepipe.core.decoding.drafted_ahead import DraftedAhead
from treepipe.core.decoding.keys import fixed_tree, fixed_tree_tokens
from treepipe.core.decoding.static_tree import StaticTree
from treepipe.core.registry import key
from treepipe.core.system import Block, Load, Parameters, ScheduleContext, System


@dataclass(frozen=True)
class BranchingKeys(Parameters):
    """Keys of the tree (SpecInfer, section 6.1, for the default), and the time of its draft
    (SpecPipe, section 4.1: asynchronously, its baseline, too)."""

    branching: tuple[int, ...] = key(
        (1, 1, 3, 1, 1, 1, 1, 1), "children per node at each depth", least=1
    )
    draft_ahead: bool = key(False, "draft the next tree meanwhile, below the likeliest path")

    def candidates(self) -> Mapping[str, int]:
        return {"branching": max(self.branching)}

    @property
    def drafts_ahead(self) -> bool:
        return self.draft_ahead


def _make(parameters: BranchingKeys, context: ScheduleContext) -> StaticTree:
    kind = DraftedAhead if parameters.draft_ahead else StaticTree
    return fixed_tree(parameters.branching, parameters.prefill_chunk, context, kind)


def _tokens(parameters: BranchingKeys, stages: int) -> int:
    return fixed_tree_tokens(parameters.branching)


def _scratch(parameters: BranchingKeys, stages: int) -> int:
    """Bound the scratch nodes: a tree, and the path and the guess that it is drafted ahead of."""
    path = len(parameters.branching) if parameters.draft_ahead else 0
    return _tokens(parameters, stages) + path


def _grid(load: Load) -> Sequence[Block]:
    return ({"branching": ((2, 1, 1), (3, 2, 1, 1), (1, 1, 3, 1, 1, 1, 1, 1))},)


SYSTEMS = (
    System(
        name="specinfer",
        year=2023,
        order=1,
        source="SpecInfer, sections 3 and 6.1",
        summary="SpecInfer's tree under PP, one batch",
        parameters=BranchingKeys,
        make=_make,
        tree_tokens=_tokens,
        segment_tokens=_tokens,
        scratch_tokens=_scratch,
        drawn=True,
        grid=_grid,
    ),
)
