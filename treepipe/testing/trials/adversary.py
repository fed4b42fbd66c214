"""Trials in which somebody plays against a schedule, or tells it the same again."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from treepipe.core.errors import ProtocolError
from treepipe.core.protocol import Drafted, Event, Returned, Schedule, Started, Stepped, WorkerLost
from treepipe.core.system import ScheduleContext, System
from treepipe.testing.case import Trial, TrialCase
from treepipe.testing.hashed_lm import DRAFTS, greedy, target
from treepipe.testing.law import LawBroken, hold
from treepipe.testing.story import Noted
from treepipe.testing.strategies import DRAFT_NAMES, requests
from treepipe.testing.timeless_world import TimelessWorld
from treepipe.testing.trials.decoding import drawn_levels, drawn_parameters, prompt_of

STAGES = 3

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(1, 30), st.integers(1, 12)),
        st.tuples(st.just("move"), st.integers(1, 30)),
        st.tuples(st.just("move"), st.integers(1, 30)),
        st.tuples(st.just("offend"), st.integers(1, 4), st.integers(0, 9)),
        st.tuples(st.just("offend"), st.just(1), st.integers(0, 1)),
        st.tuples(st.just("lose"), st.integers(0, 9)),
    ),
    max_size=40,
)
"""Open a request of a prompt's and a text's length; make moves; tell a request's schedule an
illegal event; lose the pipeline (if 0)."""


class Adversary:
    """Opens requests, makes moves, tells illegal events and loses the pipeline, as it likes."""

    def __init__(self, system: System, case: TrialCase) -> None:
        self.parameters, self.system = drawn_parameters(system, case), system
        draft = DRAFTS[case.draw("draft", DRAFT_NAMES)]
        self.parameters, levels = drawn_levels(system, self.parameters, STAGES, case)
        self.world = TimelessWorld(
            [STAGES], target, draft, case.choose, levels=levels, story=case.story
        )
        self.schedules: dict[int, Schedule] = {}
        self.wanted: dict[int, tuple[tuple[int, ...], int]] = {}
        self.lost = False

    def open(self, length: int, wanted: int) -> None:
        if len(self.schedules) == 4 or self.lost:
            return
        session = len(self.schedules) + 1
        context = ScheduleContext(session, STAGES, below=bool(self.world.levels))
        schedule = self.system.make(self.parameters, context)
        self.schedules[session] = schedule
        self.wanted[session] = prompt_of(session, length), wanted
        self.world.open(session, schedule, Started(self.wanted[session][0], wanted))

    def move(self, times: int) -> None:
        for _ in range(times):
            self.world.step()
        self.check_texts()

    def check_texts(self) -> None:
        for session, (prompt, wanted) in self.wanted.items():
            text, own = self.world.text(session), greedy(list(prompt), wanted)
            law = "failover" if self.lost else "lossless"
            hold(text == own[: len(text)], law, f"request {session} says {text}, not {own}")

    def offend(self, session: int, which: int) -> None:
        """Tell one illegal event; it is refused and changes nothing."""
        schedule = self.schedules.get(session)
        if schedule is None:
            return
        events = [*self.illegal_events(session)]
        before, event = pickle.dumps(schedule), events[which % len(events)]
        if isinstance(event, Started) and not self.world.requests[session].begun:
            return  # it is not illegal: the request has not begun
        try:
            schedule.handle(event)
        except ProtocolError:
            same = pickle.dumps(schedule) == before
            hold(same, "refusal", f"{event} is refused, but has changed something")
            return
        raise LawBroken("refusal", f"{event} is not refused")

    def illegal_events(self, session: int) -> Iterator[Event]:
        for own, drafted in self.world.servers[0].drafted:
            if own == session:
                more = [*drafted.tokens, [1]], [*drafted.log_probs, [-1.0]]
                yield Drafted(drafted.ticket + 1, drafted.tokens, drafted.log_probs)
                yield Drafted(drafted.ticket, *more)
        yield Started((1,), 5)
        yield Drafted(10**6, [[1]], [[-1.0]])
        yield Returned(10**6, 0, 0, (1,))
        yield Returned(0, 0, 0, (1,))
        yield Stepped(Returned(10**6, 0, 0, (1,)))
        yield Drafted(0, [[1], [2]], [[-1.0], [-1.0]])
        if self.world.requests[session].reason is not None:
            yield WorkerLost("any")

    def lose(self, sure: int) -> None:
        """Lose the pipeline; the requests end with what they have."""
        if sure or self.lost or not self.schedules:
            return
        self.lost = True
        self.world.lose(0)
        open_ = self.world.desk.sessions
        hold(not open_, "failover", f"requests {[*open_]} go on without their pipeline")

    def finish(self) -> None:
        """Let everything come to its end."""
        self.world.run()
        self.check_texts()
        for session, (prompt, wanted) in self.wanted.items():
            if not self.lost:
                found = self.world.text(session)
                hold(found == greedy([*prompt], wanted), "lossless", f"request {session}: {found}")
                self.world.assert_waste(session)
        if not self.lost:
            self.world.assert_freed()


def play(system: System, case: TrialCase) -> None:
    adversary = Adversary(system, case)
    moves: dict[str, Callable[..., None]] = {
        name: getattr(adversary, name) for name in ("open", "move", "offend", "lose")
    }
    for name, *arguments in case.draw("actions", ACTIONS):
        moves[name](*arguments)
    adversary.finish()


def heeded(schedule: Schedule, event: Drafted) -> bool:
    """Whether an answer that causes no command changes the schedule by what it says.

    Nothing happens to a request between a pass's begin and its answer, so a schedule that pays the
    answer no heed had given the pass up before it began.
    """
    likely = np.maximum(np.asarray(event.log_probs), -99.0) - 1
    other = Drafted(event.ticket, (np.asarray(event.tokens) + 1).tolist(), likely.tolist())
    before, after = pickle.dumps(schedule), set[bytes]()
    for each in (event, other):
        told = pickle.loads(before)
        told.handle(each)
        after.add(pickle.dumps(told))
    return len(after) > 1


def tell_again(system: System, case: TrialCase) -> None:
    """Decode some requests, then tell fresh schedules the same events, and others' answers."""
    requested = case.draw("requests", requests(1, 3))
    stages = case.draw("stages", st.integers(1, 4))
    parameters = drawn_parameters(system, case)
    draft = DRAFTS[case.draw("draft", DRAFT_NAMES)]
    parameters, levels = drawn_levels(system, parameters, stages, case)
    world = TimelessWorld([stages], target, draft, case.choose, levels=levels, story=case.story)
    fresh, below = partial(system.make, parameters), bool(levels)
    noted: dict[int, Any] = {}
    for session, (length, wanted, ends) in enumerate(requested, start=1):
        noted[session] = Noted(fresh(ScheduleContext(session, stages, below=below)))
        started = Started(prompt_of(session, length), wanted, ends)
        world.open(session, noted[session], started)
    world.run()
    for session, first in noted.items():
        again = fresh(ScheduleContext(session, stages, below=below))
        for number, (event, commands) in enumerate(first.told):
            if isinstance(event, Drafted) and len(event.tokens) and not commands:
                used = heeded(again, event)
                hold(used, "wanted", f"request {session} ignores the answer to pass {event.ticket}")
            same = list(again.handle(event)) == commands
            hold(same, "replay", f"request {session} answers event {number} in another way")
        hold([*again.rounds] == [*first.rounds], "replay", f"request {session}: other rounds")


TRIALS = (Trial("adversary", play, 40), Trial("replay", tell_again, 15))
