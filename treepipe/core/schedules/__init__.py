"""The systems: a file each, named after the system or its paper, ending in its records.

Nothing here may import a clock, a random number, a model or a world (a test guards it). The table
is made of the records that the files hold, so a new file is all that a new system needs; other
installed packages add theirs under the entry point group ``treepipe.systems`` (each entry names a
``System``).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from types import MappingProxyType

from treepipe.core.errors import UserError
from treepipe.core.protocol import Schedule
from treepipe.core.system import Parameters, Seat, System

GROUP = "treepipe.systems"


@lru_cache(maxsize=1)
def systems() -> Mapping[str, System]:
    """All systems by name, the oldest first, those of one file in its order.

    Raises:
        UserError: two of them have the same name, or an installed one cannot be loaded.
    """
    found: dict[str, System] = {}
    for system in sorted([*_own(), *_installed()], key=lambda system: system.year):
        if system.name in found:
            raise UserError(f"two systems are called {system.name!r}")
        found[system.name] = system
    return MappingProxyType(found)


def _own() -> Iterator[System]:
    for info in pkgutil.iter_modules(__path__):
        yield from getattr(importlib.import_module(f"{__name__}.{info.name}"), "SYSTEMS", ())


def _installed() -> Iterator[System]:
    for entry in entry_points(group=GROUP):
        try:
            system = entry.load()
        except (ImportError, AttributeError) as error:
            raise UserError(f"system {entry.name!r} ({entry.value}): {error}") from None
        if not isinstance(system, System):
            raise UserError(f"system {entry.name!r}: {entry.value} is no System")
        yield system


@dataclass(frozen=True, slots=True)
class Chosen:
    """A system with its parameters, as a scenario chooses it; travels to the draft's process.

    Attributes:
        name: of the system.
        drawn: candidates are draws from the draft's distribution.
    """

    name: str
    parameters: Parameters
    drawn: bool = False

    @property
    def system(self) -> System:
        return systems()[self.name]

    def __call__(self, session: int, stages: int) -> Schedule:
        """A fresh schedule for one request."""
        return self.system.make(self.parameters, Seat(session, stages, self.drawn))
