"""PipeDec: one tree layer per step, groups of devices, transfers in a central scheduler's hand."""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.core.decoding.layered import (
    LayeredKeys,
    layered_grid,
    layered_scratch_tokens,
    layered_segment_tokens,
    layered_tree_tokens,
    make_layered,
    one_request,
)
from treepipe.core.system import Block, Load, System


def _grid(load: Load) -> Sequence[Block]:
    """Groups and the central scheduler are PipeDec's own (its section 3)."""
    groups = [size for size in (1, 2) if all(stages % size == 0 for stages in load.stages)]
    return layered_grid({"group_size": groups, "central_transfers": (True,)})


SYSTEMS = (
    System(
        name="pipedec",
        year=2025,
        order=8,
        source="PipeDec, section 3",
        summary="one tree layer per step",
        parameters=LayeredKeys,
        make=make_layered,
        tree_tokens=layered_tree_tokens,
        segment_tokens=layered_segment_tokens,
        scratch_tokens=layered_scratch_tokens,
        in_lock_step=True,
        places=one_request,
        grid=_grid,
        closed_form="pipedec",
    ),
)
