"""Memory that a deployment needs on each machine: deployments are fitted to it, or refused.

Each role needs: its runtime; weights, and the target's ends where it holds them; for each request
that can be open at once, keys and values of the longest text and largest tree (as the executor
allocates; of a profile's layers with a window the window's alone, as engines do); buffers of its
largest pass, with the most rows for ``serving.batch`` requests. Roles that share a machine share
its memory.

Where requests share room (``serving.cache``), it must hold one request, or ``serving.cache_tokens``
tokens; ``free_room`` computes how many tokens fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from treepipe.core.cache_room import DRAFT
from treepipe.core.errors import UserError
from treepipe.scenario.deployment import MIB, Deployment, Footprint, Machine, Room
from treepipe.scenario.desks import cache_room

FLOAT_BYTES = 4
"""Bytes of a logit and of an entry of an attention mask."""


@dataclass(frozen=True, slots=True)
class Need:
    """Needs of one role, in MiB."""

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
    """Return the cache entries per request: the longest prompt and text, and the largest tree."""
    lengths = [len(request.prompt) + request.max_new_tokens for request in deployment.requests]
    return max(lengths, default=0) + tree_tokens


def memory_needs(deployment: Deployment) -> list[Need]:
    """Return the needs of every stage, and of the draft servers whose model is known; empty if the
    target's size is unknown."""
    target = deployment.roles.footprint
    if target is None:
        return []
    pipelines = range(len(deployment.roles.pipelines))
    stages = [need for pipeline in pipelines for need in _stages(deployment, target, pipeline)]
    drafts = [
        _draft(deployment, target, name, own, layers)
        for name, (own, layers) in deployment.roles.draft_footprints.items()
    ]
    runtime = {role: each.runtime_mib for each in deployment.roles.machines for role in each.roles}
    return [replace(need, runtime=runtime.get(need.role, 0.0)) for need in stages + drafts]


def _stages(deployment: Deployment, whole: Footprint, pipeline: int) -> Iterator[Need]:
    """Yield the needs of a pipeline's stages, of shared ones those of each device; the first may
    embed and the last project."""
    bounds, stages = deployment.service.bounds, deployment.roles.pipelines[pipeline]
    entries, at_once = cache_entries(deployment, bounds.tree_tokens), deployment.most_open(pipeline)
    batch = max(1, min(deployment.service.pass_requests, at_once))
    held = _held(deployment, at_once, entries)
    rows = batch * bounds.pass_tokens
    shared = deployment.roles.shared_footprints
    for number, stage in enumerate(stages, start=1):
        count, buffers, ends = len(stage.layers), 0.0, 0.0
        target = shared.get(stage.name, whole)
        if target.row_bytes:
            # The mask of a pass has an entry for every row and every request's cache entry.
            states = 1 + max(1, deployment.roles.sent_states(stage.name))
            buffers = rows * (states * target.row_bytes + FLOAT_BYTES * entries * batch)
        if deployment.roles.ends == "pipeline":
            ends = target.stage_ends_bytes(number == 1, number == len(stages))
            buffers += rows * FLOAT_BYTES * target.vocabulary * (number == len(stages))
        yield _need(stage.name, target, count, held, entries, buffers, ends)


