"""What a plan needs of each stage's memory, and the refusal of what does not fit.

Weights, and per request that can be open at once the keys and values of its longest text and its
largest tree: what the executor's stages allocate.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treepipe.errors import UserError
from treepipe.plan import Plan
from treepipe.scenario import Model

MIB, KIB = 2**20, 2**10


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of the target: weights of a layer, keys and values of a token in a layer."""

    layer_bytes: float
    kv_bytes: float

    @classmethod
    def of(cls, model: Model) -> Footprint | None:
        """As a scenario gives it; None if it does not."""
        if model.layer_mib is None or model.kv_kib is None:
            return None
        return cls(model.layer_mib * MIB, model.kv_kib * KIB)


def cache_entries(plan: Plan, tree_tokens: int) -> int:
    """Cache entries per request: the longest prompt and text, and the largest tree."""
    longest = max(len(request.prompt) + request.max_new_tokens for request in plan.requests)
    return longest + tree_tokens


def check_memory(plan: Plan, footprint: Footprint, tree_tokens: int, path: Path) -> None:
    """Raises ``UserError`` with the numbers if a stage does not fit its device."""
    entries = cache_entries(plan, tree_tokens)
    for pipeline, stages in enumerate(plan.pipelines):
        at_once = plan.most_open(pipeline)
        for stage in stages:
            memory_mib = plan.machine(stage.name).memory_mib
            if memory_mib is None:
                continue
            weights = len(stage.layers) * footprint.layer_bytes / MIB
            caches = at_once * entries * len(stage.layers) * footprint.kv_bytes / MIB
            if weights + caches > memory_mib:
                raise UserError(
                    f"{path}: {stage.name} needs {weights:.1f} MiB for {len(stage.layers)} layers "
                    f"and {caches:.1f} MiB for the caches of {at_once} requests of {entries} "
                    f"entries, but its device has {memory_mib:g} MiB"
                )
