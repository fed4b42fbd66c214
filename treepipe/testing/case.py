"""A trial, code that tries a subject (a system, or an executor of trees) and observes laws; and a
case of it: the values drawn for it, by name, which replay it.

Hypothesis draws a case and shrinks it; ``TrialCase.values`` of the smallest one is enough to run it
again without hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from treepipe.testing.story import Story

ORDER = "order"
"""Name of the list of moves that the case chose."""
_CHOICES = st.binary(min_size=16, max_size=16)
"""Choices are drawn many at once, since a draw takes longer than a move."""


@dataclass
class TrialCase:
    """The values of one try of a trial.

    Attributes:
        values: drawn values by name, and under ``ORDER`` each choice among the possible moves (a
            missing one is 0, the oldest move).
        story: notes what happens, None if nobody reads it.
    """

    source: Callable[[st.SearchStrategy[Any]], Any] | None = None
    values: dict[str, Any] = field(default_factory=dict)
    story: Story | None = None
    _chosen: int = 0
    _ahead: list[int] = field(default_factory=list)

    @classmethod
    def replaying(cls, values: Mapping[str, Any], story: Story | None = None) -> TrialCase:
        """Make the case of known values; raise ``KeyError`` at a value that is not among them."""
        return cls(None, {ORDER: [], **values}, story)

    def draw(self, name: str, strategy: st.SearchStrategy[Any]) -> Any:
        """Return the value of this name."""
        if self.source is not None:
            self.values[name] = self.source(strategy)
        return self.values[name]

    def choose(self, count: int) -> int:
        """Return the number of one of ``count`` possible moves."""
        if count == 1:
            return 0
        order = self.values.setdefault(ORDER, [])
        if self.source is not None:
            if not self._ahead:
                self._ahead = [*reversed(self.source(_CHOICES))]
            order.append(self._ahead.pop() % count)
        self._chosen += 1
        return order[self._chosen - 1] % count if self._chosen <= len(order) else 0

    def shortened(self) -> dict[str, Any]:
        """Return the values without what does not matter: the last choices that are 0."""
        order = [*self.values.get(ORDER, ())]
        while order and not order[-1]:
            order.pop()
        rest = {name: value for name, value in self.values.items() if name != ORDER}
        return {**rest, ORDER: order} if order else rest


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
