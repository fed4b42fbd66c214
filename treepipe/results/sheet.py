"""A study's table: numbers once, shown on a terminal, in Markdown, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rich.table import Table

CellValue: TypeAlias = str | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A heading with its unit, and how a number below it is shown (a format specification)."""

    name: str
    unit: str = ""
    shown: str = ".1f"

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, cell: CellValue) -> str:
        """
        >>> Column("error", shown="+.1%").text(-0.0234)
        '-2.3%'
        """
        if cell is None:
            return ""
        if isinstance(cell, bool):
            return "yes" if cell else "NO"
        return cell if isinstance(cell, str) else format(cell, self.shown)


@dataclass(slots=True)
class Sheet:
    """Rows of cells under columns. ``name`` is its file's; None is an empty cell."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: list[tuple[CellValue, ...]] = field(default_factory=list)

    def add(self, *cells: CellValue) -> None:
        """Append a row; raises ``ValueError`` if it has another number of cells."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{self.name}: {len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def rich(self) -> Table:
        """The table for a terminal; numbers stand to the right."""
        table = Table(title=self.title)
        for place, column in enumerate(self.columns):
            words = any(isinstance(row[place], str) for row in self.rows)
            table.add_column(column.heading, justify="left" if words else "right")
        for texts in self._texts():
            table.add_row(*texts)
        return table

    def markdown(self) -> str:
        """A Markdown table under its title in bold.

        >>> print(Sheet("s", "Sums", [Column("n", shown="d"), Column("time", "ms")],
        ...             [(1, 2.25)]).markdown())
        **Sums**
        <BLANKLINE>
        | n | time (ms) |
        |---|---|
        | 1 | 2.2 |
        <BLANKLINE>
        """
        heads = [column.heading for column in self.columns]
        lines = [heads, *self._texts()]
        # A bar inside a cell would begin another one.
        cells = ([text.replace("|", "\\|") for text in line] for line in lines)
        shown = ["| " + " | ".join(line) + " |" for line in cells]
        shown.insert(1, "|" + "---|" * len(heads))
        return "\n".join([f"**{self.title}**", "", *shown, ""])

    def csv(self) -> str:
        """All digits, under the headings."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.heading for column in self.columns])
        writer.writerows(self.rows)
        return file.getvalue()

    def _texts(self) -> list[list[str]]:
        return [
            [column.text(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]
