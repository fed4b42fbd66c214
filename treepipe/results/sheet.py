"""Tables whose cells are given once and shown on a terminal, on a page, in Markdown, and as CSV."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rich.table import Table

CellValue: TypeAlias = str | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A heading with its unit, and the format of the numbers below it.

    Attributes:
        shown: a format specification.
        right: whether cells are right-aligned; None: unless some of them are words.
    """

    name: str
    unit: str = ""
    shown: str = ".1f"
    right: bool | None = None

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, cell: CellValue) -> str:
        """Format a cell.

        >>> Column("error", shown="+.1%").text(-0.0234)
        '-2.3%'
        """
        if cell is None:
            return ""
        if isinstance(cell, bool):
            return "yes" if cell else "NO"
        return cell if isinstance(cell, str) else format(cell, self.shown)


def words(*names: str) -> list[Column]:
    """Make columns of words."""
    return [Column(name, right=False) for name in names]


def columns(*heads: str) -> list[Column]:
    """Make columns of headings; a number format may follow a bar.

    >>> columns("system", "time (ms)|.4g")[1]
    Column(name='time (ms)', unit='', shown='.4g', right=None)
    """
    parts = (head.partition("|") for head in heads)
    return [Column(name, shown=shown or ".1f") for name, _, shown in parts]


def figures(*names: str) -> list[Column]:
    """Make columns of figures that are given as texts."""
    return [Column(name, right=True) for name in names]


def notebook(sheets: Iterable[Sheet], sentences: Iterable[str], first: Iterable[str] = ()) -> str:
    """Return what a notebook shows: tables between ``first`` and the other sentences."""
    parts = [f"<p>{html.escape(each)}</p>" for each in first]
    parts += [sheet.html() for sheet in sheets]
    return "".join([*parts, *(f"<p>{html.escape(each)}</p>" for each in sentences)])


@dataclass(slots=True)
class Sheet:
    """Rows of cells under columns; None is an empty cell.

    Attributes:
        name: name of its file, where the table is written to one.
    """

    title: str
    columns: Sequence[Column]
    rows: list[tuple[CellValue, ...]] = field(default_factory=list)
    name: str = ""

    def add(self, *cells: CellValue) -> None:
        """Append a row; raises ``ValueError`` if it has another number of cells."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{self.title}: {len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def rich(self) -> Table:
        """Return the table for a terminal; numbers are right-aligned."""
        table = Table(title=self.title or None)
        for column, right in zip(self.columns, self.right, strict=True):
            table.add_column(column.heading, justify="right" if right else "left")
        for texts in self.texts:
            table.add_row(*texts)
        return table

    @property
    def right(self) -> list[bool]:
        """Whether each column's cells are right-aligned."""
        cells = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        return [
            not any(isinstance(cell, str) for cell in own) if column.right is None else column.right
            for column, own in zip(self.columns, cells, strict=True)
        ]

    @property
    def filled(self) -> Sheet:
        """The sheet without empty columns, its cells as texts."""
        texts = list(zip(*self.texts, strict=True))
        kept = [place for place, own in enumerate(texts) if any(own)]
        right = self.right
        columns = [Column(self.columns[i].heading, right=right[i]) for i in kept]
        rows = list(zip(*(texts[i] for i in kept), strict=True))
        return replace(self, columns=columns, rows=rows)

    def markdown(self) -> str:
        """Return a Markdown table under its title in bold.

        >>> print(Sheet("Sums", [Column("n", shown="d"), Column("time", "ms")],
        ...             [(1, 2.25)]).markdown())
        **Sums**
        <BLANKLINE>
        | n | time (ms) |
        |---|---|
        | 1 | 2.2 |
        <BLANKLINE>
        """
        heads = [column.heading for column in self.columns]
        lines = [heads, *self.texts]
        # A bar inside a cell would begin another cell.
        cells = ([text.replace("|", "\\|") for text in line] for line in lines)
        shown = ["| " + " | ".join(line) + " |" for line in cells]
        shown.insert(1, "|" + "---|" * len(heads))
        return "\n".join([f"**{self.title}**", "", *shown, ""])

    def html(self) -> str:
        """Return the table for a notebook, without empty columns; everything is escaped.

        >>> Sheet("Sums", [Column("n", shown="d")], [(1,)]).html().count("text-align:right")
        2
        """
        shown = self.filled
        styles = [f' style="text-align:{"right" if each else "left"}"' for each in shown.right]

        def row(cells: Sequence[str], tag: str) -> str:
            pairs = zip(cells, styles, strict=True)
            return f"<tr>{''.join(f'<{tag}{s}>{html.escape(c)}</{tag}>' for c, s in pairs)}</tr>"

        lines = [row([column.heading for column in shown.columns], "th")]
        lines += [row(texts, "td") for texts in shown.texts]
        return f"<table><caption>{html.escape(shown.title)}</caption>{''.join(lines)}</table>"

    def csv(self) -> str:
        """Return CSV with all digits, under the headings."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.heading for column in self.columns])
        writer.writerows(self.rows)
        return file.getvalue()

    @property
    def texts(self) -> list[list[str]]:
        """The formatted cells of every row."""
        return [
            [column.text(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]
