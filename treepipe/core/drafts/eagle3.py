"""An EAGLE-3 head as a draft: it reads three states of the target, and has its own vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treepipe.core.captures import named_boundaries
from treepipe.core.drafter import EAGLE3_HEAD, Drafter, DraftParameters
from treepipe.core.registry import key


@dataclass(frozen=True)
class CaptureKeys(DraftParameters):
    """The key of drafts that read states between the target's layers."""

    capture: str = key(
        "auto",
        "what the head's ids of layers mean: 'boundary' (the state before the layer), 'output' of "
        "the layer, or numbers as '2,16,29', counted in layers below; 'auto': as engines guess",
    )


def captured(keys: CaptureKeys, config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Find the boundaries that a head reads, by its ``config.json``.

    In SpecForge's ``eagle_config`` an id is mostly an output. SGLang takes ids for outputs if the
    first one is 1, as SpecForge's default is; vLLM and speculators, at the top level, never do.
    """
    ids: Any = None
    guess = 0
    for name in ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"):
        ids = config.get(name) if ids is None else ids
    if ids is None:
        ids = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        guess = int(bool(ids) and ids[0] == 1)
    if ids is not None and not (ids and all(isinstance(each, int) for each in ids)):
        raise ValueError(f"head: its ids of layers are {ids!r}, no list of numbers")
    return named_boundaries(keys.capture, ids, guess, layers)


DRAFTS = (
    Drafter(
        name="eagle3",
        order=5,
        summary="an EAGLE-3 head",
        opens="treepipe.executor.models.eagle3:Eagle3Draft.opened",
        parameters=CaptureKeys,
        weights=EAGLE3_HEAD,
        captures=captured,
        unverified_depths=7,
    ),
)
