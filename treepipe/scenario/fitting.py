"""A deployment fitted to its machines' memory, with a number in place of "auto".

Where ``serving.batch`` is "auto", every stage gets its share of all open requests of its pipeline,
so that none is idle (a micro-batch per stage; GPipe, section 2.2). It gets fewer where the devices'
memory cannot hold the buffers of such a pass. Among the remaining numbers, the choice is the one
with the least time of the slowest stage per request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from treepipe.core.cache_room import DRAFT
from treepipe.core.errors import UserError
from treepipe.scenario.deployment import Deployment, RequestSpec, Room
from treepipe.scenario.desks import cache_room
from treepipe.scenario.memory import (
    cache_entries,
    check_memory,
    free_room,
    memory_needs,
    unchecked_memory,
)


def fit_to_memory(deployment: Deployment) -> Deployment:
    """Check that the roles fit their machines with the given requests, and return the fitted
    deployment.

    The deployment gains warnings of roles with unknown needs, of the number chosen for "auto", and
    of the room that requests share. Raises ``UserError`` as ``check_memory`` and
    ``with_cache_room`` do.
    """
    deployment = with_cache_room(
        with_batch(deployment, [deployment.requests]), [deployment.requests]
    )
    needs = memory_needs(deployment)
    check_memory(deployment, needs)
    return deployment.warned(*unchecked_memory(deployment, needs))


def with_batch(deployment: Deployment, asked: Sequence[tuple[RequestSpec, ...]]) -> Deployment:
    """Return the deployment with a number for "auto", and a warning that states it.

    Args:
        asked: requests of each run; the number is the least over the runs.
    """
    if deployment.service.batch != "auto":
        return deployment
    chosen, why = min([_choice(deployment.asked(requests)) for requests in asked])
    warning = f'key serving.batch = "auto" is {chosen} (requests in a pass): {why}'
    return _serving(deployment.warned(warning), batch=chosen)


def with_cache_room(deployment: Deployment, asked: Sequence[tuple[RequestSpec, ...]]) -> Deployment:
    """Return the deployment with its room for keys and values, where requests share it.

    Args:
        asked: requests of each run; the room is the least over the runs.

    Raises ``UserError``: the room is unknown, or too small for a single request.
    """
    if deployment.service.cache is None:
        return deployment
    runs = [deployment.asked(requests) for requests in asked]
    rooms = [] if deployment.service.room == Room() else [deployment.service.room]
    for each in runs:
        needs = memory_needs(each)
        check_memory(each, needs)
        rooms.append(free_room(each, needs))
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
        _check_alone(_serving(each, room=room), key)
    new = deployment.service.room == Room() and deployment.service.cache_tokens is None
    told = (_told(deployment, room),) if new else ()
    return _serving(deployment.warned(*told), room=room)


def _told(deployment: Deployment, room: Room) -> str:
    pools = {f"pipeline{n}": tokens for n, tokens in enumerate(room.pipelines)}
    pools |= {draft.name: n for draft, n in zip(deployment.roles.drafts, room.drafts, strict=True)}
    found = ", ".join(f"{n:.0f} at {name}" for name, n in pools.items() if n < inf)
    return f"key serving.cache = {deployment.service.cache!r} shares room for tokens: {found}"


def _check_alone(deployment: Deployment, key: str) -> None:
    """Raise ``UserError`` if a request could not end even if it were alone."""
    longest, servers = cache_entries(deployment, 0), len(deployment.roles.drafts)
    for number, draft in enumerate(deployment.roles.drafts):
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


def _serving(deployment: Deployment, **changes: Any) -> Deployment:
    return replace(deployment, service=replace(deployment.service, **changes))


def _choice(deployment: Deployment) -> tuple[int, str]:
    """Return the batch and what bounds it."""
    fill = [(deployment.most_open(n), len(p)) for n, p in enumerate(deployment.roles.pipelines)]
    most_open, stages = max(fill, key=lambda each: (-(-each[0] // each[1]), each[0]))
    share = -(-most_open // stages)
    if share <= 1:
        return 1, f"{most_open} open at once for {stages} stages"
    more = range(2, share + 1)
    held = 1 + bisect_left(more, True, key=lambda n: not _fits(_serving(deployment, batch=n)))
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
    stages = [stage for stages in deployment.roles.pipelines for stage in stages]
    return max(stage.times.stage(rows) for stage in stages) / requests
