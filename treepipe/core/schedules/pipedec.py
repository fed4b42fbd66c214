"""PipeDec: one tree layer per step, groups of devices, and a central scheduler of transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treepipe.core.decoding.layered import (
    LayeredKeys,
    layered_grid,
    layered_scratch_tokens,
    layered_system,
)
from treepipe.core.registry import key
from treepipe.core.system import Block, Load


@dataclass(frozen=True)
class PipeDecKeys(LayeredKeys):
    """Keys of PipeDec."""

    overlapped_pruning: bool = key(False, "stages prune while results travel; false: before")
    central_transfers: bool = key(True, "one transfer per device at a time")
    parallel_prefill: bool = key(
        True, "the draft reads the prompt while the target does; false: afterwards"
    )


def _grid(load: Load) -> Sequence[Block]:
    """Combine trees with groups and the central scheduler, PipeDec's own (section 3)."""
    groups = [size for size in (1, 2) if size <= min(load.stages)]
    return layered_grid({"groups": groups})


SYSTEMS = (
    layered_system(
        name="pipedec",
        year=2025,
        order=8,
        source="PipeDec, section 3",
        summary="one tree layer per step",
        parameters=PipeDecKeys,
        scratch_tokens=layered_scratch_tokens,
        grid=_grid,
        closed_form="pipedec",
    ),
)
