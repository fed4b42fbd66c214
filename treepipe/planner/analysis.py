"""What a plan can be examined for beside its ranking: the base of all analyses.

An analysis is a class in a file of its own, listed in ``report.py``. The command, the result file,
the terminal and the report loop over these; nothing else knows what an analysis finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from treepipe.results.sheet import Sheet

if TYPE_CHECKING:
    from treepipe.planner.halving import Found
    from treepipe.report.page import Picture


class Analysis:
    """What one analysis found; made without arguments it has found nothing."""

    heading: ClassVar[str]
    """Heading of its chapter in a report."""

    def as_dict(self) -> dict[str, Any]:
        """Its keys in the file ``treepipe.plan/1``."""
        raise NotImplementedError

    def sentences(self) -> list[str]:
        """What it found, in words."""
        return []

    def tables(self, found: Found) -> list[Sheet]:
        """What it found, in figures."""
        return []

    def pictures(self, found: Found) -> list[Picture]:
        """What it found, drawn."""
        return []
