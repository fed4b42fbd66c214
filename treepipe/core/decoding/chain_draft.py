"""The chain that a draft goes on along while the target verifies earlier parts of it."""

from __future__ import annotations

from math import inf

from treepipe.core.decoding.pending_pass import PendingPass
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import Drafted, DraftPass


class ChainDraft:
    """Tokens drafted behind those that the draft has read as committed ones.

    Attributes:
        tokens: token ids with their log probabilities.
        used: number of them that are committed, the root last.
        ended: the draft has no candidate behind the last of them.
    """

    def __init__(self, *, drawn: bool) -> None:
        self._drawn = drawn
        self.restart()

    def restart(self) -> None:
        """Forget the tokens drafted below the newest committed token."""
        self.tokens: list[tuple[int, float]] = []
        self.used, self.ended = 0, False
        self._slots = 0  # number of them in the draft's scratch part
        self._read = False

    @property
    def ahead(self) -> int:
        """Number of tokens below the root."""
        return len(self.tokens) - self.used

    def absorb(self, event: Drafted) -> None:
        token, log_prob = int(event.tokens[0][0]), float(event.log_probs[0][0])
        self.ended = log_prob == -inf
        if not self.ended:
            self.tokens.append((token, log_prob))

    def next_pass(self, ticket: int, pending: PendingPass) -> DraftPass:
        """Return the pass for one token more; the first one reads the committed tokens."""
        if not self._read:
            self._read = True
            unread, held = pending.unread, pending.held()
            return DraftPass.over_committed(ticket, unread, 1, held, drawn=self._drawn)
        committed = min(self.used, self._slots)
        keep = tuple(range(self._slots)) if committed else None
        self.tokens, self.used = self.tokens[committed:], self.used - committed
        self._slots -= committed
        token, parent = self.tokens[self._slots][0], self._slots - 1 if self._slots else NO_PARENT
        self._slots += 1
        return DraftPass(ticket, (), (token,), (parent,), False, 1, keep, committed, self._drawn)
