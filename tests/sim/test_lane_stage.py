"""A stage in lanes, with the messages of real runs at other times: each lane is the stage alone.

Words and segments come in any order of the two; whatever condition ``LaneStage._look`` lacked
would let a kept lane differ. Schedules whose words end passes have no lanes (``alike.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from simpy.core import EmptySchedule

from tests.worlds.equal_stages import one_at_a_time
from tests.worlds.examples import examples
from treepipe.core.errors import ProtocolError
from treepipe.core.messages import Flight, Message
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.resolve import deploy
from treepipe.sim import roles
from treepipe.sim.clock import Clock
from treepipe.sim.device import RolePlace
from treepipe.sim.lane_world import KINDS
from treepipe.sim.lanes import Kept, LaneClock, Times
from treepipe.sim.predict import predict

STAGE = 2


class World:
    """Notes what its stage sends and does, with the time."""

    records = True

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.seen: list[tuple[Any, Any, Any]] = []

    def send(self, sender: str, receivers: Sequence[str], message: Message) -> None:
        self.seen.append((self.clock.now, self.clock.now, message))

    def size(self, sender: str, message: Message) -> int:
        return 0

    def note(self, device: str, kind: str, start_ms: Any, session: int, tokens: int) -> None:
        self.seen.append((start_ms, self.clock.now, (kind, session, tokens)))


@cache
def delivered(
    system: str, prune_ms: float, latency_ms: float
) -> tuple[Deployment, list[tuple[float, Message]]]:
    """All messages to a stage in a run, with their times."""
    device = {"stage_ms": {1: 20.0, 64: 26.0}, "prune_ms": prune_ms}
    section = {"tree_size": 24, "segment_tokens": 4}
    link = {"latency_ms": latency_ms}
    scenario = one_at_a_time({"device": device, "count": 4}, section, system, link)
    found, deliver = list[tuple[float, Message]](), roles.StageRole.deliver

    def noted(self: roles.StageRole, message: Message) -> None:
        if self.name == f"pipeline0.stage{STAGE}":
            found.append((self._clock.now, message))
        deliver(self, message)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(roles.StageRole, "deliver", noted)
        predict(scenario)
    return deploy(scenario), found


def played(clock: Clock, deployment: Deployment, messages: Any, times: Sequence[Any]) -> World:
    """Let the messages come to a stage at these times."""
    world = World(clock)
    stage = clock.kind(roles.StageRole)(world, deployment, 0, STAGE, RolePlace(clock))  # type: ignore[arg-type]
    for at, message in zip(times, messages, strict=True):
        clock.after(at, lambda _, message=message: stage.deliver(message))  # type: ignore[misc]
    with suppress(EmptySchedule):
        while True:
            clock.step()
    return world


@example("flowspec_free", 3.0, 1.0, 632548)  # a word alone is due, then a segment comes
@examples(400, deadline=None)
@given(
    st.sampled_from(["flowspec", "flowspec_free", "pruned_pp"]),
    st.sampled_from([0.0, 3.0]),
    st.sampled_from([1.0, 8.0, 15.0]),
    st.integers(0, 2**32),
)
def test_a_stage_in_lanes_is_the_stage_of_each_lane(
    system: str, prune: float, latency: float, seed: int
) -> None:
    deployment, found = delivered(system, prune, latency)
    rng, lanes = np.random.default_rng(seed), 6
    some = rng.random((len(found), 1)) < rng.choice([0.05, 0.3])
    by = rng.choice([1e-3, 5.0, 30.0]) * some * rng.uniform(-1, 1, (len(found), lanes))
    times = np.maximum(0.0, np.array([at for at, _ in found])[:, None] + by)
    messages = [message for _, message in found]
    for part in (True, False):  # each link keeps its order
        own = [isinstance(message, Flight) is part for message in messages]
        times[own] = np.maximum.accumulate(times[own], axis=0)
    kept = Kept(lanes)
    clock = LaneClock(kept, KINDS)
    try:
        world = played(clock, deployment, messages, [Times(each, kept) for each in times])
    except ProtocolError:
        assume(False)
    clock.check()
    for lane in np.flatnonzero(kept.lanes).tolist():
        alone = played(Clock(), deployment, messages, times[:, lane].tolist())
        assert [_of(each, lane) for each in world.seen] == alone.seen


def _of(seen: tuple[Any, Any, Any], lane: int) -> tuple[Any, Any, Any]:
    start, end, what = seen
    return float(start.of[lane]), float(end.of[lane]), what
