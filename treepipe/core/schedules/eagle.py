"""EAGLE-2's tree under a pipeline, in one batch."""

from __future__ import annotations

from treepipe.core.decoding.keys import TreeKeys, scratch_of_tree, tree_grid
from treepipe.core.decoding.tree_schedule import StaticTree, TreeParameters
from treepipe.core.system import ScheduleContext, System


def _make(parameters: TreeKeys, context: ScheduleContext) -> StaticTree:
    size = parameters.tree_size
    tree = TreeParameters(
        size, size + 1, False, parameters.growth, context.keeps, context.independent_levels
    )
    return StaticTree(context.session, parameters.prefill_chunk, tree, 1)


def _tokens(parameters: TreeKeys, stages: int) -> int:
    return parameters.tree_size + 1


SYSTEMS = (
    System(
        name="eagle",
        year=2024,
        order=2,
        source="EAGLE-2, section 4",
        summary="EAGLE-2's tree under PP, one batch",
        parameters=TreeKeys,
        make=_make,
        tree_tokens=_tokens,
        segment_tokens=_tokens,
        scratch_tokens=scratch_of_tree,
        grid=tree_grid,
    ),
)
