"""A chain that is drafted without end, and verified as far as it has come (``pipespec``).

(PipeSpec's code, ``decoding.py``; AMUSD, of two models, is its ancestor.) The target verifies all
that is drafted, at most ``ahead`` tokens at once, as soon as the draft is ``gamma`` - 1 tokens
ahead. Then the draft compares the tokens that both have, and begins anew below the target's
where they differ. It is never told a token that it has not come to: behind a chain that is accepted
whole it guesses the target's own token, and at a wrong guess the next pass verifies the root alone.
With ``draft_ahead`` = false the two take turns. With ``lookup`` there are three levels: prompt
lookup, which takes no time, is ahead of the draft, whose passes verify its tokens. A draft of the
draft, a model on another device (``levels.py``), does the same, and takes its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treepipe.core.decoding.in_flight import Walk
from treepipe.core.decoding.keys import ChainKeys
from treepipe.core.levels import Neighbour
from treepipe.core.messages import Text
from treepipe.core.protocol import Command, Drafted, Event
from treepipe.core.registry import key
from treepipe.core.schedules.dsd import ChainAhead
from treepipe.core.system import Block, Load, ScheduleContext, System

SUFFIX = 3
"""Most tokens that prompt lookup looks for (as the draft source ``ngram``)."""


@dataclass(frozen=True)
class PipeSpecKeys(ChainKeys):
    """Keys of the chain; the paper's lookahead K is ``gamma``, of which K = 0 is 1."""

    gamma: int = key(1, "tokens of a chain; StarSD's depth d", least=1)
    draft_ahead: bool = key(True, "the next tree is drafted while this one is verified")
    ahead: int = key(
        99, "nodes in flight below the root, at most (but for one micro-batch)", least=1
    )
    lookup: int = key(0, "tokens of prompt lookup that a pass of the draft verifies", least=0)

    def lengths(self) -> dict[str, int]:
        return {"ahead": self.most}

    @property
    def most(self) -> int:
        """Number of drafted tokens in one pass, at most."""
        return max(self.ahead, self.gamma)

    @property
    def drafts_ahead(self) -> bool:
        return self.draft_ahead


class ChainWithoutEnd(ChainAhead):
    """A request whose draft is as far ahead as it can be."""

    def __init__(self, context: ScheduleContext, keys: PipeSpecKeys) -> None:
        super().__init__(context, keys.prefill_chunk, keys.gamma)
        self._keys = keys
        self._lookup = 0 if context.independent_levels else keys.lookup
        self._below = Neighbour() if context.below else None
        self._window_tokens = 0
        self._untold = self._strayed = False  # the draft has not come to the root, or past it

    @property
    def _ahead(self) -> int:
        """Number of tokens that the draft has behind the root's place."""
        return self._draft.ahead - self._untold

    @property
    def _text(self) -> list[int]:
        """The draft's text: the committed one as far as it has come, and what it has drafted."""
        return [*self._flying.text[: -1 if self._untold else None], *self._draft.behind]

    @property
    def _room(self) -> int:
        """Number of tokens that the draft may still draft now."""
        window = self._window_tokens if self._flying.opened else 0
        return self._keys.most + window - self._draft.ahead

    def handle(self, event: Event) -> Sequence[Command]:
        """Take an event; the text of the draft below is looked at when a pass begins."""
        if isinstance(event, Text) and self._below is not None:
            self._below.hear(event)
            return []
        return super().handle(event)

    def _go_behind(self, walk: Walk, window: int) -> list[Command]:
        """Keep the draft's chain also where it has not come to the target's token."""
        draft = self._draft
        guess, whole = draft.used + window, len(walk.accepted) > window
        self._untold, untold = whole and len(draft.tokens) <= guess, self._untold
        right = self._untold or (whole and draft.tokens[guess][0] == walk.next_token)
        if untold or not right:
            draft.restart()
            self._untold = self._strayed = False
            return self._pending.withdraw()
        draft.used = guess + (not self._untold)
        return []

    def _drafted(self, event: Drafted) -> list[Command]:
        draft = self._draft
        draft.absorb(event)
        if self._untold and not self._strayed and draft.ahead:
            self._strayed = draft.tokens[draft.used][0] != self._flying.tree.tokens[0]
            self._untold = self._strayed
            draft.used += not self._strayed
        return self._go_on()

    def _guesses(self) -> Sequence[int]:
        """Take what the draft below has behind the draft's text; or look up what followed its last
        tokens before, by the longest suffix of at most ``SUFFIX`` tokens."""
        if self._below is not None:
            return self._below.guesses(self._text, min(self._keys.most, self._room - 1))
        text = self._text if self._lookup else []
        for length in range(min(SUFFIX, len(text) - 1), 0, -1):
            for end in range(len(text) - 1, length - 1, -1):
                if text[end - length : end] == text[-length:]:
                    return text[end : end + self._lookup]
        return ()

    def _go_on(self) -> list[Command]:
        """Feed what is drafted if no chain is under way and enough is; draft a token more."""
        commands, flying, draft, keys = list[Command](), self._flying, self._draft, self._keys
        if not flying.opened and (draft.ended or self._ahead >= keys.gamma - 1):
            self._window_tokens = 0 if self._untold else min(draft.ahead, keys.most)
            commands.append(self._window(self._window_tokens))
        goes_on = keys.draft_ahead or not flying.opened
        goes_on = goes_on and self._room > 0 and not draft.ended
        self._pending.hidden = int(self._untold)
        more = self._draft_more() if goes_on else []
        return [*commands, *more, *self._news_below()]

    def _news_below(self) -> list[Command]:
        """Send the draft below what is new in the text."""
        if self._below is None:
            return []
        final = len(self._flying.text) - self._untold
        return [*self._below.news(self._request.session, self._text, final)]


def _make(parameters: PipeSpecKeys, context: ScheduleContext) -> ChainWithoutEnd:
    return ChainWithoutEnd(context, parameters)


def _segment_tokens(parameters: PipeSpecKeys, stages: int) -> int:
    return parameters.most + 1


def _scratch_tokens(parameters: PipeSpecKeys, stages: int) -> int:
    """Count the tokens under way and those drafted behind them, twice as they are accepted late."""
    return 4 * parameters.most + 4 + 2 * parameters.lookup


def _grid(load: Load) -> Sequence[Block]:
    return ({"gamma": (1, 4, 8), "draft_ahead": (True,)},)


SYSTEMS = (
    System(
        name="pipespec",
        year=2025,
        order=12,
        source="PipeSpec (its code); AMUSD, arXiv 2410.17375",
        summary="a chain drafted without end, verified as far as it is",
        parameters=PipeSpecKeys,
        make=_make,
        tree_tokens=_segment_tokens,
        segment_tokens=_segment_tokens,
        scratch_tokens=_scratch_tokens,
        drawn=True,
        chains=True,
        levels=True,
        grid=_grid,
    ),
)
