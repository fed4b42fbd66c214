"""A deployment as it is run: fitted to its machines' memory, with a number for "auto".

Law of this file: where ``serving.batch`` is "auto", every stage has its share of all open requests
of its pipeline under way, so that none is idle (a micro-batch per stage; GPipe, section 2.2); fewer
where the devices' memory does not hold the buffers of so large a pass, and of what is left the
number at which a request's rows take the slowest stage least time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from treepipe.core.cache_room import DRAFT
from treepipe.core.errors import UserError
from treepipe.scenario.deployment import Deployment, RequestSpec, Room
from treepipe.scenario.memory import (
    cache_entries,
    cache_room,
    check_memory,
    memory_needs,
    unchecked_memory,
)


def fitting(deployment: Deployment) -> Deployment:
    """The same, once its roles are known to fit their machines with what is asked of them.

    It warns of roles whose need nothing tells, of the number that was chosen for "auto", and of the
    room that requests share.
    Raises ``UserError`` as ``check_memory`` and ``roomy`` do.
    """
    deployment = roomy(batched(deployment, [deployment.requests]), [deployment.requests])
    needs = memory_needs(deployment)
    check_memory(deployment, needs)
    return replace(
        deployment, warnings=(*deployment.warnings, *unchecked_memory(deployment, needs))
    )


def batched(deployment: Deployment, asked: Sequence[tuple[RequestSpec, ...]]) -> Deployment:
    """The same deployment with a number for "auto", and a warning that tells it.

    Args:
        asked: what each of its runs is asked; the number is the least that one of them gives.
    """
    if deployment.serving.batch != "auto":
        return deployment
    chosen, why = min([_choice(deployment.asked(requests)) for requests in asked])
    warning = f'key serving.batch = "auto" is {chosen} (requests in a pass): {why}'
    return replace(_of(deployment, chosen), warnings=(*deployment.warnings, warning))


def roomy(deployment: Deployment, asked: Sequence[tuple[RequestSpec, ...]]) -> Deployment:
    """The same deployment with its room for keys and values, where requests share it.

    Args:
        asked: what each of its runs is asked; the room is the least that one of them leaves.

    Raises:
        UserError: nothing tells the room, or it is too small for a request that is alone.
    """
    if deployment.serving.cache is None:
        return deployment
    runs = [deployment.asked(requests) for requests in asked]
    rooms = [] if deployment.room == Room() else [deployment.room]
    for each in runs:
        needs = memory_needs(each)
        check_memory(each, needs)
        rooms.append(cache_room(each, needs))
    room = Room(
        tuple(map(min, zip(*[each.pipelines for each in rooms], strict=True))),
        tuple(map(min, zip(*[each.drafts for each in rooms], strict=True))),
    )
    key = f"{deployment.path}: key serving.cache = {deployment.serving.cache!r}"
    if min(*room.pipelines, *room.drafts) == inf:
        raise UserError(
            f"{key} needs a room to share: serving.cache_tokens, or devices with memory_mib and "
            f"models of known size"
        )
    for each in runs:
        _check_alone(replace(each, room=room), key)
    new = deployment.room == Room() and deployment.serving.cache_tokens is None
    told = (_told(deployment, room),) if new else ()
    return replace(deployment, room=room, warnings=(*deployment.warnings, *told))


def _told(deployment: Deployment, room: Room) -> str:
    pools = {f"pipeline{n}": tokens for n, tokens in enumerate(room.pipelines)}
    pools |= {draft.name: n for draft, n in zip(deployment.drafts, room.drafts, strict=True)}
    found = ", ".join(f"{n:.0f} at {name}" for name, n in pools.items() if n < inf)
    return f"key serving.cache = {deployment.serving.cache!r} shares room for tokens: {found}"


def _check_alone(deployment: Deployment, key: str) -> None:
    """Raises ``UserError`` if a request could not end even if it were alone."""
    longest, servers = cache_entries(deployment, 0), len(deployment.drafts)
    for number, draft in enumerate(deployment.drafts):
        room = deployment.cache_room(number)
        pools = {f"pipeline{n}": n for n in range(len(room.pipelines))} | {draft.name: DRAFT}
        for name, pool in pools.items():
            most = room.held(pool, longest)
            if most > room.of(pool):
                share = f" for each of {servers} draft servers" * (servers > 1 and pool != DRAFT)
                raise UserError(
                    f"{key}: the longest request comes to hold {most} tokens at {name}, the nodes "
                    f"of its tree included, but there is room for {room.of(pool):g}{share}"
                )


def _of(deployment: Deployment, batch: int) -> Deployment:
    return replace(deployment, serving=replace(deployment.serving, batch=batch))


def _choice(deployment: Deployment) -> tuple[int, str]:
    """The number, and what bounds it."""
    numbers = range(len(deployment.pipelines))
    share, most_open, stages = max(
        (-(-deployment.most_open(n) // len(deployment.pipelines[n])), deployment.most_open(n), -n)
        for n in numbers
    )
    stages = len(deployment.pipelines[-stages])
    if share <= 1:
        return 1, f"{most_open} open at once for {stages} stages"
    held = bisect_left(range(2, share + 1), True, key=lambda n: not _fits(_of(deployment, n))) + 1
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
    """Milliseconds that the slowest stage takes for each of so many requests' rows in one pass."""
    rows = requests * max(1, deployment.bounds.segment_tokens)
    stages = [stage for stages in deployment.pipelines for stage in stages]
    return max(stage.times.stage(rows) for stage in stages) / requests
