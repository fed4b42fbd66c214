"""The systems: a file each, named after the system or its paper, ending in its ``SYSTEMS``.

Nothing here may import a clock, a random number, a model or a world (a test guards it). The table
is made of the records that the files hold, so a new file is all that a new system needs. The same
file may also be a module of another installed package, which names it under the entry point group
``treepipe.systems``.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from types import MappingProxyType, ModuleType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from treepipe.core.errors import UserError
from treepipe.core.protocol import Schedule
from treepipe.core.system import Parameters, Seat, System

GROUP = "treepipe.systems"


@lru_cache(maxsize=1)
def systems() -> Mapping[str, System]:
    """All systems by name, in the order that their records say.

    Raises:
        UserError: an installed one cannot be loaded, two of them have the same name, or a key of
            theirs means different things.
    """
    return MappingProxyType(table_of([*_own(), *_installed()]))


def table_of(found: Iterable[System]) -> dict[str, System]:
    """Systems by name, in their order.

    Raises:
        UserError: two of them have one name, or share a key of which they say different things.
    """
    table: dict[str, System] = {}
    keys: dict[str, tuple[str, Any]] = {}
    for system in sorted(found, key=lambda system: (system.order, system.year)):
        if system.name in table:
            raise UserError(f"two systems are called {system.name!r}")
        table[system.name] = system
        for key, meaning in _meanings(system.parameters):
            first, agreed = keys.setdefault(key, (system.name, meaning))
            if meaning != agreed:
                raise UserError(
                    f"systems {first!r} and {system.name!r} share the key {key}, but with "
                    f"different types or least values; a scenario has one key of that name"
                )
    return table


def _meanings(parameters: type[Parameters]) -> Iterator[tuple[str, Any]]:
    """Keys, each with its type (None aside) and its smallest value."""
    hints = get_type_hints(parameters)
    for each in dataclasses.fields(parameters):
        yield each.name, (_without_none(hints[each.name]), each.metadata["least"])


def _without_none(hint: Any) -> frozenset[Any]:
    """The types that a value may have where there is one.

    >>> _without_none(int | None) == _without_none(int), _without_none(str) == _without_none(int)
    (True, False)
    """
    allowed = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return frozenset(allowed) - {type(None)}


def _own() -> Iterator[System]:
    for info in pkgutil.iter_modules(__path__):
        yield from _records(importlib.import_module(f"{__name__}.{info.name}"))


def _installed() -> Iterator[System]:
    for entry in entry_points(group=GROUP):
        try:
            yield from _records(entry.load())
        except Exception as error:  # whatever another package does wrong
            raise UserError(
                f"installed system {entry.name!r} ({entry.value}) cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error


def _records(module: ModuleType) -> Sequence[System]:
    """The records of a system's file; raises ``TypeError`` if it has none."""
    records = getattr(module, "SYSTEMS", None)
    if not isinstance(records, tuple) or not all(isinstance(each, System) for each in records):
        raise TypeError(f"{module.__name__} has no tuple SYSTEMS of System records")
    return records


@dataclass(frozen=True, slots=True)
class Chosen:
    """A system with its parameters, as a scenario chooses it; travels to the draft's process.

    Attributes:
        name: of the system.
        drawn: candidates are draws from the draft's distribution.
        reads_states: the draft reads the target's states of committed tokens.
    """

    name: str
    parameters: Parameters
    drawn: bool = False
    reads_states: bool = False

    @property
    def system(self) -> System:
        return systems()[self.name]

    def __call__(self, session: int, stages: int) -> Schedule:
        """A fresh schedule for one request."""
        seat = Seat(session, stages, self.drawn, self.reads_states)
        return self.system.make(self.parameters, seat)
