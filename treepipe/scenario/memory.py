"""What a plan needs of each machine's memory, and the refusal of what does not fit.

Per role: weights; per request that can be open at once the keys and values of its longest text and
its largest tree (what the executor allocates); buffers of its largest pass. Roles that share a
machine share its memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.profiles.shapes import BYTES, DType, Shape, compute_dtype
from treepipe.scenario.deployment import Plan
from treepipe.scenario.schema import Model, ScheduleSection

MIB, KIB = 2**20, 2**10
FLOAT_BYTES = 4
"""Of a logit and of an entry of an attention mask."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a model, as far as they are known.

    Attributes:
        layer_bytes: weights of a layer.
        kv_bytes: keys and values of a token in a layer.
        row_bytes: one row's hidden state.
        ends_bytes: embedding and output projection, and what is in front of an EAGLE head's layer.
        vocabulary: logits of a row.
    """

    layer_bytes: float
    kv_bytes: float
    row_bytes: float = 0.0
    ends_bytes: float = 0.0
    vocabulary: int = 0

    @classmethod
    def of(cls, model: Model) -> Footprint | None:
        """As a scenario gives it; None if it does not."""
        if model.layer_mib is None or model.kv_kib is None:
            return None
        return cls(model.layer_mib * MIB, model.kv_kib * KIB)

    @classmethod
    def of_shape(cls, shape: Shape, dtype: DType) -> Footprint:
        """Of a model whose sizes are known."""
        # Quantized models keep what is around their layers in the type they compute in.
        rest = shape.parameters - shape.layers * shape.layer_parameters
        return cls(
            shape.layer_bytes(dtype),
            shape.kv_bytes(dtype),
            shape.row_bytes(dtype),
            rest * BYTES[compute_dtype(dtype)],
            shape.vocabulary,
        )


@dataclass(frozen=True, slots=True)
class Need:
    """What one role needs, in MiB."""

    role: str
    weights: float
    layers: int
    caches: float
    requests: int
    entries: int
    buffers: float

    @property
    def total(self) -> float:
        return self.weights + self.caches + self.buffers

    def __str__(self) -> str:
        return (
            f"{self.role} needs {self.weights:.1f} MiB for {self.layers} layers and "
            f"{self.caches:.1f} MiB for the caches of {self.requests} requests of {self.entries} "
            f"entries" + (f" and {self.buffers:.1f} MiB for buffers" if self.buffers else "")
        )


def cache_entries(plan: Plan, tree_tokens: int) -> int:
    """Cache entries per request: the longest prompt and text, and the largest tree."""
    longest = max(len(request.prompt) + request.max_new_tokens for request in plan.requests)
    return longest + tree_tokens


def memory_needs(
    plan: Plan,
    section: ScheduleSection,
    target: Footprint,
    drafts: Mapping[str, tuple[Footprint, int]],
) -> list[Need]:
    """Of every stage, and of the draft servers whose model is known.

    Args:
        drafts: footprint and number of layers of each draft server's model.
    """
    longest = max(len(stages) for stages in plan.pipelines)
    system, parameters = section.system, section.parameters
    rows = system.most_pass_tokens(parameters, longest)
    entries = cache_entries(plan, system.tree_tokens(parameters, longest))
    needs = []
    for pipeline, stages in enumerate(plan.pipelines):
        at_once = plan.most_open(pipeline)
        buffers = rows * (2 * target.row_bytes + FLOAT_BYTES * entries) if target.row_bytes else 0.0
        for stage in stages:
            count = len(stage.layers)
            weights, caches = count * target.layer_bytes, count * target.kv_bytes * entries
            needs.append(_need(stage.name, weights, count, caches, at_once, entries, buffers))
    at_once = sum(plan.most_open(pipeline) for pipeline in range(len(plan.pipelines)))
    at_once = -(-at_once // len(plan.drafts))
    entries = cache_entries(plan, system.most_scratch_tokens(parameters, longest))
    for name, (draft, layers) in drafts.items():
        weights = layers * draft.layer_bytes + draft.ends_bytes + target.ends_bytes
        caches = layers * draft.kv_bytes * entries
        buffers = rows * (FLOAT_BYTES * target.vocabulary + 2 * target.row_bytes)
        needs.append(_need(name, weights, layers, caches, at_once, entries, buffers))
    return needs


def _need(
    role: str,
    weights: float,
    layers: int,
    caches: float,
    requests: int,
    entries: int,
    buffers: float,
) -> Need:
    """Args: all in bytes, ``caches`` those of one request."""
    return Need(
        role, weights / MIB, layers, requests * caches / MIB, requests, entries, buffers / MIB
    )


def check_memory(plan: Plan, needs: list[Need], path: Path) -> None:
    """Raises ``UserError`` with the numbers if the roles of a machine do not fit it."""
    for machine in plan.machines:
        own = [need for need in needs if need.role in machine.roles]
        if machine.memory_mib is None or sum(need.total for need in own) <= machine.memory_mib:
            continue
        what = "its device has" if len(own) == 1 else f"host {machine.name!r} has"
        raise UserError(
            f"{path}: {'; '.join(str(need) for need in own)}, but {what} {machine.memory_mib:g} MiB"
            + _way_out(plan, own, machine.memory_mib)
        )


def _way_out(plan: Plan, own: Sequence[Need], memory_mib: float) -> str:
    """Which keys bound how many requests are open, if fewer of them would fit; else nothing."""
    fixed = sum(need.weights + need.buffers for need in own)
    each = sum(need.caches / need.requests for need in own if need.requests)
    if max(need.requests for need in own) < 2 or not each or fixed + each > memory_mib:
        return ""
    fit = int((memory_mib - fixed) / each)
    keys = "serving.places (per pipeline) or serving.admission"
    if plan.arrivals_ms:
        why = (
            f"requests arrive by themselves (workload.arrivals), so all may be open at once; {keys}"
        )
    else:
        why = f"each of workload.concurrency clients has one open; {keys}"
    return f"; {why} bounds how many, and {fit} would fit"


def unchecked_memory(plan: Plan, needs: list[Need]) -> list[str]:
    """Roles whose device has a memory, but whose need nothing tells."""
    known = {need.role for need in needs}
    limited = [machine for machine in plan.machines if machine.memory_mib is not None]
    lacking = [role for machine in limited for role in machine.roles if role not in known]
    if not lacking:
        return []
    return [f"memory of {', '.join(lacking)} was not checked: nothing tells the model's size"]
