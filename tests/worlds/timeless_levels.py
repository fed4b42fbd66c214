"""The world without time, with drafts of drafts: their desks, and what is under way to them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias

from treepipe.core.draft_work import Draft, Orders
from treepipe.core.levels import LevelDesk, Letters
from treepipe.core.messages import Message, Text
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.testing.law import hold
from treepipe.testing.ledger import DraftReader
from treepipe.testing.pipeline import Logits
from treepipe.testing.timeless_world import TimelessWorld, candidates

Answer: TypeAlias = Callable[[DraftPass, list[list[int]]], Drafted]
"""A draft's candidates, as a pass asks for them, behind each token path."""


class TimelessLevel:
    """A draft of a draft, busy with a pass until somebody lets it end."""

    def __init__(self, desk: LevelDesk, answer: Answer) -> None:
        self.desk, self.answer = desk, answer
        self.inbox = deque[Message]()
        self.busy: tuple[Draft, Drafted] | None = None
        self.readers = defaultdict[int, DraftReader](DraftReader)


class TimelessLevels:
    """The hierarchy below a draft server, whose own place in it is 0."""

    def __init__(
        self,
        answers: Sequence[Answer],
        most: int,
        hear: Callable[[Text], object],
        committed: Callable[[int], Sequence[int]],
    ) -> None:
        """Make idle drafts.

        Args:
            answers: of each draft, from the uppermost on.
            most: tokens beyond the final ones that a draft may come to.
            hear: takes a text for the draft server.
            committed: returns a request's final text.
        """
        last = len(answers)
        self._levels = {
            n: TimelessLevel(LevelDesk([f"{n - 1}"], [f"{n + 1}"] * (n < last), most), each)
            for n, each in enumerate(answers, start=1)
        }
        self._most, self._hear, self._committed = most, hear, committed
        self._boxes = defaultdict[tuple[int, int], deque[Message]](deque)

    def post(self, message: Message) -> None:
        """Send a message of the draft server to the draft below it."""
        self._boxes[0, 1].append(message)

    def moves(self) -> list[Callable[[], None]]:
        """Return all possible moves: a message comes, or a pass ends."""
        ends = [partial(self._end, n) for n, each in self._levels.items() if each.busy]
        return [*ends, *(partial(self._come, way) for way, box in self._boxes.items() if box)]

    def assert_freed(self) -> None:
        for level in self._levels.values():
            hold(not level.desk.levels, "freed", "a draft of a draft keeps a finished request")

    def _come(self, way: tuple[int, int]) -> None:
        message, to = self._boxes[way].popleft(), way[1]
        if not to:
            assert isinstance(message, Text)
            self._hear(message)
            return
        self._levels[to].inbox.append(message)
        if self._levels[to].busy is None:
            self._go_on(to)

    def _end(self, n: int) -> None:
        level = self._levels[n]
        assert level.busy is not None
        ended, level.busy = level.busy, None
        self._tell(n, level.desk.drafted(*ended))
        self._go_on(n)

    def _go_on(self, n: int) -> None:
        """Take in what has come, and begin a pass."""
        level = self._levels[n]
        while level.inbox:
            message = level.inbox.popleft()
            self._tell(n, level.desk.hear(message))  # type: ignore[arg-type]
        work = level.desk.next()
        if work is None:
            return
        ((session, order),) = work.passes
        reader, committed = level.readers[session], self._committed(session)
        paths = reader.ask(order, committed)
        ahead = len(reader.read) + len(reader.scratch) - len(committed)
        hold(ahead <= self._most, "bounds", f"a draft of a draft is {ahead} tokens ahead")
        level.busy = work, level.answer(order, paths)

    def _tell(self, n: int, letters: Letters) -> None:
        for receivers, message in letters:
            for each in receivers:
                self._boxes[n, int(each)].append(message)


USUAL_MOST = 30
"""Tokens that a draft of a draft may be ahead where nobody looks at bounds."""


class WorldOfLevels(TimelessWorld):
    """A world in which each draft server leads drafts of drafts; ``drafts``: from the uppermost."""

    drafts: ClassVar[tuple[Logits, ...]] = ()

    def __init__(self, *of: Any, **more: Any) -> None:
        super().__init__(*of, **more)
        bounds = self.bounds
        most = USUAL_MOST if bounds is None else bounds.scratch_tokens - bounds.segment_tokens
        answers = [partial(candidates, draft) for draft in self.drafts]
        self.levels = []
        for server in self.servers:
            server.desk._below = len(self.pipelines)
            hear = partial(server.desk.receive, payload=None, now_ms=0.0)
            committed = lambda session: self.requests[session].committed  # noqa: E731
            self.levels.append(TimelessLevels(answers, most, hear, committed))

    def moves(self) -> list[Callable[[], None]]:
        return [*super().moves(), *(move for each in self.levels for move in each.moves())]

    def carry_out(self, number: int, orders: Orders) -> None:
        below = len(self.pipelines)
        for to, message in orders.messages:
            if to == below:
                self.levels[number].post(message)
        orders.messages = [each for each in orders.messages if each[0] != below]
        super().carry_out(number, orders)

    def assert_freed(self) -> None:
        super().assert_freed()
        for each in self.levels:
            each.assert_freed()
