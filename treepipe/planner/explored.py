"""What was asked of a search beyond its ranking, as the file, the page and the terminal take it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from treepipe.planner.break_even import Axis, BreakEven, Regions, break_evens
from treepipe.planner.capacity import Capacity, capacities
from treepipe.planner.halving import Found
from treepipe.planner.robustness import Mishap, mishaps
from treepipe.planner.sensitivity import Sensitivity, sensitivities

Analysis: TypeAlias = Callable[[Callable[[str, int], None]], dict[str, Any]]
"""From where progress is told to fields of ``Explored``."""


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


def analyses(
    found: Found, axes: Sequence[Axis], *, sensitivity: bool, capacity: bool, robust: bool
) -> list[Analysis]:
    """What was asked for, in the order in which it is shown. Args: ``axes``: of a break-even."""
    asked = list[Analysis]()
    if sensitivity:
        asked.append(lambda say: {"sensitivities": sensitivities(found, say)})
    if axes:
        names = ("break_even", "regions")
        asked.append(lambda say: dict(zip(names, break_evens(found, axes, say), strict=True)))
    if capacity:
        asked.append(lambda say: {"capacities": capacities(found, say)})
    if robust:
        asked.append(lambda say: {"mishaps": mishaps(found, say)})
    return asked
