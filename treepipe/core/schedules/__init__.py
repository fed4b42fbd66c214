"""The systems: a file each, named after the system or its paper, ending in its ``SYSTEMS``.

Nothing here may import a clock, a random number, a model or a world (a test guards it). The table
is made of the records that the files hold, so a new file is all that a new system needs. The same
file may also be a module of another installed package, which names it under the entry point group
``treepipe.systems``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from treepipe.core.protocol import Schedule
from treepipe.core.registry import Registry
from treepipe.core.system import Parameters, ScheduleContext, System

REGISTRY = Registry("system", "treepipe.systems", "SYSTEMS", System)


@lru_cache(maxsize=1)
def systems() -> Mapping[str, System]:
    """Return all systems by name, in the order of their records.

    Raises:
        UserError: as ``Registry.find``.
    """
    return REGISTRY.find(__name__)


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """A system with its parameters, as a scenario chooses it; travels to the draft's process."""

    name: str
    parameters: Parameters
    drawn: bool = False
    reads_states: bool = False
    independent_levels: bool = False
    below: bool = False

    @property
    def system(self) -> System:
        return systems()[self.name]

    def __call__(self, session: int, stages: int) -> Schedule:
        of_draft = self.drawn, self.reads_states, self.independent_levels, self.below
        context = ScheduleContext(session, stages, *of_draft)
        return self.system.make(self.parameters, context)
