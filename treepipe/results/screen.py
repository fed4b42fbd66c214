"""What a reader sees of an answer, whatever the question: first the answer in a sentence, then a
table, what binds, what would change it, and warnings.

Commands, ``repr``, notebooks, pages and files take it from one ``Screen``, which computes nothing.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import wrap

from treepipe.files.reading import visible
from treepipe.results.sheet import Sheet

LINES, COLUMNS = 23, 80
"""Most lines of a screen that is as wide as this or wider; a terminal's prompt takes one more."""
ROWS, FEW, NOTES, WARNINGS, LONGEST = 8, 7, 5, 3, 6
"""Most rows of a screen's table; rows that stay where sentences are cut to a line; most notes and
warnings, and lines of the answer."""


@dataclass(frozen=True)
class Screen:
    """An answer, in the order of presentation.

    Attributes:
        says: the answer's sentence, without a full stop.
        exact: inputs without an uncertainty, which the sentence names before its figures.
        table: what differs most, the best first.
        notes: sentences: what binds, and what would change the answer.
        warnings: without a full stop.
        tables, sentences: all of it, in place of the table and the notes.
        more: what they have besides, in words.
        rows: most rows of the table.
    """

    says: str
    table: Sheet | None = None
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    exact: Sequence[str] = ()
    tables: Sequence[Sheet] = ()
    sentences: Sequence[str] = ()
    more: Sequence[str] = ()
    rows: int = ROWS

    @property
    def answer(self) -> str:
        """The sentence with which everything begins that shows the answer."""
        inputs = dict.fromkeys(each.partition(", as ")[0] for each in self.exact)
        first = f"Taking {' and '.join(inputs)} as exact: " if inputs else ""
        return f"{first}{self.says}."

    @property
    def doubts(self) -> list[str]:
        """All warnings as sentences, those about inputs that count as exact among them."""
        exact = [f"taken as exact: {each}" for each in dict.fromkeys(self.exact)]
        return [f"Warning: {each}." for each in dict.fromkeys([*self.warnings, *exact])]

    def lines(self, width: int = COLUMNS, flag: str = "") -> list[str]:
        """Return the lines of a screen, at most ``LINES`` of them if it has ``COLUMNS``; ``flag``
        is the option that shows the rest."""
        found, whole = list[str](), self.rows
        begin = {_cut(each, width, 1)[0]: each for each in reversed(self.doubts)}
        warned = [*reversed(begin.values())][:WARNINGS]
        tries = [(2, 2, whole), *((2, 1, n) for n in range(whole, FEW - 1, -1))]
        for most, least, rows in [*tries, *((1, 1, n) for n in range(whole, -1, -1))]:
            table, columns = self.table.plain(width, rows) if self.table else ([], 0)
            rest = self._rest(rows, len(warned), flag, columns)
            cut = [line for text in self.notes[:NOTES] for line in _cut(text, width, most)]
            cut += [line for text in warned for line in _cut(text, width, least)]
            cut += [line for text in rest for line in _cut(text, width, 1)]
            found = [*_cut(self.answer, width, LONGEST), *table, *cut]
            if len(found) <= LINES:
                gap = [""] * (bool(table) and len(found) + 2 <= LINES)
                return [*found[: -len(table + cut)], *gap, *table, *gap, *cut] if gap else found
        return found

    def _rest(self, rows: int, warned: int, flag: str = "", columns: int = 0) -> list[str]:
        """Count what is left out besides so many rows and warnings, and those columns."""
        left_out = {
            "row": 0 if self.table is None else len(self.table.rows) - rows,
            "remark": len(self.notes) - NOTES,
            "warning": len(self.doubts) - warned,
        }
        rest = [f"{n} more {name}{'s' * (n > 1)}" for name, n in left_out.items() if n > 0]
        rest += [f"{columns} column{'s' * (columns > 1)} in full"] * (columns > 0)
        if not (rest or self.more):
            return []
        return [f"{f'{flag} shows' if flag else 'Not shown'}: {', '.join([*self.more, *rest])}."]

    def html(self) -> str:
        """Return what a notebook shows: the screen, and all else behind a click."""
        shown = ""
        if self.table is not None:
            shown = replace(self.table, rows=self.table.rows[: self.rows]).html()
        below = _paragraphs([*self.notes[:NOTES], *self.doubts[:WARNINGS]])
        rest = "".join(sheet.html() for sheet in self.tables)
        rest += _paragraphs([*self.sentences, *self.notes[NOTES:], *self.doubts[WARNINGS:]])
        title = html.escape(" ".join(["All of it.", *self._rest(self.rows, WARNINGS)]))
        behind = f"<details><summary>{title}</summary>{rest}</details>" if rest else ""
        return f"<p><b>{html.escape(self.answer)}</b></p>{shown}{below}{behind}"


class Shown:
    """What has a ``Screen``, and is shown by it in a console and in a notebook."""

    __slots__ = ()

    @property
    def screen(self) -> Screen:
        """What is shown of it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n".join(self.screen.lines())

    def _repr_html_(self) -> str:
        return self.screen.html()


def _paragraphs(sentences: Sequence[str]) -> str:
    return "".join(f"<p>{html.escape(each)}</p>" for each in sentences)


def _cut(text: str, width: int, most: int) -> list[str]:
    """Break a sentence into ``most`` lines, and mark what is left out."""
    indent = "  " if most < LONGEST else ""
    return wrap(visible(text), width, max_lines=most, placeholder=" …", subsequent_indent=indent)
