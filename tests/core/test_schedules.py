"""Text, tickets and waste of every schedule, whatever the tree, the draft and the timing.

The world checks more on the way (``timeless_world.py``): rows and positions of every stage's every
action, one answer per ticket, and that the draft reads what is committed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.worlds.examples import examples
from tests.worlds.one_request import OneRequest
from treepipe.core.decoding.drafting import Growth
from treepipe.core.decoding.tree_decoding import TreeDecoding
from treepipe.core.decoding.tree_schedule import StaticTree, TreeParameters, TreeSchedule
from treepipe.core.errors import ProtocolError
from treepipe.core.protocol import (
    Drafted,
    Event,
    Returned,
    Schedule,
    Started,
    Stepped,
    WorkerLost,
)
from treepipe.core.schedules.flowspec import Continuous, Expansion
from treepipe.core.schedules.pp import Autoregressive
from treepipe.testing.hashed_lm import DRAFTS, VOCABULARY, any_order, greedy, noisy, target
from treepipe.testing.timeless_world import first

SYSTEMS = ("pp", "naive_pp", "static_tree", "pruned_pp", "flowspec")


def tree_of(
    size: int, depth: int, top_k: int, segment: int, score_order: bool = True
) -> TreeParameters:
    """With an EAGLE-2 tree."""
    return TreeParameters(size, segment, score_order, Growth.dynamic(top_k, depth))


def expansion_of(size: int = 64, depth: int = 6, top_k: int = 10, **rest: Any) -> Expansion:
    """With EAGLE-2 trees."""
    return Expansion(Growth.dynamic(top_k, depth), size, **rest)


parameters = st.builds(
    tree_of,
    size=st.integers(1, 30),
    depth=st.integers(0, 4),
    top_k=st.integers(1, VOCABULARY + 1),
    segment=st.integers(1, 8),
    score_order=st.booleans(),
)
expansions = st.builds(
    expansion_of,
    size=st.integers(1, 20),
    depth=st.integers(0, 4),
    top_k=st.integers(1, VOCABULARY + 1),
    score_aware=st.booleans(),
    score_aware_size=st.integers(1, 10),
    score_aware_depth=st.integers(1, 2),
)
prompts = st.integers(1, 140).flatmap(
    lambda length: st.integers(0, 99).map(lambda salt: [(salt * i) % 7 for i in range(length)])
)
ends = st.frozensets(st.integers(0, VOCABULARY - 1), max_size=3)
drafts = st.sampled_from(sorted(DRAFTS))
seeds = st.integers(0, 2**32)


def make(system: str, stages: int, tree: TreeParameters, expansion: Expansion) -> Schedule:
    if system == "pp":
        return Autoregressive(0, 64)
    if system in ("naive_pp", "static_tree"):
        return StaticTree(0, 64, tree, stages + 1 if system == "naive_pp" else 1)
    return Continuous(0, 64, tree, stages + 1, expansion if system == "flowspec" else None)


def outstanding(schedule: TreeSchedule) -> set[int]:
    """Tickets of the segments that are in the pipeline and of use."""
    fed = {segment.ticket for segment in schedule._flying.outstanding}
    return fed | {*schedule._request.prefill}


def cancelled(schedule: Schedule) -> set[int]:
    """Tickets of segments that are of no use any more; answers to them are ignored."""
    return set(schedule._flying.cancelled) if isinstance(schedule, TreeSchedule) else set()


def takes_segments(schedule: Schedule) -> bool:
    """Whether a segment may be back now, and not only at the end of the draft pass under way."""
    drafts = isinstance(schedule, TreeDecoding) and schedule._pending.under_way
    return schedule.listens or not drafts


class WatchedWorld(OneRequest):
    """Checks the tickets after every step."""

    def step(self) -> bool:
        moved = super().step()
        schedule, moving = self.schedule, self.travelling()
        if isinstance(schedule, TreeSchedule) and not schedule.done:
            assert outstanding(schedule) <= moving, "every live ticket is in the pipeline"
            stale = moving - outstanding(schedule)
            assert stale <= cancelled(schedule), "and nothing else is, but what was cancelled"
        return moved


def assert_stages_agree(world: OneRequest, whole: list[int]) -> None:
    """With every message delivered, all stages hold the same text, and live nodes only."""
    world.drain()
    ledger = world.pipeline.ledger()
    records = [world.pipeline.records[n, world.session] for n in range(len(world.pipeline.desks))]
    for record in records:
        assert record.committed == records[0].committed == whole[: len(record.committed)]
        assert record.nodes == ledger.live[: len(record.nodes)]


@pytest.mark.parametrize("system", SYSTEMS)
@examples(150)
@example(
    1, tree_of(5, 1, 3, 1), expansion_of(6, 2, 3), "noisy", [1, 2], 24, frozenset(), 0
)  # see below
@given(st.integers(1, 5), parameters, expansions, drafts, prompts, st.integers(1, 24), ends, seeds)
def test_text_tickets_and_waste(
    system: str,
    stages: int,
    tree: TreeParameters,
    expansion: Expansion,
    draft: str,
    prompt: list[int],
    wanted: int,
    end_tokens: frozenset[int],
    seed: int,
) -> None:
    """In the example a round prunes to a root that waits to be fed, which opens no new round."""
    schedule = make(system, stages, tree, expansion)
    world = WatchedWorld(schedule, stages, target, DRAFTS[draft], any_order(seed))
    text = world.decode(prompt, wanted, end_tokens)
    assert text == greedy(prompt, wanted, end_tokens)
    world.assert_waste(0)
    assert_stages_agree(world, prompt + text)
    world.close()
    world.assert_freed()


@pytest.mark.parametrize("system", SYSTEMS)
@examples(40)
@given(st.integers(1, 5), parameters, expansions, drafts, seeds)
def test_what_is_computed_does_not_depend_on_the_order_of_messages(
    system: str, stages: int, tree: TreeParameters, expansion: Expansion, draft: str, seed: int
) -> None:
    """In lock-step because words wait for their step; a static tree has no words within a round."""
    seen = []
    for choose in (first, lambda count: count - 1, any_order(seed)):
        schedule = make(system, stages, tree, expansion)
        world = OneRequest(schedule, stages, target, DRAFTS[draft], choose)
        world.decode([1, 2, 3], 16)
        world.drain()
        seen.append((world.pipeline.forward_sizes, world.draft_calls, schedule.rounds))
    assert seen[0] == seen[1] == seen[2]


# --- illegal events ------------------------------------------------------------------------------


def illegal_events(world: OneRequest) -> Iterator[Event]:
    """Events that are illegal where the world stands now."""
    schedule = world.schedule
    yield Started((1,), 5)
    yield Stepped(None)
    yield Drafted(10**6, [[1]], [[-1.0]])
    yield Returned(10**6, 0, 0, (1,))
    for ticket in world.evaluated[-1:]:
        yield Returned(ticket, 0, 0, (1,))
    for _, drafted in world.servers[0].drafted:
        yield Drafted(drafted.ticket + 1, drafted.tokens, drafted.log_probs)
        yield Drafted(drafted.ticket, [*drafted.tokens, [1]], [*drafted.log_probs, [-1.0]])
        yield Drafted(drafted.ticket, drafted.tokens, [*drafted.log_probs[1:], [-1.0] * 99])
        yield Drafted(drafted.ticket, [[] for _ in drafted.tokens], [[] for _ in drafted.tokens])
    if not isinstance(schedule, TreeSchedule):
        return
    tickets = sorted(outstanding(schedule))
    yield Drafted(max(tickets, default=0), [[1]], [[-1.0]])
    yield from (Returned(ticket, 0, 0, (1,)) for ticket in tickets[1:])
    if world.request.text:  # prefill is over
        yield from (Returned(ticket, 10**6, 0, (1,)) for ticket in tickets)


class HostileWorld(OneRequest):
    """Tells every illegal event before every step; the run must go on as if it had not."""

    def step(self) -> bool:
        if self.request.begun:
            self.offend()
        return super().step()

    def offend(self) -> None:
        late = [Returned(t, 0, 0, ()) for t in cancelled(self.schedule)]
        if takes_segments(self.schedule):
            assert all(self.schedule.handle(each) == [] for each in late), "they are ignored, once"
        before = pickle.dumps(self.schedule)
        for event in [*late, *illegal_events(self)]:
            with pytest.raises(ProtocolError):
                self.schedule.handle(event)
            assert pickle.dumps(self.schedule) == before, f"{event} has changed something"


@pytest.mark.parametrize("system", SYSTEMS)
@examples(20)
@given(st.integers(1, 3), parameters, expansions, seeds)
def test_illegal_events_change_nothing(
    system: str, stages: int, tree: TreeParameters, expansion: Expansion, seed: int
) -> None:
    schedule = make(system, stages, tree, expansion)
    for early in (Drafted(1, [[1]], [[-1.0]]), Returned(1, 0, 0, (1,))):
        with pytest.raises(ProtocolError):
            schedule.handle(early)
    world = HostileWorld(schedule, stages, target, noisy(0.7), any_order(seed))
    assert world.decode([1, 2, 3] * 25, 8) == greedy([1, 2, 3] * 25, 8)
    world.offend()
    with pytest.raises(ProtocolError, match="done"):
        schedule.handle(WorkerLost("any"))


# --- by hand -------------------------------------------------------------------------------------

CHAIN = tree_of(size=4, depth=3, top_k=1, segment=8)


def test_a_perfect_draft_wastes_nothing() -> None:
    schedule = StaticTree(0, 64, CHAIN, 1)
    OneRequest(schedule, 2, target, target).decode([1, 2], 21)
    assert [r.tokens for r in schedule.rounds] == [5, 5, 5, 5]
    assert all(r.accepted == r.fed for r in schedule.rounds)


def test_stale_work_is_cut_off_in_flight() -> None:
    """Pruned PP computes fewer nodes than Naive PP of the same tree: the text cannot show that."""
    tree = tree_of(size=30, depth=3, top_k=4, segment=8)
    computed = {}
    for system in ("naive_pp", "pruned_pp"):
        world = OneRequest(make(system, 4, tree, expansion_of()), 4, target, noisy(1.0))
        world.decode([1, 2, 3], 30)
        computed[system] = sum(map(sum, world.pipeline.forward_sizes))
    assert computed["pruned_pp"] < 0.8 * computed["naive_pp"]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    ("length", "chunks"), [(64, [64]), (65, [32, 33]), (130, [43, 43, 44]), (200, [50] * 4)]
)
def test_long_prompts_enter_in_chunks(system: str, length: int, chunks: list[int]) -> None:
    prompt = [i * i % 7 for i in range(length)]
    world = WatchedWorld(make(system, 3, CHAIN, expansion_of()), 3, target, target, any_order(1))
    assert world.decode(prompt, 6) == greedy(prompt, 6)
    assert all(sizes[: len(chunks)] == chunks for sizes in world.pipeline.forward_sizes)
