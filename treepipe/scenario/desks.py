"""The desks of a deployment's roles: the core's rules with the deployment's numbers."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from math import inf, log

from treepipe.core.barrier import group_sizes
from treepipe.core.cache_room import CacheBook, CacheRoom
from treepipe.core.dock import Dock
from treepipe.core.draft_desk import DraftDesk
from treepipe.core.front_desk import ArrivalQueue, FrontDesk
from treepipe.core.levels import LevelDesk
from treepipe.core.stage_desk import StageDesk
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.passage import Passage


def front_desk(deployment: Deployment) -> FrontDesk:
    service, roles = deployment.service, deployment.roles
    turns = defaultdict[int, list[tuple[int, float]]](list)
    for place, request in enumerate(deployment.requests):
        if request.after is not None and request.arrival_ms is not None:
            turns[request.after].append((place, request.delay_ms))
    return FrontDesk(
        [len(request.prompt) for request in deployment.requests],
        service.clients,
        len(roles.heads),
        len(roles.pipelines),
        service.limit,
        service.admission,
        deployment.arrivals_ms,
        turns,
    )


def draft_desk(deployment: Deployment, draft: int) -> DraftDesk:
    service, roles = deployment.service, deployment.roles
    least = service.least_probabilities[draft] if service.least_probabilities else 0.0
    return DraftDesk(
        draft,
        [len(group_sizes(service.groups, len(stages))) for stages in roles.pipelines],
        ArrivalQueue(service.policy, service.levels),
        CacheBook(cache_room(deployment, draft)),
        Dock(
            service.pass_requests,
            [_share(most, draft, len(roles.heads)) for most in service.flights],
            [partial(round_ms, deployment, draft, n) for n in range(len(roles.pipelines))]
            if service.cut
            else (),
        ),
        leads=len(roles.heads) < len(roles.drafts),
        warm_up_ms=service.warm_up_ms,
        least_log_prob=log(least) if least else -inf,
    )


def _share(flights: int | None, draft: int, servers: int) -> int | None:
    """Return a draft server's part of the flights that a pipeline may hold, at least one."""
    if flights is None:
        return None
    return max(1, flights // servers + (draft < flights % servers))


def round_ms(deployment: Deployment, draft: int, pipeline: int, rows: int) -> float:
    """Return the time of a round that takes ``rows`` rows through an idle pipeline, with the
    drafting of its chains; the profiles' time, also in a run without emulation."""
    passage, times = Passage(deployment, pipeline, draft), deployment.roles.drafts[draft].times
    return deployment.service.cut * times.draft(1) + passage.lap_ms(rows) + passage.decide_ms(rows)


def level_desk(deployment: Deployment, draft: int) -> LevelDesk:
    """Make the desk of a draft of a draft."""
    roles, bounds = deployment.roles, deployment.service.bounds
    above, *below = roles.beside(roles.drafts[draft].name)
    heads = len(roles.heads)
    return LevelDesk([above], below, bounds.ahead(draft // heads, len(roles.drafts) // heads - 1))


def stage_desk(deployment: Deployment, pipeline: int, number: int) -> StageDesk:
    """Make the desk of the ``number``-th stage (from 1) of a pipeline."""
    service = deployment.service
    return StageDesk(
        number,
        len(deployment.roles.pipelines[pipeline]),
        service.groups,
        service.pass_requests,
        service.prompts,
        in_phases=not service.overlapped_pruning,
        reported_states=service.reported(pipeline, number),
    )


def cache_room(deployment: Deployment, draft: int) -> CacheRoom:
    """Return a draft server's own cache (or a smaller one below it), and its share (equal for all)
    of the stages' caches."""
    service, servers = deployment.service, len(deployment.roles.heads)
    return CacheRoom(
        tuple(tokens // servers for tokens in service.room.pipelines),
        min(service.room.drafts[draft::servers], default=inf),
        service.bounds.tree_tokens,
        service.bounds.scratch_tokens,
        service.cache == "paged",
    )
