"""The lock-step of one stage: the number of segments it may take before it must wait for a word.

(FlowSpec, section 3.3, per request; PipeDec, section 3.1, per pipeline, with flights for segments
and beats for words.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Groups: TypeAlias = int | tuple[int, ...]
"""Number of stages in a row that work one after another within a step: equal, or per group."""


def group_sizes(groups: Groups, stages: int) -> tuple[int, ...]:
    """Return the number of stages of each group; equal groups leave the rest to the last one.

    >>> group_sizes(2, 5), group_sizes((1, 4), 5)
    ((2, 2, 1), (1, 4))
    """
    if isinstance(groups, tuple):
        return groups
    return tuple([min(groups, stages - first) for first in range(0, stages, groups)])


@dataclass(slots=True)
class Barrier:
    """The first ``free`` things may be taken at once; then words and things alternate.

    Attributes:
        free: one for each group of stages from this one to the last.
        taken, applied: things and words that the stage is done with.

    >>> barrier = Barrier(free=2)
    >>> barrier.lets(1), barrier.lets(2), barrier.word_is_due
    (True, False, False)
    >>> barrier.taken = 2
    >>> barrier.word_is_due
    True
    >>> barrier.applied = 1
    >>> barrier.lets(2), barrier.word_is_due
    (True, False)
    """

    free: int
    taken: int = 0
    applied: int = 0

    def lets(self, number: int) -> bool:
        """Whether thing ``number`` (from 0) may be taken."""
        return number < self.applied + self.free

    @property
    def word_is_due(self) -> bool:
        """Whether the next word is due: after all that precedes it, before what waits for it."""
        return self.taken >= self.applied + self.free
