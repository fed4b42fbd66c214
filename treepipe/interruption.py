"""Signals that end a command: Ctrl-C, which a terminal sends to all processes of a command, SIGTERM
(``timeout``, a container's stop) and SIGHUP (a closed terminal).

The main process notes the signal and ends as after any exception: it ends its child processes,
tells what is written, and returns ``exit_code``.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_S = 1.0
"""``timeout`` sends its signal twice, to the command and to its group: once more within this time
is the same ending."""


class Interruption:
    """A record of the signal that ended a command; an interrupted import may raise any error."""

    def __init__(self) -> None:
        self._number = 0
        self._noted_s = -SAME_S

    @property
    def happened(self) -> bool:
        return self._number > 0

    @property
    def exit_code(self) -> int:
        """128 and the signal's number, as a shell reports it: 130 after Ctrl-C."""
        return 128 + (self._number or signal.SIGINT)

    def _note(self, number: int, frame: FrameType | None) -> None:
        again = number == self._number and monotonic() - self._noted_s < SAME_S
        self._number, self._noted_s = number, monotonic()
        if not again:
            raise KeyboardInterrupt

    @classmethod
    @contextmanager
    def noted(cls) -> Iterator[Interruption]:
        """Let each of ``SIGNALS`` raise ``KeyboardInterrupt``, unless it is ignored or handled."""
        found = cls()
        before = {each: signal.getsignal(each) for each in SIGNALS}
        ours = [n for n, h in before.items() if h in (signal.SIG_DFL, signal.default_int_handler)]
        for each in ours:
            signal.signal(each, found._note)
        try:
            yield found
        finally:
            for each in ours:
                signal.signal(each, before[each])


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
