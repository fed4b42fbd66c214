"""An adversary plays the world, one rule at a time, against every schedule.

It opens requests when it likes, lets any message move next, loses the pipeline, repeats answers and
tells events that are illegal. At every moment each text is a prefix of plain greedy decoding's, an
illegal event has changed nothing; the world asserts that tickets are given out and answered once.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.worlds.any_section import sections
from tests.worlds.examples import examples
from tests.worlds.hashed_lm import DRAFTS, VOCABULARY, greedy, target
from tests.worlds.timeless_world import TimelessWorld
from treepipe.core.errors import ProtocolError
from treepipe.core.protocol import Drafted, Returned, Schedule, Started, Stepped
from treepipe.core.schedules import systems
from treepipe.scenario.schema import ScheduleSection

MOST_REQUESTS, STAGES = 4, 3


class Adversary(RuleBasedStateMachine):
    """Plays against one schedule; subclasses name it."""

    name = "pp"

    @initialize(section=sections, draft=st.sampled_from(sorted(DRAFTS)))
    def begin(self, section: dict[str, Any], draft: str) -> None:
        self.world = TimelessWorld([STAGES], target, DRAFTS[draft], self._choose)
        made = ScheduleSection.model_validate({"name": self.name, **section})
        self.factory = made.choose()
        self.schedules: dict[int, Schedule] = {}
        self.wanted: dict[int, tuple[list[int], int]] = {}
        self.next_choice = 0
        self.lost = False

    def _choose(self, count: int) -> int:
        return self.next_choice % count

    @precondition(lambda self: len(self.schedules) < MOST_REQUESTS and not self.lost)
    @rule(length=st.integers(1, 30), wanted=st.integers(1, 12))
    def open(self, length: int, wanted: int) -> None:
        session = len(self.schedules) + 1
        prompt = [(session * i) % VOCABULARY for i in range(length)]
        schedule = self.factory(session, STAGES)
        self.schedules[session], self.wanted[session] = schedule, (prompt, wanted)
        self.world.open(session, schedule, Started(tuple(prompt), wanted))

    @rule(choices=st.lists(st.integers(0, 50), min_size=1, max_size=30))
    def move(self, choices: list[int]) -> None:
        for self.next_choice in choices:
            self.world.step()

    @rule(session=st.integers(1, MOST_REQUESTS), which=st.integers(0, 5))
    def offend(self, session: int, which: int) -> None:
        """Tell one illegal event; it is refused and changes nothing."""
        schedule = self.schedules.get(session)
        if schedule is None:
            return
        event = [
            Started((1,), 5),
            Drafted(10**6, [[1]], [[-1.0]]),
            Returned(10**6, 0, 0, (1,)),
            Returned(0, 0, 0, (1,)),
            Stepped(Returned(10**6, 0, 0, (1,))),
            Drafted(0, [[1], [2]], [[-1.0], [-1.0]]),
        ][which]
        before = pickle.dumps(schedule)
        if isinstance(event, Started) and not self.world.requests[session].begun:
            return  # not illegal: the request has not begun
        with pytest.raises(ProtocolError):
            schedule.handle(event)
        assert pickle.dumps(schedule) == before, f"{event} has changed something"

    @precondition(lambda self: self.schedules and not self.lost)
    @rule(sure=st.integers(0, 9))
    def lose(self, sure: int) -> None:
        """Seldom: the pipeline is gone, and the requests end with what they have."""
        if sure:
            return
        self.lost = True
        self.world.lose(0)
        assert not self.world.desk._sessions

    @invariant()
    def texts_are_prefixes(self) -> None:
        for session, (prompt, wanted) in getattr(self, "wanted", {}).items():
            text = self.world.text(session)
            assert text == greedy(prompt, wanted)[: len(text)]

    def teardown(self) -> None:
        """Let everything come to its end."""
        if not hasattr(self, "world"):
            return
        self.next_choice = 0
        self.world.run()
        for session, (prompt, wanted) in self.wanted.items():
            if self.lost:
                rounds = self.schedules[session].rounds
                assert all(r.accepted <= r.fed for r in rounds)
                assert all(sum(r.committed_per_step) == r.tokens for r in rounds)
            else:
                assert self.world.text(session) == greedy(prompt, wanted)
                self.world.assert_waste(session)
        if not self.lost:
            self.world.assert_freed()


@pytest.mark.parametrize("name", tuple(systems()))
def test_adversary_cannot_break_it(name: str) -> None:
    machine = type(f"Adversary_{name}", (Adversary,), {"name": name})
    run_state_machine_as_test(machine, settings=examples(40, stateful_step_count=40))
