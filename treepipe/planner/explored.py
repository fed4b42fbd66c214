"""What was asked of a search beyond its ranking, as the file, the page and the terminal take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treepipe.planner.break_even import BreakEven, Regions
from treepipe.planner.capacity import Capacity
from treepipe.planner.robustness import Mishap
from treepipe.planner.sensitivity import Sensitivity


@dataclass(frozen=True, slots=True)
class Explored:
    """What inputs do to the best plan and to its rank, how much load plans take, and what becomes
    of the best one where things go wrong; empty or None where that was not asked for."""

    sensitivities: Sequence[Sensitivity] = ()
    break_even: BreakEven | None = None
    regions: Regions | None = None
    capacities: Sequence[Capacity] = ()
    mishaps: Sequence[Mishap] = ()


NOTHING_MORE = Explored()
"""The ranking alone was asked for."""
