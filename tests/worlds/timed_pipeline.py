"""One simulated pipeline with round durations, of which every expected time can be written out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from treepipe.core.decoding.drafting import Growth
from treepipe.core.decoding.tree_schedule import StaticTree, TreeParameters
from treepipe.core.protocol import Schedule
from treepipe.core.requests import RequestTrace
from treepipe.core.schedules.flowspec import Continuous, Expansion
from treepipe.core.schedules.pp import Autoregressive
from treepipe.physics.timing import DeviceTimes, LinkTimes, TimeTable
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import (
    Deployment,
    NewSchedule,
    Placed,
    RequestSpec,
    Roles,
    Service,
    Wiring,
)
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import bernoulli_pool
from treepipe.sim.world import simulate

STAGES = 4

PARTS = STAGES + 1

EVALUATE, DECIDE, PRUNE, HOP = 2.0, 1.0, 0.5, 1.0
"""Milliseconds; stage and draft passes differ between tests."""

WIDE = Growth.dynamic(10, 6)

TREE = TreeParameters(80, 16, True, WIDE)
"""FlowSpec's own."""

CHAIN = TreeParameters(7, 2, True, Growth.dynamic(1, 6))
"""Root and 7 nodes below it, one per level."""


def times(
    stage: float | dict[int, float] = 20.0, draft: float = 3.0, prune: float = PRUNE
) -> DeviceTimes:
    table = TimeTable(stage if isinstance(stage, dict) else {1: stage})
    return DeviceTimes(table, TimeTable({1: draft}), TimeTable({1: EVALUATE}), DECIDE, prune)


def plain(session: int, stages: int) -> Schedule:
    return Autoregressive(session, 64)


def static(session: int, stages: int) -> Schedule:
    return StaticTree(session, 64, replace(TREE, score_order=False), PARTS)


def pruned(session: int, stages: int) -> Schedule:
    return Continuous(session, 64, TREE, PARTS, None)


def flowspec(session: int, stages: int) -> Schedule:
    return Continuous(session, 64, TREE, PARTS, Expansion(WIDE, score_aware=True))


def chain_flowspec(session: int, stages: int) -> Schedule:
    return Continuous(session, 64, CHAIN, PARTS, Expansion(WIDE, size=7))


def make_deployment(
    new_schedule: NewSchedule,
    devices: DeviceTimes | Sequence[DeviceTimes] | None = None,
    *,
    tokens: int = 21,
    requests: int = 1,
) -> Deployment:
    """Args: ``devices``: of the draft and every stage, or one for all."""
    if devices is None:
        devices = times()
    if isinstance(devices, DeviceTimes):
        devices = [devices] * (STAGES + 1)
    stages = tuple(Placed(f"stage{n}", each) for n, each in enumerate(devices[1:], start=1))
    return Deployment(
        "test",
        Roles((Placed("draft", devices[0]),), (stages,)),
        Wiring(LinkTimes(HOP)),
        Service(new_schedule),
        requests=(RequestSpec((0,) * 10, tokens),) * requests,
    )


def run(deployment: Deployment, beta: float, *, record_spans: bool = True) -> Trace:
    return simulate(deployment, PoolSource(bernoulli_pool(beta), 1, 0), record_spans=record_spans)


def gaps(request: RequestTrace) -> list[float]:
    """Milliseconds between emissions."""
    return [after - before for (before, _), (after, _) in itertools.pairwise(request.emitted)]


def every(expected: float, count: int) -> object:
    return pytest.approx([expected] * count)
