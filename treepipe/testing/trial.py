"""A trial: code that tries a subject (a system, or an executor of trees) and observes laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from treepipe.testing.case import TrialCase


def always(subject: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial.

    Attributes:
        run: tries the subject in one case; raises ``LawBroken`` where a law does not hold.
        examples: number of cases of a usual check.
        applies: whether the subject can be tried.
        unless: why it cannot, where it cannot.
    """

    name: str
    run: Callable[[Any, TrialCase], None]
    examples: int
    applies: Callable[[Any], bool] = always
    unless: str = ""
