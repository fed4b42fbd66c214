"""What a deployment needs of each machine's memory, and the refusal of what does not fit.

Per role: its runtime; weights, and the target's ends where they are; per request that can be open
at once the keys and values of its longest text and its largest tree (what the executor allocates);
buffers of its largest pass, where as many requests as ``serving.batch`` says have their most rows.
Roles that share a machine share its memory.

Where requests share what room there is (``serving.cache``), one of them must fit, or as many tokens
as ``serving.cache_tokens`` says; ``cache_room`` is how many do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from treepipe.core.errors import UserError
from treepipe.scenario.deployment import Deployment, Room
from treepipe.scenario.footprint import MIB, Footprint

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
    ends: float = 0.0
    runtime: float = 0.0

    @property
    def total(self) -> float:
        return self.weights + self.ends + self.caches + self.buffers + self.runtime

    def __str__(self) -> str:
        parts = [f"{self.weights:.1f} MiB for {self.layers} layers"]
        if self.ends:
            parts.append(f"{self.ends:.1f} MiB for embedding and output projection")
        caches = f"{self.caches:.1f} MiB for the caches of {self.requests} requests"
        parts.append(f"{caches} of {self.entries} entries")
        if self.buffers:
            parts.append(f"{self.buffers:.1f} MiB for buffers")
        if self.runtime:
            parts.append(f"{self.runtime:.1f} MiB for the runtime")
        return f"{self.role} needs {' and '.join(parts)}"


def cache_entries(deployment: Deployment, tree_tokens: int) -> int:
    """Cache entries per request: the longest prompt and text, and the largest tree."""
    longest = max(len(request.prompt) + request.max_new_tokens for request in deployment.requests)
    return longest + tree_tokens


def memory_needs(deployment: Deployment) -> list[Need]:
    """The needs of every stage, and of the draft servers whose model is known.

    Empty if nothing tells the target's size.
    """
    target = deployment.footprint
    if target is None:
        return []
    pipelines = range(len(deployment.pipelines))
    stages = [need for pipeline in pipelines for need in _stages(deployment, target, pipeline)]
    drafts = [
        _draft(deployment, target, name, own, layers)
        for name, (own, layers) in deployment.draft_footprints.items()
    ]
    runtime = {role: each.runtime_mib for each in deployment.machines for role in each.roles}
    return [replace(need, runtime=runtime.get(need.role, 0.0)) for need in stages + drafts]


def _stages(deployment: Deployment, target: Footprint, pipeline: int) -> Iterator[Need]:
    """Where the pipeline's ends are the target's, the first stage embeds and the last projects."""
    bounds, stages = deployment.bounds, deployment.pipelines[pipeline]
    entries, at_once = cache_entries(deployment, bounds.tree_tokens), deployment.most_open(pipeline)
    batch = max(1, min(deployment.batch, at_once))
    held = _held(deployment, at_once, entries)
    rows = batch * bounds.pass_tokens
    for number, stage in enumerate(stages, start=1):
        count, buffers = len(stage.layers), 0.0
        ends = _stage_ends(deployment, target, pipeline, number)
        if target.row_bytes:
            # The mask of a pass has an entry for every row and every request's cache entry.
            buffers = rows * (2 * target.row_bytes + FLOAT_BYTES * entries * batch)
        if deployment.ends == "pipeline":
            buffers += rows * FLOAT_BYTES * target.vocabulary * (number == len(stages))
        weights = count * target.layer_bytes
        yield _need(stage.name, weights, count, count * target.kv_bytes, held, buffers, ends)


def _draft(
    deployment: Deployment, target: Footprint, name: str, own: Footprint, layers: int
) -> Need:
    """The draft's model, and what of the target's ends is needed here: an EAGLE head always borrows
    embedding and output projection."""
    bounds = deployment.bounds
    entries = cache_entries(deployment, bounds.scratch_tokens)
    at_once = sum(deployment.most_open(pipeline) for pipeline in range(len(deployment.pipelines)))
    at_once = -(-at_once // len(deployment.drafts))
    rows = max(1, min(deployment.batch, at_once)) * bounds.pass_tokens
    ends = _draft_ends(deployment, target, own)
    judged = target if _borrows(deployment) else own
    buffers = rows * (FLOAT_BYTES * judged.vocabulary + 2 * judged.row_bytes)
    weights, held = layers * own.layer_bytes, _held(deployment, at_once, entries)
    return _need(name, weights, layers, layers * own.kv_bytes, held, buffers, ends)


def _stage_ends(deployment: Deployment, target: Footprint, pipeline: int, number: int) -> float:
    if deployment.ends == "draft":
        return 0.0
    return target.stage_ends_bytes(number == 1, number == len(deployment.pipelines[pipeline]))


def _draft_ends(deployment: Deployment, target: Footprint, own: Footprint) -> float:
    return own.ends_bytes + (target.ends_bytes if _borrows(deployment) else 0.0)


def _borrows(deployment: Deployment) -> bool:
    """Whether draft servers hold the target's ends."""
    return deployment.ends == "draft" or deployment.reads_states


