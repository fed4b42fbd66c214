"""Making a case smaller: fewer requests, events and moves, and smaller numbers, one step at a time.

The fewer events its schedules are told, the smaller is a case. Hypothesis would shrink its draws,
among which the moves outnumber everything else; this shrinks the values that replay the case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from treepipe.core.registry import keys_of
from treepipe.core.system import System
from treepipe.testing.case import ORDER
from treepipe.testing.strategies import agree

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
