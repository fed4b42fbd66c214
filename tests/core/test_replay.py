"""A schedule is a function of its events: told the same again, a fresh one answers the same.

So nothing else reaches it: no clock, no random number, no other request, no call back into a world.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.worlds.hashed_lm import DRAFTS, any_order, greedy, target
from tests.worlds.timeless_world import TimelessWorld
from treepipe.core.protocol import Command, Event, Schedule, Started
from treepipe.core.schedules import systems
from treepipe.scenario.schema import ScheduleSection

STAGES, WANTED = 3, 10
PROMPTS = {1: [1, 2, 3, 4, 5, 6, 0, 1, 2], 2: [3], 3: [5, 5, 2, 6]}
SECTION = {
    "tree_size": 9,
    "tree_depth": 2,
    "top_k": 3,
    "segment_tokens": 3,
    "expand_size": 5,
    "expand_depth": 1,
    "score_aware": True,
    "adaptive_depth": True,
    "gamma": 3,
    "width": 4,
    "children": 3,
    "prefill_chunk": 4,
}


class Noted:
    """A schedule whose events and commands are noted."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.told: list[tuple[Event, list[Command]]] = []

    def handle(self, event: Event) -> Sequence[Command]:
        commands = self._schedule.handle(event)
        self.told.append((event, list(commands)))
        return commands

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedule, name)


@pytest.mark.parametrize("name", tuple(systems()))
@pytest.mark.parametrize("seed", range(3))
def test_a_schedule_is_a_function_of_its_events(name: str, seed: int) -> None:
    new_schedule = ScheduleSection.model_validate({"name": name, **SECTION}).choose()
    world = TimelessWorld([STAGES], target, DRAFTS["noisy"], any_order(seed))
    noted = {session: Noted(new_schedule(session, STAGES)) for session in PROMPTS}
    for session, prompt in PROMPTS.items():
        world.open(session, noted[session], Started(tuple(prompt), WANTED))
    world.run()
    for session, prompt in PROMPTS.items():
        assert world.text(session) == greedy(prompt, WANTED)
        again = new_schedule(session, STAGES)
        for event, commands in noted[session].told:
            assert list(again.handle(event)) == commands
        assert again.done
        assert list(again.rounds) == list(noted[session].rounds)
