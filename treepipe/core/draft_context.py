"""How many tokens a draft has in its cache before each pass: what the pass's time depends on.

Law of this file: it follows the passes of one request as ``DraftPass`` defines them, and nothing
else; both worlds ask it.
"""

from __future__ import annotations

from treepipe.core.protocol import DraftPass


class DraftContext:
    """What the draft holds of one request.

    >>> context = DraftContext()
    >>> context.part(DraftPass(1, (5, 6, 7), (), (), True, 2))  # reads three tokens
    (3, 0)
    >>> context.part(DraftPass(2, (), (8, 9), (-1, -1), False, 2))  # two nodes behind them
    (2, 3)
    >>> context.part(DraftPass(3, (), (4,), (-1,), False, 2, keep=(1,), accepted=1))
    (1, 4)
    """

    def __init__(self) -> None:
        self._read = 0
        self._scratch = 0

    def part(self, order: DraftPass) -> tuple[int, int]:
        """Follow one pass; its rows, and the tokens cached before it."""
        if order.reset:
            self._scratch = 0
        elif order.keep is not None:
            self._scratch = len(order.keep) - order.accepted
            self._read += order.accepted
        cached = self._read + self._scratch
        if order.catch_up:
            self._read += order.rows
        else:
            self._scratch += order.rows
        return order.rows, cached
