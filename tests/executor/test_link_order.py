"""Messages that come late, twice and in any order change no text; one that stays away is named."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.any_section import SCHEDULES, sections
from tests.worlds.examples import examples
from treepipe.core.messages import Beat, Close, Flight, Message, Through
from treepipe.core.protocol import Started
from treepipe.executor.wire.addresses import LOOPBACK
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.envelope import TOKEN_BYTES, Gate
from treepipe.executor.wire.link_order import FAR, LATE_MS, MOST_EARLY, TWICE, LinkOrder
from treepipe.executor.wire.mailbox import Inbox, Outbox
from treepipe.executor.wire.transport import ZeroMQ
from treepipe.scenario.schema import ScheduleSection
from treepipe.testing.hashed_lm import DRAFTS, any_order, greedy, target
from treepipe.testing.pipeline import Event, TimelessPipeline
from treepipe.testing.timeless_world import Sharing, TimelessWorld

LINK = "draft0", "pipeline0.stage1"
TOKEN = bytes(range(TOKEN_BYTES))
ENDS = "sender", "receiver"
TRANSPORT = ZeroMQ()


class Wire:
    """Takes the place of an outbox's channel: what was sent is on the way."""

    def __init__(self) -> None:
        self.under_way: list[list[bytes]] = []

    def send(self, *frames: Any) -> None:
        self.under_way.append([bytes(frame) for frame in frames])


class PostedBox(deque[Message]):
    """One link. What ``popleft`` hands out came out of the inbox; as a deque it holds what was sent
    and is not yet handed out, so that a test sees what is under way."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        super().__init__()
        self._choose, self._wire = choose, Wire()
        names = frozenset(ENDS[:1]), frozenset(ENDS[1:])
        gate = Gate(TOKEN, *names, (Flight, Beat, Through, Close), 1, 9999, names[0], waits=False)
        self._outbox = Outbox(TRANSPORT, f"tcp://{LOOPBACK}:9", ENDS, None, TOKEN)
        self._outbox.close()
        self._outbox._channel = self._wire  # type: ignore[assignment]
        self.inbox = Inbox(TRANSPORT, 0, ENDS[1], gate=gate)
        self.sent_again = 0

    def append(self, message: Message) -> None:
        super().append(message)
        self._outbox.send(message, now_ms(), 0)

    def popleft(self) -> Message:
        """The next message that is let in, however many others come before it."""
        while (received := self.inbox.get_due(now_ms())) is None:
            self._arrive()
        expected = super().popleft()
        assert received.message == expected, "what was sent first is let in first"
        return received.message

    def _arrive(self) -> None:
        """Any message that is under way comes, and may come again."""
        place = self._choose(len(self._wire.under_way))
        frames = self._wire.under_way.pop(place)
        if self._choose(3) == 0:
            self.sent_again += 1
            self._wire.under_way.append(frames)
        self.inbox.take(frames)

    def end(self) -> Counter[str]:
        """All that is still under way comes; returns what was not let in."""
        while self._wire.under_way:
            self.inbox.take(self._wire.under_way.pop())
        assert self.inbox.get_due(now_ms()) is None
        self.inbox.close()
        return self.inbox.dropped


class PostedWorld(TimelessWorld):
    """Its pipelines' messages travel as a run's do, through real ends of links, on a wire that
    brings them late, twice, and in any order."""

    def new_pipeline(self, stages: int) -> TimelessPipeline:
        pipeline = super().new_pipeline(stages)
        boxes: dict[Event, deque[Message]] = {box: PostedBox(self.choose) for box in pipeline.boxes}
        pipeline.boxes = boxes
        return pipeline

    def links(self) -> Iterator[PostedBox]:
        """All of them."""
        for pipeline in self.pipelines:
            for box in pipeline.boxes.values():
                assert isinstance(box, PostedBox)
                yield box


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
