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
from dataclasses import dataclass, field
from itertools import takewhile

from treepipe.core.decoding.drafting import ChainDraft, PendingPass
from treepipe.core.draft_work import Draft
from treepipe.core.messages import Close, Message, Text
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.scratch import Scratch


def _agreeing(one: Iterable[int], other: Iterable[int]) -> int:
    """Return the number of first tokens on which two texts agree."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class Neighbour:
    """The draft above or below: its text as last heard of, and ours as it knows it."""

    def __init__(self, opening: Text) -> None:
        """Begin with the text that the upper one opens the request with."""
        self.text, self._known = [*opening.tokens], [*opening.tokens]
        self._final = opening.final

    def hear(self, message: Text) -> None:
        self.text[message.start :] = message.tokens

    def news(self, session: int, text: Sequence[int], final: int) -> Text | None:
        """Return what of our text is new to it, and how much is final; None if nothing is."""
        known, since = self._known, self._final
        start = since + _agreeing(known[since:], text[since:])
        if start == len(known) == len(text) and final == since:
            return None
        known[start:], self._final = text[start:], final
        return Text(session, start, tuple(text[start:]), final)

    def guesses(self, text: list[int], most: int) -> Sequence[int]:
        """Return its tokens behind our text, at most so many; () where it has left our text."""
        place = len(text)
        return self.text[place : place + most] if self.text[:place] == text else ()


class Level:
    """One request at a draft of a draft.

    Attributes:
        scratch: the draft's contents for it.
    """

    def __init__(self, opening: Text, most: int, *, last: bool) -> None:
        """Begin with the text of the draft above.

        Args:
            most: number of tokens beyond the final ones, at which it waits.
            last: no draft is below it.
        """
        self._session, self._most = opening.session, most
        self._final, self._tickets = [*opening.tokens[: opening.final]], 0
        self._draft, self._pending = ChainDraft(drawn=False), PendingPass(self._final, keeps=True)
        self._draft.adopt(0, opening.tokens[opening.final :])
        self._above = Neighbour(opening)
        self._below = None if last else Neighbour(opening)
        self.scratch = Scratch[None]()

    @property
    def _text(self) -> list[int]:
        draft = self._draft
        return [*self._final, *(token for token, _ in draft.tokens[draft.used :])]

    def hear(self, message: Text) -> Text | None:
        """Take a neighbour's text, that of the one above also as ours; return the news for the one
        below."""
        if not message.final:
            if self._below is not None:
                self._below.hear(message)
            return None
        self._above.hear(message)
        draft, final, place = self._draft, self._final, len(self._final)
        above = self._above.text[place:]
        ours, new = self._text[place:], message.final - place
        agreed = _agreeing(above, ours)
        ours = above if agreed < len(above) else ours
        final += above[:new]
        if agreed < new or not draft.begun:
            draft.restart()
            draft.adopt(0, ours[new:])
        else:
            if agreed < len(above):
                draft.adopt(draft.used + agreed, above[agreed:])
            draft.used += new
        return self._news_below()

    def next_pass(self) -> DraftPass | None:
        draft, most = self._draft, self._most - self._draft.ahead
        if draft.ended or most <= 0:
            return None
        self._tickets += 1
        guesses = () if self._below is None else self._below.guesses(self._text, most - 1)
        return self._pending.ask(draft.next_pass(self._tickets, self._pending, guesses))

    def drafted(self, event: Drafted) -> tuple[Text | None, Text | None]:
        """Take the answer; return the news for the drafts above and below."""
        self._pending.answered(event)
        self._draft.absorb(event)
        news = self._above.news(self._session, self._text, len(self._final))
        above = None if news is None else Text(news.session, news.start, news.tokens)
        return above, self._news_below()

    def _news_below(self) -> Text | None:
        if self._below is None:
            return None
        return self._below.news(self._session, self._text, len(self._final))


@dataclass(slots=True)
class LevelDesk:
    """The work of one draft of a draft, over all its requests, which take turns.

    Attributes:
        above, below: names of its neighbours; ``below`` None: there is none.
        most: as of ``Level``.
        levels: its open requests, by session.
    """

    above: str
    below: str | None
    most: int
    levels: dict[int, Level] = field(default_factory=dict)

    def hear(self, message: Text | Close) -> list[tuple[str, Message]]:
        """Take a message; return what it causes, each with its receiver."""
        session = message.session
        if isinstance(message, Close):
            self.levels.pop(session, None)
            return self._letters(None, message)
        if session in self.levels:
            return self._letters(None, self.levels[session].hear(message))
        if message.start or not message.final:
            return []  # of a request that is over
        self.levels[session] = Level(message, self.most, last=self.below is None)
        return self._letters(None, message)

    def next(self) -> Draft | None:
        """Return the next work, or None until a message arrives."""
        for session, level in [*self.levels.items()]:
            order = level.next_pass()
            if order is not None:
                self.levels[session] = self.levels.pop(session)
                return Draft(((session, order),))
        return None

    def parts(self, work: Draft) -> list[tuple[int, int]]:
        """As ``DraftBook.parts``."""
        ((session, order),) = work.passes
        scratch = self.levels[session].scratch
        scratch.follow(order)
        return [(order.rows, scratch.cached - order.rows)]

    def drafted(self, work: Draft, answer: Drafted) -> list[tuple[str, Message]]:
        """Take the answer of a pass; return the messages that follow, each with its receiver."""
        level = self.levels.get(work.passes[0][0])
        return [] if level is None else self._letters(*level.drafted(answer))

    def _letters(self, above: Message | None, below: Message | None) -> list[tuple[str, Message]]:
        found = list[tuple[str, Message]]()
        if above is not None:
            found.append((self.above, above))
        if below is not None and self.below is not None:
            found.append((self.below, below))
        return found
