"""Progress of long work: the type of the callback that receives it, and one that ignores it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int], None]
"""Progress callback: the current work and its number of steps; ("", 1) marks one step as done, and
("a sentence", 0) tells what the work has found so far."""


def silent(what: str, steps: int) -> None:
    """Ignore progress."""