def most_weights_mib(deployment: Deployment) -> float | None:
    """The weights of all roles of the machine that holds most of them; None if nothing tells the
    target's size."""
    target = deployment.footprint
    if target is None:
        return None
    held = {
        name: layers * own.layer_bytes + _draft_ends(deployment, target, own)
        for name, (own, layers) in deployment.draft_footprints.items()
    }
    for pipeline, stages in enumerate(deployment.pipelines):
        for number, stage in enumerate(stages, start=1):
            ends = _stage_ends(deployment, target, pipeline, number)
            held[stage.name] = len(stage.layers) * target.layer_bytes + ends
    machines = [deployment.machine(role).roles for role in held]
    return max(sum(held.get(role, 0.0) for role in roles) for roles in machines) / MIB


def _held(deployment: Deployment, at_once: int, entries: int) -> tuple[int, int]:
    """Requests that the caches must have room for, and entries of each."""
    serving = deployment.serving
    if serving.cache is None:
        return at_once, entries
    return 1, entries if serving.cache_tokens is None else serving.cache_tokens


def _need(
    role: str,
    weights: float,
    layers: int,
    entry: float,
    held: tuple[int, int],
    buffers: float,
    ends: float,
) -> Need:
    """Args: all sizes in bytes; ``entry``: of a cache; ``held``: as ``_held`` says."""
    requests, entries = held
    caches = requests * entries * entry / MIB
    sizes = weights / MIB, layers, caches, requests, entries, buffers / MIB, ends / MIB
    return Need(role, *sizes)


def check_memory(deployment: Deployment, needs: Sequence[Need]) -> None:
    """Raises ``UserError`` with the numbers if the roles of a machine do not fit it."""
    limited = [
        (machine, machine.memory_mib, [need for need in needs if need.role in machine.roles])
        for machine in deployment.machines
        if machine.memory_mib is not None
    ]
    for machine, memory_mib, own in limited:
        if sum(need.total for need in own) > memory_mib:
            what = "its device has" if len(own) == 1 else f"host {machine.name!r} has"
            raise UserError(
                f"{deployment.path}: {'; '.join(map(str, own))}, but {what} {memory_mib:g} MiB"
                + _way_out(deployment, min(_fit(own, memory) for _, memory, own in limited))
            )


def _fit(own: Sequence[Need], memory_mib: float) -> float:
    """How many requests the roles of a machine could have open at once; below 1 if none."""
    fixed = sum(need.total - need.caches for need in own)
    each = sum(need.caches / need.requests for need in own if need.requests)
    if not each:
        return inf if fixed <= memory_mib else 0.0
    return (memory_mib - fixed) / each


def most_layers(deployment: Deployment, needs: Sequence[Need], share: float) -> dict[str, int]:
    """The layers that fit a stage beside the other roles of its machine, where that is known."""
    found = {}
    for machine in deployment.machines:
        own = [need for need in needs if need.role in machine.roles]
        if machine.memory_mib is None:
            continue
        for need in own:
            others = sum(other.total for other in own if other is not need)
            fixed = need.buffers + need.ends + need.runtime
            room = share * machine.memory_mib - others - fixed
            found[need.role] = int(room / ((need.weights + need.caches) / need.layers))
    return found


def cache_room(deployment: Deployment, needs: Sequence[Need]) -> Room:
    """Tokens whose keys and values fit beside all else; endless where nothing tells.

    Roles of one machine get room for equally many; a pipeline has that of its least stage.

    Args: ``needs``: of the deployment; its machines hold them.
    """
    given = deployment.serving.cache_tokens
    tokens = dict.fromkeys(deployment.devices, inf if given is None else given)
    for machine in deployment.machines if given is None else ():
        own = [need for need in needs if need.role in machine.roles]
        each = sum(need.caches / need.entries for need in own)
        if machine.memory_mib is not None and each:
            left = machine.memory_mib - sum(need.total - need.caches for need in own)
            tokens.update(dict.fromkeys(machine.roles, left // each))
    return Room(
        tuple(min(tokens[stage.name] for stage in stages) for stages in deployment.pipelines),
        tuple(tokens[draft.name] for draft in deployment.drafts),
    )


def _way_out(deployment: Deployment, fit: float) -> str:
    """Which keys bound how many requests are open, if fewer of them would fit; else nothing."""
    if fit < 1:
        return ""
    keys = "serving.places (per pipeline) or serving.admission"
    if deployment.arrivals_ms:
        why = (
            f"requests arrive by themselves (workload.arrivals), so all may be open at once; {keys}"
        )
    else:
        why = f"each of workload.concurrency clients has one open; {keys}"
    return f"; {why} bounds how many, and {int(fit)} would fit"


def unchecked_memory(deployment: Deployment, needs: Sequence[Need]) -> list[str]:
    """Roles whose device has a memory, but whose need nothing tells."""
    known = {need.role for need in needs}
    limited = [machine for machine in deployment.machines if machine.memory_mib is not None]
    lacking = [role for machine in limited for role in machine.roles if role not in known]
    if not lacking:
        return []
    return [f"memory of {', '.join(lacking)} was not checked: nothing tells the model's size"]
