"""Small deployments of real processes, for every system, and the roles of their workers."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from tests.worlds.changed import changed
from treepipe.core.cache_room import PAGE
from treepipe.core.system import Ends
from treepipe.core.verification import DRAWN, RULES
from treepipe.executor.models.source_settings import SourceSettings
from treepipe.executor.wire.role import RoleSettings, WorkerKind
from treepipe.physics.timing import DeviceTimes, LinkTimes, TimeTable
from treepipe.scenario.deployment import (
    Deployment,
    Placed,
    RequestSpec,
    Roles,
    Room,
    Service,
    Wiring,
)
from treepipe.scenario.schema import SamplingSection, ScheduleSection, SourceSection

GREEDY = SamplingSection()

TREE = {
    "tree_size": 20,
    "tree_depth": 3,
    "top_k": 4,
    "segment_tokens": 6,
    "expand_size": 12,
    "expand_depth": 3,
    "gamma": 3,
    "ahead": 24,  # further than any of the texts, and no further: each round may draft so far
    "width": 5,
    "children": 4,
}


TIMES = DeviceTimes(TimeTable({1: 6.0}), TimeTable({1: 2.0}), TimeTable({1: 0.5}), 1.5, 0.3)

PROMPT = tuple(int(t) for t in np.random.default_rng(4).integers(61, size=70))

REQUESTS = (RequestSpec(PROMPT, 16), RequestSpec(PROMPT[:5], 12), RequestSpec(PROMPT[5:30], 14))


def small_deployment(
    name: str,
    *,
    clients: int = 1,
    pipelines: int = 1,
    batch: int = 1,
    sampling: SamplingSection = GREEDY,
    ends: Ends | None = None,
    captured: tuple[int, ...] = (),
    blocks: bool = False,
    **settings: object,
) -> Deployment:
    """Args: ``ends``: None: as published, unless the rule needs the drafted tree; ``blocks``: the
    draft is a block draft."""
    section = ScheduleSection.model_validate({"name": name, **TREE, **settings})
    stages = 4 // pipelines
    layers = [range(pipelines * n, pipelines * (n + 1)) for n in range(stages)]
    return Deployment(
        "test",
        Roles(
            (Placed("draft0", TIMES),),
            tuple(
                tuple(
                    Placed(f"pipeline{p}.stage{n}", TIMES, own) for n, own in enumerate(layers, 1)
                )
                for p in range(pipelines)
            ),
            ends=ends or ("draft" if RULES[sampling.rule].needs_tree else section.parameters.ends),
            captured=captured,
            row_bytes=128,
        ),
        Wiring(LinkTimes(1.0, 1000.0)),
        Service(
            section.choose(
                drawn=sampling.rule in DRAWN,
                reads_states=bool(captured),
                independent_levels=blocks,
            ),
            cancels=section.parameters.cancels,
            clients=clients,
            target_emits=section.system.target_emits,
            limit=1 if name in ("pipedec", "specpipe", "spd") else None,
            batch=batch,
        ),
        requests=REQUESTS,
    )


def crowded(name: str, **settings: Any) -> Deployment:
    """The three texts need 5, 1 and 2 pages at first, and 6, 2 and 3 at their ends; there are 8."""
    deployment = small_deployment(name, clients=3, **settings)
    return changed(deployment, cache="paged", room=Room((8 * PAGE,), (inf,)))


def worker_roles(
    pair: tuple[Path, Path],
    deployment: Deployment,
    sampling: SamplingSection = GREEDY,
    **changes: object,
) -> list[RoleSettings]:
    remembers = sampling.rule not in ("exact", "relaxed_best")
    model = pair[1]
    source = SourceSettings(
        SourceSection(source="model"), model, sampling, remembers, deployment.seed
    )
    places: list[tuple[Placed, WorkerKind, int, int | None]] = [
        (placed, "draft", number, None) for number, placed in enumerate(deployment.roles.drafts)
    ]
    for p, stages in enumerate(deployment.roles.pipelines):
        places += [(stage, "stage", n, p) for n, stage in enumerate(stages, start=1)]
    target = pair[0]
    base = [RoleSettings(*place, deployment, target, source, 300, 0, True) for place in places]
    return [replace(role, **changes) for role in base]  # type: ignore[arg-type]
