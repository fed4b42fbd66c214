"""The lock-step of one stage: how many things it may take before it must wait for a word.

(FlowSpec, section 3.3, per request; PipeDec, section 3.1, per pipeline.) What is taken is a segment
or a flight, what is applied a word or a beat. Here is also how a pipeline's stages form groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Groups: TypeAlias = int | tuple[int, ...]
"""Stages in a row that work one after another within a step: so many each, or per group."""


def group_sizes(groups: Groups, stages: int) -> tuple[int, ...]:
    """The stages of each group of a pipeline; groups of one size leave the rest to the last one.

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
        """Whether the next word may be applied: before the thing that waits for it, and after all
        that must not have seen it."""
        return self.taken >= self.applied + self.free
