"""Messages that come late, twice and in any order change no text; one that stays away is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.any_section import SCHEDULES, sections
from tests.worlds.examples import examples
from tests.worlds.posted_pipeline import PostedWorld
from treepipe.core.protocol import Started
from treepipe.executor.link_order import FAR, LATE_MS, MOST_EARLY, TWICE, LinkOrder
from treepipe.scenario.schema import ScheduleSection
from treepipe.testing.hashed_lm import DRAFTS, any_order, greedy, target
from treepipe.testing.timeless_world import Sharing

LINK = "draft0", "pipeline0.stage1"


@pytest.mark.parametrize("name", SCHEDULES)
@examples(15)
@given(sections, st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32))
def test_no_delivery_changes_a_text(
    name: str, section: dict[str, Any], stages: int, requests: int, seed: int
) -> None:
    """What comes twice is counted as often, and nothing else is dropped."""
    given_section = ScheduleSection.model_validate({"name": name, **section})
    factory = given_section.choose()
    world = PostedWorld(
        [stages],
        target,
        DRAFTS["noisy"],
        any_order(seed),
        Sharing(in_phases=not given_section.parameters.overlapped_pruning),
    )
    prompts = [tuple(range(n, 2 * n + 1)) for n in range(1, requests + 1)]
    for session, prompt in enumerate(prompts, start=1):
        world.open(session, factory(session, stages), Started(prompt, 9, frozenset()))
    world.run()
    for session, prompt in enumerate(prompts, start=1):
        assert world.text(session) == greedy(list(prompt), 9)
    world.assert_freed()
    for link in world.links():
        assert link.end() == ({TWICE: link.sent_again} if link.sent_again else {})


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.just(n))))
def test_every_order_becomes_the_one_in_which_they_were_sent(given: tuple[list[int], int]) -> None:
    numbers, count = given
    order, found = LinkOrder[int](), list[int]()
    for number in numbers:
        taken = order.take(LINK, number, number, 0.0)
        assert isinstance(taken, list)
        found += taken
        assert order.take(LINK, number, number, 0.0) == TWICE
    assert found == [*range(count)]
    assert not order.missing(2 * LATE_MS)


def test_links_do_not_wait_for_each_other() -> None:
    order, other = LinkOrder[str](), ("draft0", "pipeline0.stage2")
    assert order.take(LINK, 1, "early", 0.0) == []
    assert order.take(other, 0, "first", 0.0) == ["first"]


def test_a_message_that_stays_away_is_named_once() -> None:
    order = LinkOrder[int]()
    order.take(LINK, 0, 0, 0.0)
    order.take(LINK, 2, 2, 10.0)
    order.take(LINK, 4, 4, 200.0)
    assert not order.missing(10.0 + LATE_MS)
    assert order.missing(11.0 + LATE_MS) == [(LINK, 1)]
    assert not order.missing(9999.0), "it was told"
    assert order.take(LINK, 1, 1, 300.0) == [1, 2]
    assert not order.missing(300.0 + LATE_MS), "of the next one that is missing time counts anew"
    assert order.missing(301.0 + LATE_MS) == [(LINK, 3)]


def test_no_more_is_held_back_than_can_be_under_way() -> None:
    order = LinkOrder[int]()
    assert order.take(LINK, 2**60, 0, 0.0) == FAR
    for number in range(1, MOST_EARLY + 1):
        assert order.take(LINK, number, number, 0.0) == []
    assert order.take(LINK, MOST_EARLY + 1, 0, 0.0) == FAR
    assert order.take(LINK, 0, 0, 0.0) == [*range(MOST_EARLY + 1)]
