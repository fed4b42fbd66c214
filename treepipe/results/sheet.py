"""Tables whose cells are given once and shown on a terminal, on a page, in Markdown, and as CSV."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size

from treepipe.files.reading import visible

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


LEAST = 24
"""Characters to which a line's words are cut where it has no room; then columns are left out."""


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

    def plain(self, width: int, rows: int | None = None) -> tuple[list[str], int]:
        """Return the headings and the first rows as lines, and the number of columns that are not
        whole: words are cut, to ``LEAST`` characters at most; then the last columns are left out.

        >>> sheet = Sheet("", [*words("plan"), *figures("ms")], [("flowspec", "9.5"), ("pp", "20")])
        >>> sheet.plain(80, 1)
        (['plan       ms', 'flowspec  9.5'], 0)
        """
        shown = replace(self, rows=self.rows[:rows]).filled
        lines = [[visible(text) for text in line] for line in shown.headed]
        whole = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
        sizes = [
            min(size, size if right else LEAST)
            for size, right in zip(whole, shown.right, strict=True)
        ]
        while (room := width - sum(sizes) - 2 * (len(sizes) - 1)) < 0 and len(sizes) > 1:
            sizes.pop()
        for place, size in enumerate(sizes):
            sizes[place] += max(0, min(whole[place] - size, room))
            room -= sizes[place] - size
        texts = ["  ".join(map(_padded, line, sizes, shown.right)).rstrip() for line in lines]
        intact = sum(size == full for size, full in zip(sizes, whole, strict=False))
        return texts, len(whole) - intact

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
        # A bar inside a cell would begin another cell.
        cells = ([text.replace("|", "\\|") for text in line] for line in self.headed)
        shown = ["| " + " | ".join(line) + " |" for line in cells]
        shown.insert(1, "|" + "---|" * len(self.columns))
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

        tags = ["th", *["td"] * len(shown.rows)]
        lines = [row(*each) for each in zip(shown.headed, tags, strict=True)]
        return f"<table><caption>{html.escape(shown.title)}</caption>{''.join(lines)}</table>"

    def csv(self) -> str:
        """Return CSV with all digits, under the headings."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.heading for column in self.columns])
        writer.writerows(self.rows)
        return file.getvalue()

    @property
    def headed(self) -> list[list[str]]:
        """The headings, then the formatted cells of every row."""
        return [[column.heading for column in self.columns], *self.texts]

    @property
    def texts(self) -> list[list[str]]:
        """The formatted cells of every row."""
        return [
            [column.text(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]


def _padded(text: str, size: int, right: bool) -> str:
    """Return a cell of a line, cut with a mark or filled with blanks."""
    if cell_len(text) > size:
        return f"{set_cell_size(text, size - 1)}…"
    blanks = " " * (size - cell_len(text))
    return blanks + text if right else text + blanks