def _draft(
    deployment: Deployment, target: Footprint, name: str, own: Footprint, layers: int
) -> Need:
    """Return a draft server's needs: its model, and the target's ends if it uses them (an EAGLE
    head always borrows embedding and output projection)."""
    bounds = deployment.service.bounds
    entries = cache_entries(deployment, bounds.scratch_tokens)
    pipelines = range(len(deployment.roles.pipelines))
    heads = deployment.roles.heads
    at_once = -(-sum(map(deployment.most_open, pipelines)) // len(heads))
    rows = max(1, min(deployment.service.pass_requests, at_once)) * bounds.pass_tokens
    borrows = deployment.roles.ends == "draft" or deployment.roles.reads_states
    borrows = borrows and name in [each.name for each in heads]  # not a draft of a draft
    ends = own.ends_bytes + (target.ends_bytes if borrows else 0.0)
    judged = target if borrows else own
    states = 1 + max(1, len(deployment.roles.captured))
    buffers = rows * (FLOAT_BYTES * judged.vocabulary + states * judged.row_bytes)
    return _need(name, own, layers, _held(deployment, at_once, entries), entries, buffers, ends)


def weights_mib(deployment: Deployment) -> dict[Machine, float]:
    """Return the weights on each machine with a role of known size; empty if the target's size is
    unknown."""
    found: dict[Machine, float] = {}
    for need in memory_needs(deployment):
        machine = deployment.roles.machine(need.role)
        found[machine] = found.get(machine, 0.0) + need.weights + need.ends
    return found


def _held(deployment: Deployment, at_once: int, entries: int) -> tuple[int, int]:
    """Return the number of requests that the caches must hold, and the entries of each."""
    serving = deployment.service
    if serving.cache is None:
        return at_once, entries
    return 1, entries if serving.cache_tokens is None else serving.cache_tokens


def _need(
    role: str,
    model: Footprint,
    layers: int,
    held: tuple[int, int],
    own: int,
    buffers: float,
    ends: float,
) -> Need:
    """Return a role's needs.

    Args: ``held``: requests and entries; ``own``: entries of one request; ``buffers``, ``ends``:
    bytes.
    """
    requests, entries = held
    caches = requests * entries * layers * model.entry_bytes(own) / MIB
    weights = layers * model.layer_bytes / MIB
    return Need(role, weights, layers, caches, requests, entries, buffers / MIB, ends / MIB)


def check_memory(deployment: Deployment, needs: Sequence[Need]) -> None:
    """Raise ``UserError`` with the numbers if the roles of a machine do not fit it."""
    limited = [
        (machine, machine.memory_mib, [n for n in needs if n.role in machine.roles and n.total])
        for machine in deployment.roles.machines
        if machine.memory_mib is not None
    ]
    for machine, memory_mib, own in limited:
        if sum(need.total for need in own) > memory_mib:
            what = "its device has" if len(own) == 1 else f"host {machine.name!r} has"
            raise UserError(
                f"{deployment.path}: {'; '.join(map(str, own))}, but {what} {memory_mib:g} MiB"
                + _way_out(deployment, most_requests(deployment, needs))
            )


def most_requests(deployment: Deployment, needs: Sequence[Need]) -> float:
    """Return how many requests could be open; infinite: no memory or no size is known."""
    return min(
        (
            _fit([need for need in needs if need.role in machine.roles], machine.memory_mib)
            for machine in deployment.roles.machines
            if machine.memory_mib is not None
        ),
        default=inf,
    )


def _fit(own: Sequence[Need], memory_mib: float) -> float:
    """Return how many requests the roles of a machine could have open; below 1: none fits."""
    fixed = sum(need.total - need.caches for need in own)
    each = sum(need.caches / need.requests for need in own if need.requests)
    if not each:
        return inf if fixed <= memory_mib else 0.0
    return (memory_mib - fixed) / each


def most_layers(deployment: Deployment, needs: Sequence[Need], share: float) -> dict[str, int]:
    """Return the layers that fit each stage beside its machine's other roles, if known."""
    found = {}
    for machine in deployment.roles.machines:
        own = [need for need in needs if need.role in machine.roles]
        if machine.memory_mib is None:
            continue
        for need in (each for each in own if each.layers):  # prompt lookup has none
            others = sum(other.total for other in own if other is not need)
            fixed = need.buffers + need.ends + need.runtime
            room = share * machine.memory_mib - others - fixed
            found[need.role] = int(room / ((need.weights + need.caches) / need.layers))
    return found


def free_room(deployment: Deployment, needs: Sequence[Need]) -> Room:
    """Return the tokens whose keys and values fit beside all else; infinite where memory is
    unknown.

    Roles of one machine get room for equal numbers of tokens; a pipeline has that of its smallest
    stage.

    Args: ``needs``: needs of the deployment, which its machines hold.
    """
    given = deployment.service.cache_tokens
    tokens = dict.fromkeys(deployment.roles.devices, inf if given is None else given)
    for machine in deployment.roles.machines if given is None else ():
        own = [need for need in needs if need.role in machine.roles]
        each = sum(need.caches / need.entries for need in own)
        if machine.memory_mib is not None and each:
            left = machine.memory_mib - sum(need.total - need.caches for need in own)
            tokens.update(dict.fromkeys(machine.roles, left // each))
    return Room(
        tuple(min(tokens[stage.name] for stage in stages) for stages in deployment.roles.pipelines),
        tuple(tokens[draft.name] for draft in deployment.roles.drafts),
    )


def _way_out(deployment: Deployment, fit: float) -> str:
    """Return which keys bound the open requests, if fewer of them would fit; else an empty text."""
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
    """Return a warning of the roles whose device states its memory but whose needs are unknown."""
    known = {need.role for need in needs}
    limited = [machine for machine in deployment.roles.machines if machine.memory_mib is not None]
    lacking = [role for machine in limited for role in machine.roles if role not in known]
    if not lacking:
        return []
    return [f"memory of {', '.join(lacking)} was not checked: nothing tells the model's size"]


def fitted(runs: Sequence[Deployment]) -> list[Deployment]:
    """Return the deployments of a scenario's runs, which differ in requests and seed alone, fitted
    to the machines' memory: with a number of requests in a pass in place of "auto", and with the
    room for keys and values where requests share it, each the least over the runs.

    They gain warnings of that number, of that room, and of roles with unknown needs. Raises
    ``UserError``: the roles do not fit, or the room is unknown or too small for a single request.
    """
    runs = _with_batch(runs)
    needs = [memory_needs(each) for each in runs]
    for each, own in zip(runs, needs, strict=True):
        check_memory(each, own)
    runs = _with_cache_room(runs, needs)
    return [
        each.warned(*unchecked_memory(each, own)) for each, own in zip(runs, needs, strict=True)
    ]


def _with_batch(runs: Sequence[Deployment]) -> Sequence[Deployment]:
    """Put a number in place of "auto".

    Every stage gets its share of all open requests of its pipeline, so that none is idle (a
    micro-batch per stage; GPipe, section 2.2), and fewer where memory cannot hold the buffers of
    such a pass. Among the remaining numbers, the choice is the one with the least time of the
    slowest stage per request.
    """
    if runs[0].service.batch != "auto":
        return runs
    chosen, why = min(map(_choice, runs))
    warning = f'key serving.batch = "auto" is {chosen} (requests in a pass): {why}'
    return [_served(each.warned(warning), batch=chosen) for each in runs]


def _with_cache_room(
    runs: Sequence[Deployment], needs: Sequence[Sequence[Need]]
) -> Sequence[Deployment]:
    """Add the room that requests share."""
    deployment = runs[0]
    if deployment.service.cache is None:
        return runs
    rooms = [free_room(each, own) for each, own in zip(runs, needs, strict=True)]
    room = Room(
        tuple(map(min, zip(*[each.pipelines for each in rooms], strict=True))),
        tuple(map(min, zip(*[each.drafts for each in rooms], strict=True))),
    )
    key = f"{deployment.path}: key serving.cache = {deployment.service.cache!r}"
    if min(*room.pipelines, *room.drafts) == inf:
        raise UserError(
            f"{key} needs a room to share: serving.cache_tokens, or devices with memory_mib and "
            f"models of known size"
        )
    for each in runs:
        _check_alone(_served(each, room=room), key)
    told = [_told(deployment, room)] if deployment.service.cache_tokens is None else []
    return [_served(each.warned(*told), room=room) for each in runs]


def _told(deployment: Deployment, room: Room) -> str:
    pools = {f"pipeline{n}": tokens for n, tokens in enumerate(room.pipelines)}
    pools |= {draft.name: n for draft, n in zip(deployment.roles.drafts, room.drafts, strict=True)}
    found = ", ".join(f"{n:.0f} at {name}" for name, n in pools.items() if n < inf)
    return f"key serving.cache = {deployment.service.cache!r} shares room for tokens: {found}"


def _check_alone(deployment: Deployment, key: str) -> None:
    """Raise ``UserError`` if a request could not end even if it were alone."""
    longest, servers = cache_entries(deployment, 0), len(deployment.roles.heads)
    for number, draft in enumerate(deployment.roles.heads):
        room = cache_room(deployment, number)
        pools = {f"pipeline{n}": n for n in range(len(room.pipelines))} | {draft.name: DRAFT}
        for name, pool in pools.items():
            most = room.held(pool, longest)
            if most > room.of(pool):
                share = f" for each of {servers} draft servers" * (servers > 1 and pool != DRAFT)
                raise UserError(
                    f"{key}: the longest request comes to hold {most} tokens at {name}, the nodes "
                    f"of its tree included, but there is room for {room.of(pool):g}{share}"
                )


def _served(deployment: Deployment, **changes: Any) -> Deployment:
    return replace(deployment, service=replace(deployment.service, **changes))


def _choice(deployment: Deployment) -> tuple[int, str]:
    """Return the batch and what bounds it."""
    fill = [(deployment.most_open(n), len(p)) for n, p in enumerate(deployment.roles.pipelines)]
    most_open, stages = max(fill, key=lambda each: (-(-each[0] // each[1]), each[0]))
    share = -(-most_open // stages)
    if share <= 1:
        return 1, f"{most_open} open at once for {stages} stages"
    more = range(2, share + 1)
    held = 1 + bisect_left(more, True, key=lambda n: not _fits(_served(deployment, batch=n)))
    best = min(range(1, held + 1), key=lambda n: _time_per_request(deployment, n))
    if best < held:
        return best, f"more take the slowest stage no less time each (up to {held} were looked at)"
    if held < share:
        return held, f"buffers for more do not fit beside all else ({share} would fill the stages)"
    return share, f"{most_open} open at once for {stages} stages"


def _fits(deployment: Deployment) -> bool:
    try:
        check_memory(deployment, memory_needs(deployment))
    except UserError:
        return False
    return True


def _time_per_request(deployment: Deployment, requests: int) -> float:
    """Return the slowest stage's milliseconds per request in a pass of ``requests``."""
    rows = requests * max(1, deployment.service.bounds.segment_tokens)
    tables = [stage.times.stage for own in deployment.roles.pipelines for stage in own]
    return max(table(rows) + (requests - 1) * table.request_ms for table in tables) / requests
