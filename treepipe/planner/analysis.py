"""What a plan can be examined for beside its ranking: the protocol, and all analyses.

An analysis is a class in a file of its own, listed in ``ANALYSES``. The command, the result file,
the terminal and the report loop over these; nothing else knows what an analysis finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from treepipe.planner.break_even import BreakEvenAnalysis
from treepipe.planner.capacity import CapacityAnalysis
from treepipe.planner.halving import Found
from treepipe.planner.robustness import RobustnessAnalysis
from treepipe.planner.sensitivity import SensitivityAnalysis
from treepipe.results.sheet import Sheet

if TYPE_CHECKING:
    from treepipe.report.page import Picture


class Analysis(Protocol):
    """What one analysis found; made without arguments it has found nothing."""

    heading: ClassVar[str]
    """Heading of its chapter in a report."""

    def as_dict(self) -> dict[str, Any]:
        """Its keys in the file ``treepipe.plan/1``."""
        ...

    def sentences(self) -> list[str]:
        """What it found, in words."""
        ...

    def tables(self, found: Found) -> list[Sheet]:
        """What it found, in figures."""
        ...

    def pictures(self, found: Found) -> list[Picture]:
        """What it found, drawn."""
        ...


ANALYSES: tuple[type[Analysis], ...] = (
    SensitivityAnalysis,
    BreakEvenAnalysis,
    CapacityAnalysis,
    RobustnessAnalysis,
)
"""In the order in which they are shown."""


def with_empty(done: Sequence[Analysis]) -> list[Analysis]:
    """Every analysis in its order; those that were not asked for have found nothing."""
    by_kind = {type(each): each for each in done}
    return [by_kind.get(kind) or kind() for kind in ANALYSES]
