"""A hierarchy of drafts: each drafts for the one above it, whose text it follows.

(PipeSpec, for more than two models.)

The draft of the target is a draft server with a schedule. Every draft below it, on another device,
is a ``Level`` per request: it drafts without end, and its passes verify what the one below it has
drafted. Neighbours send each other their texts (``Text``). What a text proves wrong is rolled back
at the end of the pass under way, and sent downwards at once, so that a token which the target has
refused leaves every level.

(Unlike in PipeSpec's code no level waits for its neighbour's answer before its next pass, and a
level takes the tokens of the one above that it has not come to, instead of guessing them.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TypeAlias

from treepipe.core.decoding.drafting import ChainDraft, PendingPass
from treepipe.core.draft_work import Draft
from treepipe.core.messages import Close, Message, Text
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.scratch import Scratch

Letters: TypeAlias = Sequence[tuple[Sequence[str], Message]]
"""Receivers of each message, and the message."""


def _agreeing(one: Iterable[int], other: Iterable[int]) -> int:
    """Return the number of first tokens on which two texts agree."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class Neighbour:
    """The draft above or below: its text as last heard of, and ours as it knows it. The first text
    that goes between the two is both."""

    def __init__(self) -> None:
        self.text, self._known, self._final = list[int](), list[int](), 0

    def hear(self, message: Text) -> None:
        self.text[message.start :] = message.tokens
        if not self._known:
            self._known, self._final = [*self.text], message.final

    def news(self, session: int, text: Sequence[int], final: int) -> list[Text]:
        """Return what of our text is new to it, and how much is final; nothing if nothing is."""
        known, since = self._known, self._final
        start = since + _agreeing(known[since:], text[since:])
        if start == len(known) == len(text) and final == since:
            return []
        known[start:], self._final = text[start:], final
        self.text = self.text or [*text]
        return [Text(session, start, tuple(text[start:]), final)]

    def guesses(self, text: list[int], most: int) -> Sequence[int]:
        """Return its tokens behind our text, at most so many; () where it has left our text."""
        place = len(text)
        return self.text[place : place + most] if self.text[:place] == text else ()


class Level:
    """One request at a draft of a draft, from the first text of the one above on.

    Attributes:
        scratch: the draft's contents for it.
    """

    def __init__(self, session: int, most: int) -> None:
        self._session, self._most, self._tickets = session, most, 0
        self._final = list[int]()
        self._draft, self._pending = ChainDraft(drawn=False), PendingPass(self._final, keeps=True)
        self._above, self._below = Neighbour(), Neighbour()
        self.scratch = Scratch[None]()

    @property
    def _text(self) -> list[int]:
        return [*self._final, *self._draft.behind]

    def hear(self, message: Text) -> list[Text]:
        """Take a neighbour's text, that of the one above also as ours; return the news for the one
        below (even if there is none)."""
        if not message.final:
            self._below.hear(message)
            return []
        self._above.hear(message)
        draft, place = self._draft, len(self._final)
        above, ours, new = self._above.text[place:], draft.behind, message.final - place
        agreed = _agreeing(above, ours)
        self._final += above[:new]
        if agreed < new or not draft.begun:
            draft.restart()
            draft.adopt(0, (above if agreed < len(above) else ours)[new:])
        else:
            if agreed < len(above):
                draft.adopt(draft.used + agreed, above[agreed:])
            draft.used += new
        return self._news(self._below)

    @property
    def room(self) -> int:
        """Number of tokens that it may draft now."""
        return 0 if self._draft.ended else max(0, self._most - self._draft.ahead)

    def next_pass(self) -> DraftPass:
        """Return its next pass; there is room."""
        self._tickets += 1
        guesses = self._below.guesses(self._text, self.room - 1)
        return self._pending.ask(self._draft.next_pass(self._tickets, self._pending, guesses))

    def drafted(self, event: Drafted) -> list[Text]:
        """Take the answer; return the news for the drafts above and below."""
        self._pending.answered(event)
        self._draft.absorb(event)
        above = [replace(news, final=0) for news in self._news(self._above)]
        return [*above, *self._news(self._below)]

    def _news(self, neighbour: Neighbour) -> list[Text]:
        return neighbour.news(self._session, self._text, len(self._final))


@dataclass(slots=True)
class LevelDesk:
    """The work of one draft of a draft, over all its requests, which take turns.

    Attributes:
        above, below: names of its neighbours; ``below``: () if there is none.
        most: number of tokens beyond the final ones, at which a request waits.
        levels: its open requests, by session.
    """

    above: Sequence[str]
    below: Sequence[str]
    most: int
    levels: dict[int, Level] = field(default_factory=dict)

    def hear(self, message: Text | Close) -> Letters:
        """Take a message; return what it causes."""
        session, levels = message.session, self.levels
        if isinstance(message, Close):
            levels.pop(session, None)
            return self._letters([message])
        if session not in levels:
            if message.start or not message.final:
                return []  # of a request that is over
            levels[session] = Level(session, self.most)
        return self._letters(levels[session].hear(message))

    @property
    def has_work(self) -> bool:
        return any(level.room for level in self.levels.values())

    def next(self) -> Draft | None:
        """Return the next work, or None until a message arrives."""
        for session, level in self.levels.items():
            if level.room:
                self.levels[session] = self.levels.pop(session)
                return Draft(((session, level.next_pass()),))
        return None

    def drafted(self, work: Draft, answer: Drafted) -> Letters:
        """Take the answer of a pass; return the messages that follow."""
        level = self.levels.get(work.passes[0][0])
        return [] if level is None else self._letters(level.drafted(answer))

    def _letters(self, messages: Sequence[Text | Close]) -> Letters:
        """Address messages: texts without a final part go upwards."""
        up = [isinstance(each, Text) and not each.final for each in messages]
        return [(self.above if of else self.below, m) for of, m in zip(up, messages, strict=True)]
