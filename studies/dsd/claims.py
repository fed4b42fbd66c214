"""DSD's printed claims against its own formulas: table 3, and the region of the largest gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treepipe.results.sheet import Sheet, columns
from treepipe.studies.dsd.testbed import Cell
from treepipe.studies.reproduction import published

_CLAIMED = published()["dsd"]["best_region"]
REGION_NODES: tuple[int, int] = tuple(_CLAIMED["nodes"])
REGION_RATIO: tuple[float, float] = tuple(_CLAIMED["t1_over_t0"])
"""Borders of the claimed best region in t1 / t0; the paper excludes them."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A row of table 3 as printed, and what follows from it by the paper's own formula."""

    nodes: int
    ratio: float
    saving: float

    @property
    def ways(self) -> float:
        """(N - 1) t1 / t0."""
        return (self.nodes - 1) * self.ratio

    @property
    def tokens_of_communication(self) -> float:
        """k if the saving is a share of communication: (k - 1) / k.

        >>> Saving(4, 5.0, 0.75).tokens_of_communication
        4.0
        """
        return 1 / (1 - self.saving)

    @property
    def tokens_of_time(self) -> float:
        """k if the saving is a share of all time: (k - 1) / k of x / (1 + x), x = (N - 1) t1 / t0.

        >>> round(Saving(4, 5.0, 0.75).tokens_of_time, 6)
        5.0
        """
        return 1 / (1 - self.saving * (1 + self.ways) / self.ways)

    @property
    def gain(self) -> float:
        """The gain of a window of ``tokens_of_communication`` tokens by the paper's formula."""
        return Cell(self.nodes, self.ratio, 0.0).gain * self.tokens_of_communication


def table3() -> list[Saving]:
    rows = published()["dsd"]["table3"]
    return [Saving(row["nodes"], row["t1_over_t0"], row["saving"]) for row in rows]


def table3_sheet(name: str) -> Sheet:
    """Show printed savings, the tokens per window that they imply, and the resulting gain."""
    heads = columns(
        *("N|d", "t1/t0|g", "saving, printed|.0%", "(N - 1)/N|.1%"),
        *("k, as a share of communication|.2f", "k, as a share of all time|.2f"),
        "gain with the first k|.2f",
    )
    title = "Table 3 by its own formula: the tokens k of a window it asks for"
    sheet = Sheet(title, heads, name=name)
    for row in table3():
        ks = row.tokens_of_communication, row.tokens_of_time
        above = (row.nodes - 1) / row.nodes
        sheet.add(row.nodes, row.ratio, row.saving, above, *ks, row.gain)
    return sheet


def in_region(cell: Cell) -> bool:
    """Return whether the claim counts the cell among the best (its borders in t1/t0 included)."""
    nodes, ratio = REGION_NODES, REGION_RATIO
    return nodes[0] <= cell.nodes <= nodes[1] and ratio[0] <= cell.ratio <= ratio[1]


def region_fields(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return expected gains inside the claimed region, below it, and the best one beyond it."""
    gains = {cell: cell.expected_gain for cell in cells}
    inside = [gain for cell, gain in gains.items() if in_region(cell)]
    beyond = {
        cell.label: gain
        for cell, gain in gains.items()
        if cell.nodes > REGION_NODES[1] or cell.ratio > REGION_RATIO[1]
    }
    below = [gain for cell, gain in gains.items() if cell.ratio < REGION_RATIO[0]]
    best = max(beyond, key=lambda label: beyond[label])
    named = {"least": min(inside), "most": max(inside), "below": min(below)}
    return {**named, "beyond": beyond[best], "where": best}
