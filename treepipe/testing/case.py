"""A trial, code that tries a subject (a system, or an executor of trees) and observes laws; and a
case of it: the values drawn for it, by name, which replay it and can be made smaller.

Hypothesis draws a case. It would also shrink its draws, among which the moves outnumber everything
else; here the values that replay it become smaller one step at a time: fewer requests, events and
moves, and smaller numbers. The fewer events its schedules are told, the smaller is a case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from treepipe.core.registry import keys_of
from treepipe.core.system import System
from treepipe.testing.strategies import agree

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


Values = Mapping[str, Any]
Size = tuple[int, int, int]
"""Events, all steps of the story, and characters of the values."""
WHOLE = 64
"""A chunk that holds any prompt of a trial."""
Measure = Callable[[Values], Size | None]


def shrunk(system: System, values: Values, measure: Measure, go_on: Callable[[], bool]) -> Values:
    """Return the smallest case found.

    Args:
        measure: returns a case's size, None if it does not break the same law.
        go_on: whether there is time to try another one.
    """
    size = measure(values) if go_on() else None
    while size is not None:
        for smaller in _smaller_cases(system, values):
            if not go_on():
                return values
            found = measure(smaller)
            if found is not None and found < size:
                values, size = smaller, found
                break
        else:
            return values
    return values


def _smaller_cases(system: System, values: Values) -> Iterator[Values]:
    for name, value in values.items():
        if name == "parameters":
            yield from ({**values, name: each} for each in _parameters(system, value))
        elif name == ORDER:
            yield from ({**values, name: each} for each in _orders(value))
        else:
            yield from ({**values, name: each} for each in _smaller(value))


def _parameters(system: System, values: Values) -> Iterator[Values]:
    keys = keys_of([system.parameters])
    # Prompts in one piece take fewer events than those in small chunks.
    yield {**values, "prefill_chunk": max(WHOLE, values["prefill_chunk"])}
    for name, value in values.items():
        least = keys[name][1].metadata["least"]
        for each in _smaller(value, 0 if least is None else least):
            changed = {**values, name: each}
            if agree(system.parameters, changed):
                yield changed


def _orders(order: list[int]) -> Iterator[list[int]]:
    """Yield orders whose moves are fewer, or more often the oldest one, large parts at first."""
    yield from (order[: len(order) * eighths // 8] for eighths in (1, 4, 6, 7))
    for part in _parts(order):
        if any(order[part]):
            yield [0 if i in range(part.start, part.stop) else n for i, n in enumerate(order)]


def _parts(values: list[Any]) -> Iterator[slice]:
    """Yield the whole list, its halves, and so on down to single values."""
    length = len(values)
    while length:
        for first in range(0, len(values), length):
            yield slice(first, first + length)
        length //= 2


def _least(value: Any, least: float) -> Any:
    if isinstance(value, int) and value > least:
        return type(value)(least)
    if isinstance(value, frozenset):
        return frozenset()
    if isinstance(value, (list, tuple)):
        return type(value)([_least(each, least) for each in value])
    return value


def _smaller(value: Any, least: float = 1) -> Iterator[Any]:
    """Yield values of the same kind, the smallest ones first."""
    if isinstance(value, bool):
        yield from [False] * value
        return
    if isinstance(value, list):
        shorter = (value[: part.start] + value[part.stop :] for part in _parts(value))
        yield from filter(None, shorter)
    smallest = _least(value, least)
    if smallest != value:
        yield smallest
    if isinstance(value, int):
        yield from [each for each in ((value + int(least)) // 2, value - 1) if each > least]
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            for smaller in _smaller(each, least):
                yield type(value)([*value[:i], smaller, *value[i + 1 :]])
