"""Drafting while the target verifies: its answer is judged when both are done."""

from __future__ import annotations

from abc import abstractmethod

from treepipe.core.decoding.tree_decoding import TreeDecoding
from treepipe.core.errors import ProtocolError
from treepipe.core.protocol import Command, Returned


class DraftedMeanwhile(TreeDecoding):
    """A request whose passes of the target come back whole, root first."""

    _back: Returned | None = None  # it came before the draft was done

    @abstractmethod
    def _judged(self, event: Returned) -> list[Command]:
        """Follow the target's tokens; no draft pass is under way."""

    def _returned(self, event: Returned) -> list[Command]:
        if not event.next_tokens:
            raise ProtocolError("a pass comes back with the target's token at its first row")
        self._flying.take(event)
        if self._pending.under_way:
            self._back = event
            return []
        return self._judged(event)

    def _drafted_all(self) -> list[Command]:
        """End the draft's part; judge the target's if it is back."""
        back, self._back = self._back, None
        return [] if back is None else self._judged(back)
