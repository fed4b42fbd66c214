"""Handling of Ctrl-C, which a terminal sends to all processes of a command: the main process
records it, child processes never receive it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """A record of whether Ctrl-C was pressed; an interrupted import may raise any other error."""

    happened = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.happened = True
        signal.default_int_handler(number, frame)

    @classmethod
    @contextmanager
    def noted(cls) -> Iterator[Interruption]:
        """Record Ctrl-C while it raises ``KeyboardInterrupt`` as usual, unless it is ignored."""
        found = cls()
        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, found._note)
        try:
            yield found
        finally:
            if before is signal.default_int_handler:
                signal.signal(signal.SIGINT, before)


@contextmanager
def children_shielded(*more: signal.Signals) -> Iterator[None]:
    """Start processes in this context to block Ctrl-C and ``more`` in them; the parent must end
    them.

    A child's own handler works only once its code is loaded, which takes seconds; until then Ctrl-C
    would print a traceback. Children inherit blocked signals; the parent receives them afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *more})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
