"""What a deployment needs of each machine's memory, and the refusal of what does not fit.

Per role: weights; per request that can be open at once the keys and values of its longest text and
its largest tree (what the executor allocates); buffers of its largest pass. Roles that share a
machine share its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treepipe.core.errors import UserError
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.footprint import MIB

FLOAT_BYTES = 4
"""Of a logit and of an entry of an attention mask."""


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


def cache_entries(deployment: Deployment, tree_tokens: int) -> int:
    """Cache entries per request: the longest prompt and text, and the largest tree."""
    longest = max(len(request.prompt) + request.max_new_tokens for request in deployment.requests)
    return longest + tree_tokens


def memory_needs(deployment: Deployment) -> list[Need]:
    """The needs of every stage, and of the draft servers whose model is known.

    Empty if nothing tells the target's size.
    """
    target, bounds = deployment.footprint, deployment.bounds
    if target is None:
        return []
    rows = bounds.pass_tokens
    entries = cache_entries(deployment, bounds.tree_tokens)
    needs = []
    for pipeline, stages in enumerate(deployment.pipelines):
        at_once = deployment.most_open(pipeline)
        buffers = rows * (2 * target.row_bytes + FLOAT_BYTES * entries) if target.row_bytes else 0.0
        for stage in stages:
            count = len(stage.layers)
            weights, caches = count * target.layer_bytes, count * target.kv_bytes * entries
            needs.append(_need(stage.name, weights, count, caches, at_once, entries, buffers))
    at_once = sum(deployment.most_open(pipeline) for pipeline in range(len(deployment.pipelines)))
    at_once = -(-at_once // len(deployment.drafts))
    entries = cache_entries(deployment, bounds.scratch_tokens)
    for name, (draft, layers) in deployment.draft_footprints.items():
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


def fitting(deployment: Deployment) -> Deployment:
    """The same, once its roles are known to fit their machines with what is asked of them.

    It warns of roles whose need nothing tells. Raises ``UserError`` as ``check_memory`` does.
    """
    needs = memory_needs(deployment)
    check_memory(deployment, needs)
    return replace(
        deployment, warnings=(*deployment.warnings, *unchecked_memory(deployment, needs))
    )


def check_memory(deployment: Deployment, needs: Sequence[Need]) -> None:
    """Raises ``UserError`` with the numbers if the roles of a machine do not fit it."""
    for machine in deployment.machines:
        own = [need for need in needs if need.role in machine.roles]
        if machine.memory_mib is None or sum(need.total for need in own) <= machine.memory_mib:
            continue
        what = "its device has" if len(own) == 1 else f"host {machine.name!r} has"
        raise UserError(
            f"{deployment.path}: {'; '.join(map(str, own))}, but {what} {machine.memory_mib:g} MiB"
            + _way_out(deployment, own, machine.memory_mib)
        )


def _way_out(deployment: Deployment, own: Sequence[Need], memory_mib: float) -> str:
    """Which keys bound how many requests are open, if fewer of them would fit; else nothing."""
    fixed = sum(need.weights + need.buffers for need in own)
    each = sum(need.caches / need.requests for need in own if need.requests)
    if max(need.requests for need in own) < 2 or not each or fixed + each > memory_mib:
        return ""
    fit = int((memory_mib - fixed) / each)
    keys = "serving.places (per pipeline) or serving.admission"
    if deployment.arrivals_ms:
        why = (
            f"requests arrive by themselves (workload.arrivals), so all may be open at once; {keys}"
        )
    else:
        why = f"each of workload.concurrency clients has one open; {keys}"
    return f"; {why} bounds how many, and {fit} would fit"


def unchecked_memory(deployment: Deployment, needs: Sequence[Need]) -> list[str]:
    """Roles whose device has a memory, but whose need nothing tells."""
    known = {need.role for need in needs}
    limited = [machine for machine in deployment.machines if machine.memory_mib is not None]
    lacking = [role for machine in limited for role in machine.roles if role not in known]
    if not lacking:
        return []
    return [f"memory of {', '.join(lacking)} was not checked: nothing tells the model's size"]
