"""Ctrl-C: noted in the process that the user sees, and kept from the processes that it starts.

A terminal sends the signal to all processes of a command at once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Whether Ctrl-C was pressed. An import that is interrupted may end in any other error."""

    happened = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.happened = True
        signal.default_int_handler(number, frame)

    @classmethod
    @contextmanager
    def noted(cls) -> Iterator[Interruption]:
        """Note it while it raises ``KeyboardInterrupt`` as always; where it is ignored, it stays
        ignored."""
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
    """Processes started in here never get Ctrl-C, nor ``more``; who started them ends them.

    A child that ignores it by its own code does so only once that is loaded, which takes seconds;
    until then it would answer with a traceback. Blocked signals are handed on to children, and
    nothing is lost here: what comes meanwhile is delivered afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *more})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
