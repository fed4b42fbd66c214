"""Every schedule, one to four requests at once, whatever the parameters, the draft and the timing:
the text is plain greedy decoding's, nothing waits for ever, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.any_section import LAYERED, SCHEDULES, least_room, sections
from tests.worlds.examples import examples
from tests.worlds.hashed_lm import DRAFTS, VOCABULARY, any_order, greedy, target
from tests.worlds.timeless_world import TimelessWorld
from treepipe.core.barrier import Groups
from treepipe.core.cache_room import CacheRoom
from treepipe.core.front_desk import Policy
from treepipe.core.protocol import Started
from treepipe.core.stage_desk import Place
from treepipe.scenario.schema import ScheduleSection

ends_of_text = st.frozensets(st.integers(0, VOCABULARY - 1), max_size=3)
requests = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 18), ends_of_text),
    min_size=1,
    max_size=4,
)


GROUPS = st.integers(1, 5) | st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)
"""Stages that step alone: how many; or the sizes of groups of them."""


def run(
    name: str,
    section: dict[str, Any],
    asked: list[tuple[int, int, frozenset[int]]],
    draft: str,
    stages: int,
    seed: int,
    groups: Groups = 1,
    drafts: int = 1,
    policy: Policy = "fifo",
    batch: int = 1,
    prompts: Place = "last",
    room: CacheRoom | None = None,
    least: float = 0.0,
) -> TimelessWorld:
    """Decode all requests at once and check the texts."""
    given_section = ScheduleSection.model_validate({"name": name, **section})
    factory = given_section.choose()
    pipelines = [stages] * (len(asked) if name == "starsd" and batch == 1 else 1)
    world = TimelessWorld(
        pipelines,
        target,
        DRAFTS[draft],
        any_order(seed),
        groups=groups,
        in_phases=not given_section.parameters.overlapped_pruning,
        drafts=drafts,
        policy=policy,
        batch=batch,
        prompts=prompts,
        room=room,
        least=least,
    )
    world.new_schedule = lambda session: factory(session, stages)
    for session, (length, wanted, ends) in enumerate(asked, start=1):
        schedule = factory(session, stages)
        started = Started(_prompt(session, length), wanted, ends)
        pipeline, server = (session - 1) % len(pipelines), session % drafts
        world.open(session, schedule, started, pipeline, server)
    world.run()
    for session, (length, wanted, ends) in enumerate(asked, start=1):
        assert world.text(session) == greedy(list(_prompt(session, length)), wanted, ends)
        if not world.preemptions:
            world.assert_waste(session)
    world.assert_freed()
    return world


def _prompt(session: int, length: int) -> tuple[int, ...]:
    return tuple((session * i) % VOCABULARY for i in range(length))


@pytest.mark.parametrize("name", SCHEDULES)
@examples(60)
@given(
    sections,
    requests,
    st.sampled_from(sorted(DRAFTS)),
    GROUPS,
    st.just(0.0) | st.floats(0.01, 1.0),
    st.integers(0, 2**32),
)
def test_texts_are_greedy_and_nothing_is_left(
    name: str,
    section: dict[str, Any],
    asked: list[tuple[int, int, frozenset[int]]],
    draft: str,
    groups: Groups,
    least: float,
    seed: int,
) -> None:
    """In lock-step groups of stages step together. A draft that is not sure enough offers fewer
    candidates, or none."""
    stages = groups if isinstance(groups, int) else sum(groups)
    together = groups if name in LAYERED and isinstance(groups, tuple) else 1
    run(name, section, asked, draft, stages, seed, together, least=least)


@examples(60)
@given(
    sections,
    requests,
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["fifo", "weighted_fair", "earliest_deadline"]),
    st.integers(0, 2**32),
)
def test_several_drafts_serve_several_targets_in_any_order(
    section: dict[str, Any],
    asked: list[tuple[int, int, frozenset[int]]],
    drafts: int,
    stages: int,
    policy: Policy,
    seed: int,
) -> None:
    run("starsd", section, asked, "noisy", stages, seed, drafts=drafts, policy=policy)


@pytest.mark.parametrize("name", SCHEDULES)
@examples(60)
@given(
    sections,
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 30), ends_of_text), min_size=2, max_size=6
    ),
    st.sampled_from(sorted(DRAFTS)),
    st.integers(1, 4),
    st.sampled_from([1, 3]),
    st.integers(0, 40),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_requests_that_share_too_little_room_keep_their_texts(
    name: str,
    section: dict[str, Any],
    asked: list[tuple[int, int, frozenset[int]]],
    draft: str,
    stages: int,
    batch: int,
    more: int,
    paged: bool,
    seed: int,
) -> None:
    """Whoever waits or is preempted, and whatever of a former session is still under way; no cache
    ever holds more than there is room for (``TimelessWorld``)."""
    chosen = ScheduleSection.model_validate({"name": name, **section})
    longest = max(length + wanted for length, wanted, _ in asked) + more
    room = least_room(chosen, stages, longest, paged=paged)
    world = run(name, section, asked, draft, stages, seed, batch=batch, room=room)
    assert paged or not world.preemptions


@pytest.mark.parametrize("name", SCHEDULES)
@examples(60)
@given(
    st.sampled_from([1, 2, 4, 8]),
    sections,
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 18), ends_of_text), min_size=2, max_size=9
    ),
    st.sampled_from(sorted(DRAFTS)),
    st.integers(1, 5),
    st.integers(1, 2),
    st.sampled_from(["first", "last"]),
    st.integers(0, 2**32),
)
def test_requests_that_share_passes_change_no_text(
    name: str,
    batch: int,
    section: dict[str, Any],
    asked: list[tuple[int, int, frozenset[int]]],
    draft: str,
    stages: int,
    drafts: int,
    prompts: Place,
    seed: int,
) -> None:
    """Whatever the order of messages; a pass is never for more requests than ``batch``."""
    drafts = 1 if name in LAYERED else drafts
    world = run(
        name, section, asked, draft, stages, seed, drafts=drafts, batch=batch, prompts=prompts
    )
    if name not in LAYERED:
        assert all(max(shared) <= batch for shared in world.pipelines[0].shared)


@pytest.mark.parametrize("name", LAYERED)
def test_lock_step_computes_the_same_whatever_the_order_of_messages(name: str) -> None:
    """But for what is under way when the request ends: its end may come before or after that."""
    worlds = [
        run(name, {"width": 4, "children": 3}, [(5, 30, frozenset())], "noisy", 4, seed)
        for seed in range(6)
    ]
    assert all(world.draft_calls == worlds[0].draft_calls for world in worlds)
    for stage in range(4):
        sizes = [world.pipelines[0].forward_sizes[stage] for world in worlds]
        least = min(map(len, sizes))
        assert max(map(len, sizes)) <= least + 4
        assert all(each[:least] == sizes[0][:least] for each in sizes)


def test_a_ragged_batch_computes_the_layers_of_all_requests_in_one_pass() -> None:
    """Two requests with equal prompts are in step from the start: every flight holds both."""
    section = {"width": 4, "children": 3}
    alone = run("specpipe_db", section, [(5, 25, frozenset())], "perfect", 3, 0)
    both = run(
        "specpipe_db", section, [(5, 25, frozenset()), (5, 25, frozenset())], "perfect", 3, 0
    )
    passes = [len(sizes) for sizes in both.pipelines[0].forward_sizes]
    single = [len(sizes) for sizes in alone.pipelines[0].forward_sizes]
    assert all(two < 1.5 * one for two, one in zip(passes, single, strict=True))
    first, lonely = both.pipelines[0].forward_sizes[0], alone.pipelines[0].forward_sizes[0]
    assert np.mean(first[2:]) > 1.5 * np.mean(lonely[1:])
