"""PipeDec: one tree layer per step, groups of devices, transfers in a central scheduler's hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treepipe.core.decoding.frontier import Frontier
from treepipe.core.decoding.layered import (
    LayeredKeys,
    layered_grid,
    layered_scratch_tokens,
    layered_segment_tokens,
    layered_tree_tokens,
    make_layered,
    one_request,
)
from treepipe.core.decoding.slipped_frontier import SlippedFrontier
from treepipe.core.registry import key
from treepipe.core.system import Block, Load, System


@dataclass(frozen=True)
class PipeDecKeys(LayeredKeys):
    """PipeDec's own keys, and how it differs where it is a baseline of FlowSpec's public code."""

    overlapped_pruning: bool = key(
        False, "results leave at once, stages prune meanwhile; false: a step prunes, then transfers"
    )
    central_transfers: bool = key(True, "one transfer per device at a time")
    parallel_prefill: bool = key(
        True, "the draft reads the prompt in chunks while the target does; false: behind it"
    )
    index_slip: bool = key(
        False, "the draft's rows slip by one from a round's second commit on (FlowSpec's code)"
    )

    def overruled(self) -> Mapping[str, str]:
        return {"index_slip": "draft_reuse"} if self.draft_reuse else {}

    def frontier(self) -> Frontier:
        return SlippedFrontier() if self.index_slip and not self.draft_reuse else Frontier()


def _scratch_tokens(parameters: PipeDecKeys, stages: int) -> int:
    """Twice as many with the slip: nodes may be read behind paths that are not in the tree."""
    usual = layered_scratch_tokens(parameters, stages)
    slipped = parameters.index_slip and not parameters.draft_reuse
    return usual * (2 if slipped else 1)


def _grid(load: Load) -> Sequence[Block]:
    """Groups and the central scheduler are PipeDec's own (its section 3)."""
    groups = [size for size in (1, 2) if size <= min(load.stages)]
    return layered_grid({"groups": groups})


SYSTEMS = (
    System(
        name="pipedec",
        year=2025,
        order=8,
        source="PipeDec, section 3",
        summary="one tree layer per step",
        parameters=PipeDecKeys,
        make=make_layered,
        tree_tokens=layered_tree_tokens,
        segment_tokens=layered_segment_tokens,
        scratch_tokens=_scratch_tokens,
        in_lock_step=True,
        places=one_request,
        grid=_grid,
        closed_form="pipedec",
    ),
)
