"""SpecPipe: one tree layer per step; and SpecPipe-DB, where several requests share the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treepipe.core.decoding.layered import (
    LayeredKeys,
    layered_grid,
    layered_scratch_tokens,
    layered_system,
)
from treepipe.core.registry import key
from treepipe.core.system import Block, Load


@dataclass(frozen=True)
class BatchKeys(LayeredKeys):
    """Keys of SpecPipe-DB (section 3.5)."""

    batch: int = key(4, "B, requests that share the steps", least=1)


def _batch(parameters: BatchKeys) -> int:
    return parameters.batch


def _segment_tokens(parameters: BatchKeys, stages: int) -> int:
    """Count a layer, and the root: where other requests' steps go on, a request's first layer may
    be drafted before the step that feeds its root."""
    return parameters.layer_tokens + (parameters.batch > 1)


def _grid(load: Load) -> Sequence[Block]:
    return layered_grid({"layers_per_step": (1, 2, 3)})


def _batches(load: Load) -> Sequence[Block]:
    return layered_grid({"batch": sorted({max(1, load.requests // 2), load.requests})})


SPECPIPE = layered_system(
    name="specpipe",
    year=2025,
    order=9,
    source="SpecPipe, section 3",
    summary="tree layers step by step",
    parameters=LayeredKeys,
    scratch_tokens=layered_scratch_tokens,
    grid=_grid,
    closed_form="specpipe",
)
SYSTEMS = (
    SPECPIPE,
    replace(
        SPECPIPE,
        name="specpipe_db",
        order=10,
        source="SpecPipe, section 3.5",
        summary="SpecPipe, ragged batches of requests",
        parameters=BatchKeys,
        segment_tokens=_segment_tokens,
        places=_batch,
        prompts="first",  # section 4: as in vLLM, new requests have priority
        grid=_batches,
        closed_form=None,
    ),
)
