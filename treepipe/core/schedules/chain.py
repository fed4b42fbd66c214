"""Classical speculative decoding under a pipeline: a chain of ``gamma`` tokens, in one batch."""

from __future__ import annotations

from treepipe.core.decoding.keys import CutChainKeys, chain_grid, fixed_tree, fixed_tree_tokens
from treepipe.core.decoding.tree_schedule import StaticTree
from treepipe.core.system import ScheduleContext, System


def _make(parameters: CutChainKeys, context: ScheduleContext) -> StaticTree:
    chain, cut = (1,) * parameters.gamma, parameters.cut
    return fixed_tree(chain, parameters.prefill_chunk, context, cut=cut)


def _tokens(parameters: CutChainKeys, stages: int) -> int:
    return fixed_tree_tokens((1,) * parameters.gamma)


SYSTEMS = (
    System(
        name="chain",
        year=2023,
        order=3,
        source="Leviathan et al. and Chen et al.",
        summary="classical speculative decoding",
        parameters=CutChainKeys,
        make=_make,
        tree_tokens=_tokens,
        segment_tokens=_tokens,
        drawn=True,
        chains=True,
        grid=chain_grid,
        closed_form="chain",
    ),
)
