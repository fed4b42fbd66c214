"""DSD's printed claims against its own formulas: table 3, and the region of the largest gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treepipe.results.sheet import Column, Sheet
from treepipe.studies.dsd.testbed import Cell
from treepipe.studies.reproduction import published

_CLAIMED = published()["dsd"]["best_region"]
REGION_NODES: tuple[int, int] = tuple(_CLAIMED["nodes"])
REGION_RATIO: tuple[float, float] = tuple(_CLAIMED["t1_over_t0"])
"""Borders of the claimed best region; of t1 / t0 the paper leaves them out."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A row of table 3, and what its own formula makes of it.

    Attributes:
        nodes, ratio, saving: as printed.
    """

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
        """k if it is a share of all time: (k - 1) / k of x / (1 + x), x = (N - 1) t1 / t0.

        >>> round(Saving(4, 5.0, 0.75).tokens_of_time, 6)
        5.0
        """
        return 1 / (1 - self.saving * (1 + self.ways) / self.ways)

    @property
    def gain(self) -> float:
        """The gain that a window of so many tokens would have where communication is all."""
        return Cell(self.nodes, self.ratio, 0.0).gain * self.tokens_of_communication


def table3() -> list[Saving]:
    """The savings of the paper's Table 3, as printed."""
    rows = published()["dsd"]["table3"]
    return [Saving(row["nodes"], row["t1_over_t0"], row["saving"]) for row in rows]


def table3_sheet(name: str) -> Sheet:
    """Printed savings, the tokens per window they ask for, and the gain these would give."""
    columns = [
        Column("N", shown="d"),
        Column("t1/t0", shown="g"),
        Column("saving, printed", shown=".0%"),
        Column("(N - 1)/N", shown=".1%"),
        Column("k, as a share of communication", shown=".2f"),
        Column("k, as a share of all time", shown=".2f"),
        Column("gain with the first k", shown=".2f"),
    ]
    sheet = Sheet(name, "Table 3 by its own formula: the tokens k of a window it asks for", columns)
    for row in table3():
        ks = row.tokens_of_communication, row.tokens_of_time
        above = (row.nodes - 1) / row.nodes
        sheet.add(row.nodes, row.ratio, row.saving, above, *ks, row.gain)
    return sheet


def in_region(cell: Cell) -> bool:
    """Whether the claim counts it among the best (its borders in t1/t0 included)."""
    nodes, ratio = REGION_NODES, REGION_RATIO
    return nodes[0] <= cell.nodes <= nodes[1] and ratio[0] <= cell.ratio <= ratio[1]


@dataclass(frozen=True, slots=True)
class Region:
    """Expected gains inside the claimed region, below it, and the best one beyond it."""

    least: float
    most: float
    below: float
    beyond: float
    where: str


def region(cells: Sequence[Cell]) -> Region:
    """Where the gain is highest, and how far the claimed region is from that."""
    inside = [cell.expected_gain for cell in cells if in_region(cell)]
    beyond = {
        cell.label: cell.expected_gain
        for cell in cells
        if cell.nodes > REGION_NODES[1] or cell.ratio > REGION_RATIO[1]
    }
    below = [cell.expected_gain for cell in cells if cell.ratio < REGION_RATIO[0]]
    best = max(beyond, key=lambda label: beyond[label])
    return Region(min(inside), max(inside), min(below), beyond[best], best)
