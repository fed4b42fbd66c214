"""How far a measurement is: the words it is told in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Say: TypeAlias = Callable[[str, int], None]
"""What happens now, and how many steps of it there are; ("", 1) is one step done."""


def percent(say: Say) -> Callable[[float], None]:
    """A bar of 100 steps, which is told the share of the work that is done."""
    shown = 0

    def tick(share: float) -> None:
        nonlocal shown
        done = int(100 * share)
        if done > shown:
            say("", done - shown)
            shown = done

    return tick
