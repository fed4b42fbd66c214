"""A chain drafted ahead while the window before it is verified (``dsd``).

(DSD, section 3: gamma tokens are verified in one pass over the slow links, and drafting hides
behind them.) While a window is under way the draft goes on along its own chain, as if all of the
window and its own next guess were right. If they are, the next window is ready at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.core.decoding.drafting import ChainDraft
from treepipe.core.decoding.in_flight import Walk
from treepipe.core.decoding.keys import AheadKeys, chain_grid
from treepipe.core.decoding.tree_decoding import TreeDecoding
from treepipe.core.protocol import Command, Drafted, Returned
from treepipe.core.system import ScheduleContext, System


class ChainAhead(TreeDecoding):
    """A request decoded window by window."""

    listens = True

    def __init__(self, context: ScheduleContext, prefill_chunk: int, gamma: int) -> None:
        super().__init__(context.session, prefill_chunk, keeps=context.keeps)
        self._gamma, self._draft = gamma, ChainDraft(drawn=context.drawn)

    def _begin(self, root_token: int) -> list[Command]:
        self._flying.open_round(root_token)
        return self._go_on()

    def _returned(self, event: Returned) -> list[Command]:
        flying = self._flying
        walk, window = flying.judged(event), len(flying.tree) - 1
        commands = flying.commit(walk)
        flying.record_round()
        if self.done:
            return commands
        withdrawn = self._go_behind(walk, window)
        word = flying.drop_round(walk, lock_step=False)
        flying.open_round(walk.next_token)
        return [word, *commands, *withdrawn, *self._go_on()]

    def _go_behind(self, walk: Walk, window: int) -> list[Command]:
        """Keep what is drafted behind a window's last token if that was right, and the draft's
        guess of the next one; else begin anew, and return what withdraws the pass under way."""
        draft = self._draft
        guess, whole = draft.used + window, len(walk.accepted) > window
        if whole and len(draft.tokens) > guess and draft.tokens[guess][0] == walk.next_token:
            draft.used = guess + 1
            return []
        draft.restart()
        return self._pending.withdraw()

    def _drafted(self, event: Drafted) -> list[Command]:
        self._draft.absorb(event)
        return self._go_on()

    def _go_on(self) -> list[Command]:
        """Feed the window if it is complete and none is under way; draft the missing tokens."""
        commands, flying, draft = list[Command](), self._flying, self._draft
        if not flying.opened and (draft.ended or draft.ahead >= self._gamma):
            commands.append(self._window(self._gamma))
        ahead = self._gamma + 1 if flying.opened else 0
        goes_on = draft.ahead < self._gamma + ahead and not draft.ended
        return [*commands, *self._draft_more()] if goes_on else commands

    def _draft_more(self) -> list[Command]:
        """Draft a token more, unless a pass is under way."""
        if self._pending.under_way:
            return []
        order = self._draft.next_pass(self._request.ticket(), self._pending, self._guesses())
        return [self._pending.ask(order)]

    def _guesses(self) -> Sequence[int]:
        """Guesses of the tokens behind the last one that is drafted."""
        return ()

    def _window(self, tokens: int) -> Command:
        """Feed the next tokens that are drafted, at most so many."""
        first = self._draft.used
        self._flying.append_chain(self._draft.tokens[first : first + tokens])
        return self._flying.feed(self._flying.waiting, None)


def _make(parameters: AheadKeys, context: ScheduleContext) -> ChainAhead:
    return ChainAhead(context, parameters.prefill_chunk, parameters.gamma)


def _tree_tokens(parameters: AheadKeys, stages: int) -> int:
    """Count the nodes of a window, and those drafted behind it for the next one."""
    return 4 * parameters.gamma + 4


SYSTEMS = (
    System(
        name="dsd",
        year=2025,
        order=12,
        source="DSD, section 3",
        summary="chains drafted ahead",
        parameters=AheadKeys,
        make=_make,
        tree_tokens=_tree_tokens,
        segment_tokens=_tree_tokens,
        drawn=True,
        chains=True,
        grid=chain_grid,
        closed_form="chain_ahead",
    ),
)
