"""Text, tickets and waste of every schedule, whatever the tree, the draft and the timing."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drive import TimelessWorld
from treepipe.errors import ProtocolError
from treepipe.protocol import Drafted, Emit, Finish, Returned, Schedule, Started, WorkerLost
from treepipe.schedules.autoregressive import Autoregressive
from treepipe.schedules.continuous import Continuous, Expansion
from treepipe.schedules.static_tree import StaticTree
from treepipe.schedules.tree_schedule import TreeParameters, TreeSchedule

VOCABULARY = 7


def _logits(path: list[int], salt: int) -> np.ndarray:
    seed = [salt, len(path), *path[-4:]]
    return np.random.default_rng(seed).normal(size=VOCABULARY) * 2


def target(path: list[int]) -> np.ndarray:
    return _logits(path, 1)


def greedy(prompt: list[int], new_tokens: int, end: int | None = None) -> list[int]:
    path = list(prompt)
    while len(path) < len(prompt) + new_tokens and (path == prompt or path[-1] != end):
        path.append(int(np.argmax(target(path))))
    return path[len(prompt) :]


parameters = st.builds(
    TreeParameters,
    size=st.integers(1, 30),
    depth=st.integers(0, 4),
    top_k=st.integers(1, 5),
    segment=st.integers(1, 8),
    score_order=st.booleans(),
)
expansions = st.none() | st.builds(
    Expansion,
    size=st.integers(1, 20),
    depth=st.integers(0, 4),
    context_aware=st.booleans(),
    score_aware=st.booleans(),
    score_aware_size=st.integers(1, 10),
    score_aware_depth=st.integers(1, 2),
)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Schedule, int]:
    """Any schedule with any parameters, and its number of stages."""
    stages = draw(st.integers(1, 5))
    kind = draw(st.sampled_from(["plain", "static", "batch", "continuous"]))
    if kind == "plain":
        return Autoregressive(0, 64), stages
    tree = draw(parameters)
    if kind == "static":
        return StaticTree(0, 64, tree, stages + 1), stages
    if kind == "batch":
        return StaticTree(0, 64, tree, 1), stages
    return Continuous(0, 64, tree, stages + 1, draw(expansions)), stages


class WatchedWorld(TimelessWorld):
    """Checks the tickets after every step."""

    def _step(self) -> None:
        super()._step()
        schedule = self.schedule
        if not isinstance(schedule, TreeSchedule) or schedule.done:
            return
        moving = {s.ticket for box in self.inboxes for s in box if hasattr(s, "ticket")}
        moving |= {s.ticket for stage in self.stages for s in stage.waiting}
        moving |= {event.ticket for event in self.events if isinstance(event, Returned)}
        assert schedule.outstanding <= moving, "every live ticket is in the pipeline"
        stale = moving - schedule.outstanding - schedule.cancelled
        assert not stale, "and nothing else is, but what was cancelled"


@settings(max_examples=150)
@given(
    schedules(), st.floats(0, 6), st.lists(st.integers(0, 6), min_size=1, max_size=90), st.data()
)
def test_text_tickets_and_waste(
    made: tuple[Schedule, int], noise: float, prompt: list[int], data: st.DataObject
) -> None:
    schedule, stages = made
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    world = WatchedWorld(
        schedule,
        stages,
        target,
        lambda path: target(path) + noise * _logits(path, 2),
        lambda count: int(rng.integers(count)),
    )
    wanted = data.draw(st.integers(1, 24))
    end = data.draw(st.none() | st.integers(0, VOCABULARY - 1))
    text = world.run(prompt, wanted, end)
    assert text == greedy(prompt, wanted, end)
    for committed in world.committed:
        assert committed == (prompt + text)[: len(committed)], "every stage has the same text"
    rounds = schedule.rounds
    assert sum(r.tokens for r in rounds) >= len(text) - 1
    assert all(0 <= r.accepted <= r.fed for r in rounds)
    assert all(sum(r.committed_per_step) == r.tokens for r in rounds)


def test_a_perfect_draft_wastes_only_branches() -> None:
    chain = TreeParameters(size=4, depth=3, top_k=1, segment=8)
    schedule = StaticTree(0, 64, chain, 1)
    TimelessWorld(schedule, 2, target, target).run([1, 2], 21)
    assert [r.tokens for r in schedule.rounds] == [5, 5, 5, 5]
    assert all(r.accepted == r.fed for r in schedule.rounds)


def test_stale_work_is_cut_off_in_flight() -> None:
    """Pruned PP computes fewer nodes than Naive PP of the same tree: the text cannot show that."""
    tree = TreeParameters(size=30, depth=3, top_k=4, segment=8)
    computed = {}
    for name, schedule in (
        ("naive", StaticTree(0, 64, tree, 5)),
        ("pruned", Continuous(0, 64, tree, 5, None)),
    ):
        world = TimelessWorld(schedule, 4, target, lambda p: target(p) + _logits(p, 2))
        world.run([1, 2, 3], 30)
        computed[name] = sum(map(sum, world.forward_sizes))
    assert computed["pruned"] < 0.8 * computed["naive"]


@pytest.mark.parametrize("kind", ["plain", "static", "continuous"])
def test_illegal_events_change_nothing(kind: str) -> None:
    tree = TreeParameters(size=8, depth=2, top_k=3, segment=4)
    schedule: Schedule = {
        "plain": Autoregressive(0, 64),
        "static": StaticTree(0, 64, tree, 3),
        "continuous": Continuous(0, 64, tree, 3, Expansion()),
    }[kind]
    schedule.handle(Started((1, 2, 3), 5))
    for event in (
        Started((1,), 5),
        Drafted(99, [[1]], [[-1.0]]),
        Returned(99, 0, 0, (1,)),
        Returned(1, 0, 0, ()),
    ):
        before = copy.deepcopy(schedule)
        with pytest.raises(ProtocolError):
            schedule.handle(event)
        assert repr(_state(before)) == repr(_state(schedule))


def _state(thing: object) -> object:
    """All attributes, deeply, as plain data."""
    if isinstance(thing, (list, tuple, set, frozenset, dict)):
        items = thing.items() if isinstance(thing, dict) else thing
        return [_state(item) for item in items]
    names = getattr(thing, "__slots__", None) or vars(thing) if hasattr(thing, "__dict__") else ()
    if type(thing).__module__.startswith("treepipe"):
        names = getattr(type(thing), "__slots__", None) or vars(thing)
        return [(name, _state(getattr(thing, name))) for name in names]
    return repr(thing)


def test_answers_are_taken_once() -> None:
    schedule = Autoregressive(0, 64)
    schedule.handle(Started((1, 2), 3))
    schedule.handle(Returned(1, 0, 0, (4,)))
    with pytest.raises(ProtocolError, match="ticket 1"):
        schedule.handle(Returned(1, 0, 0, (4,)))


def test_one_token_is_wanted() -> None:
    schedule = StaticTree(0, 64, TreeParameters(), 3)
    schedule.handle(Started((1, 2), 1))
    assert schedule.handle(Returned(1, 0, 0, (4,))) == [Emit((4,)), Finish("length")]
    assert schedule.done
    with pytest.raises(ProtocolError, match="done"):
        schedule.handle(Returned(2, 0, 0, (4,)))


def test_lost_worker_ends_the_request() -> None:
    schedule = Continuous(0, 64, TreeParameters(), 3, None)
    schedule.handle(Started((1, 2), 9))
    assert schedule.handle(WorkerLost("pipeline0.stage1")) == [Finish("worker lost")]
    assert schedule.done
