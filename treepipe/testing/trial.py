"""A trial: code that plays a system through a world, and observes some of the laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treepipe.core.system import System
from treepipe.testing.case import Case


def always(system: System) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial.

    Attributes:
        run: plays the system through one case; raises ``LawBroken`` where a law does not hold.
        examples: number of cases of a usual check.
        applies: whether a system can be tried.
        unless: why it cannot, where it cannot.
    """

    name: str
    run: Callable[[System, Case], None]
    examples: int
    applies: Callable[[System], bool] = always
    unless: str = ""
