"""A chain drafted ahead while the window before it is verified (``dsd``).

(DSD, section 3: gamma tokens are verified in one pass over the slow links, and drafting hides
behind them.) While a window is under way the draft goes on along its own chain, as if all of the
window and its own next guess were right. If they are, the next window is ready at once.
"""

from __future__ import annotations

from treepipe.core.decoding.keys import ChainKeys, chain_grid
from treepipe.core.decoding.tree_decoding import TreeDecoding
from treepipe.core.errors import ProtocolError
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import Command, Drafted, DraftPass, Returned
from treepipe.core.system import ScheduleContext, System


class ChainAhead(TreeDecoding):
    """A request decoded window by window."""

    listens = True

    def __init__(self, context: ScheduleContext, prefill_chunk: int, gamma: int) -> None:
        super().__init__(context.session, prefill_chunk, keeps=context.keeps)
        self._gamma, self._drawn = gamma, context.drawn
        self._restart()

    def _restart(self) -> None:
        """Forget the tokens drafted below the newest committed token."""
        self._chain: list[
            tuple[int, float]
        ] = []  # drafted behind the tokens that the draft has read
        self._used = 0  # number of them that are committed, the root last
        self._slots = 0  # number of them in the draft's scratch part
        self._read = False

    def _begin(self, root_token: int) -> list[Command]:
        self._flying.open_round(root_token)
        return self._go_on()

    def _returned(self, event: Returned) -> list[Command]:
        flying = self._flying
        if not event.next_tokens:
            raise ProtocolError("a window comes back with the target's token at its root")
        flying.take(event)
        flying.verify(event)
        walk = flying.walk()
        assert walk is not None  # the root came back, so at least it is verified
        commands = flying.commit(walk)
        flying.record_round()
        if self.done:
            return commands
        guess = self._used + self._gamma
        whole = len(walk.accepted) == self._gamma + 1
        if whole and len(self._chain) > guess and self._chain[guess][0] == walk.next_token:
            self._used = guess + 1
        else:
            self._restart()
            self._pending.abandon()
        word = flying.drop_round(walk, lock_step=False)
        flying.open_round(walk.next_token)
        return [word, *commands, *self._go_on()]

    def _drafted(self, event: Drafted) -> list[Command]:
        self._chain.append((int(event.tokens[0][0]), float(event.log_probs[0][0])))
        return self._go_on()

    def _go_on(self) -> list[Command]:
        """Feed the window if it is complete and none is under way; draft the missing tokens."""
        commands: list[Command] = []
        if not self._flying.opened and len(self._chain) >= self._used + self._gamma:
            commands.append(self._window())
        ahead = self._gamma + 1 if self._flying.opened else 0
        if not self._pending.under_way and len(self._chain) < self._used + self._gamma + ahead:
            commands.append(self._pending.ask(self._pass()))
        return commands

    def _window(self) -> Command:
        window = self._chain[self._used : self._used + self._gamma]
        for node, (token, log_prob) in enumerate(window):
            score = self._flying.tree.scores[node] + log_prob
            self._flying.append_layer([token], [node], [score])
        return self._flying.feed(self._gamma + 1, None)

    def _pass(self) -> DraftPass:
        ticket, flying = self._request.ticket(), self._flying
        if not self._read:
            self._read = True
            unread, flying.unread = flying.unread, []
            held = self._pending.held(unread)
            return DraftPass.over_committed(ticket, unread, 1, held, drawn=self._drawn)
        committed = min(self._used, self._slots)
        keep = tuple(range(self._slots)) if committed else None
        self._chain, self._used = self._chain[committed:], self._used - committed
        self._slots -= committed
        flying.unread = flying.unread[committed:]
        token, parent = self._chain[self._slots][0], self._slots - 1 if self._slots else NO_PARENT
        self._slots += 1
        return DraftPass(ticket, (), (token,), (parent,), False, 1, keep, committed, self._drawn)


def _make(parameters: ChainKeys, context: ScheduleContext) -> ChainAhead:
    return ChainAhead(context, parameters.prefill_chunk, parameters.gamma)


def _tree_tokens(parameters: ChainKeys, stages: int) -> int:
    """Count the nodes of a window, and those drafted behind it for the next one."""
    return 4 * parameters.gamma + 4


SYSTEMS = (
    System(
        name="dsd",
        year=2025,
        order=12,
        source="DSD, section 3",
        summary="chains drafted ahead",
        parameters=ChainKeys,
        make=_make,
        tree_tokens=_tree_tokens,
        segment_tokens=_tree_tokens,
        drawn=True,
        chains=True,
        grid=chain_grid,
        closed_form="chain_ahead",
    ),
)
