"""Output on a terminal: progress, and results as tables."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import rich.progress
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from treepipe.progress import Progress
from treepipe.results.sheet import Sheet
from treepipe.results.units import taken_as_exact

if TYPE_CHECKING:  # progress is shown before any result is loaded
    from treepipe.results.result import Result
    from treepipe.results.versus import Comparison


def console(width: int = 120) -> Console:
    """Open standard output with names shown as users wrote them: no ``[x]`` is a style.

    Args: ``width``: width on a pipe, enough for the tables.
    """
    console = Console(markup=False, emoji=False)
    return console if console.is_terminal else Console(width=width, markup=False, emoji=False)


LINE_S = 10.0
"""Seconds between two lines of progress where no bar can be drawn."""


class ProgressBars:
    """A bar per kind of work on a terminal, elsewhere a line every ``LINE_S`` on standard error;
    nothing when quiet.

    A call with (text, steps) opens a bar; ("", n) advances the last one, (text, 0) annotates it, or
    is a line alone before any.
    """

    def __init__(self, quiet: bool) -> None:
        console = Console(stderr=True)
        self._lines = not (quiet or console.is_terminal)
        self._ended = threading.Event()
        self._bars = rich.progress.Progress(
            rich.progress.TextColumn("{task.description:<24}", markup=False),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("{task.fields[found]}", markup=False),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._current: rich.progress.TaskID | None = None

    def __enter__(self) -> Progress:
        self._bars.start()
        if self._lines:
            threading.Thread(target=self._tell, name="progress", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._bars.stop()

    @property
    def line(self) -> str:
        """The work at hand in a line; empty before any has begun."""
        if self._current is None:
            return ""
        task = self._bars.tasks[self._current]
        found = f"; {task.fields['found']}" if task.fields["found"] else ""
        return f"{task.description}: {task.completed:g} of {task.total:g}{found}"

    def _tell(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            while not self._ended.wait(LINE_S):
                if line := self.line:
                    print(line, file=sys.stderr, flush=True)

    def __call__(self, what: str, steps: int) -> None:
        if what and steps:
            self._current = self._bars.add_task(what, total=steps, found="")
        elif what and self._current is not None:
            self._bars.update(self._current, found=what)
        elif self._current is not None:
            self._bars.advance(self._current, steps)
        elif self._lines or not self._bars.disable:
            self._bars.console.print(what, markup=False, highlight=False, soft_wrap=True)


def print_sheet(shown: Console, sheet: Sheet) -> None:
    """Print a table whose words and numbers stay whole however narrow the terminal is.

    Cells that do not fit side by side are broken between words; if that is not enough, the frame is
    left out; then every row becomes a sentence.
    """
    texts, table = sheet.texts, sheet.rich()
    headings = [column.heading for column in sheet.columns]
    columns = [list(column) for column in zip(headings, *texts, strict=True)]
    if _fit(table, columns, shown.width, frame=True) or _fit(
        table, columns, shown.width, frame=False
    ):
        shown.print(table)
        return
    shown.print(sheet.title, style="italic")
    for row in texts:
        cells = [f"{head} {cell}" for head, cell in zip(headings[1:], row[1:], strict=True) if cell]
        shown.print(f"{row[0]}: {', '.join(cells)}", highlight=False)


def _fit(table: Table, columns: list[list[str]], width: int, *, frame: bool) -> bool:
    """Set every column at least as wide as its longest word; return whether there is room. What is
    left goes, place by place, to the column whose cells take the most lines."""
    least = [max(cell_len(word) for text in cells for word in text.split(" ")) for cells in columns]
    if not frame:
        table.box, table.padding = None, (0, 1, 0, 0)
        table.pad_edge = False
    spare = width - sum(least) - (3 * len(columns) + 1 if frame else len(columns) - 1)
    if spare < 0:
        return False
    heights = [_height(cells, low) for cells, low in zip(columns, least, strict=True)]
    while spare and max(heights, default=1) > 1:
        tallest = heights.index(max(heights))
        least[tallest] += 1
        heights[tallest] = _height(columns[tallest], least[tallest])
        spare -= 1
    for column, low in zip(table.columns, least, strict=True):
        column.width = low
    return True


def _height(cells: Sequence[str], width: int) -> int:
    """Return the most lines that a cell takes, broken between words.

    >>> _height(["one two three", "four"], 7), _height([""], 1)
    (2, 1)
    """
    most = 1
    for text in cells:
        lines, used = 1, 0
        for word in map(cell_len, text.split(" ")):
            if used and used + 1 + word > width:
                lines, used = lines + 1, word
            else:
                used += word + (used > 0)
        most = max(most, lines)
    return most


def print_result(result: Result, shown: Console) -> None:
    """Print what is taken as exact, a result's tables, warnings and critical path."""
    from treepipe.results.result import result_sentences, result_tables

    print_taken_as_exact(result.taken_as_exact, shown)
    for table in result_tables(result):
        print_sheet(shown, table)
    for sentence in result_sentences(result):
        shown.print(sentence, highlight=False)


def print_versus(comparison: Comparison, shown: Console) -> None:
    """Print what is taken as exact, a comparison's table and warnings."""
    from treepipe.results.versus import versus_table, versus_warnings

    print_taken_as_exact([*comparison.a.taken_as_exact, *comparison.b.taken_as_exact], shown)
    print_sheet(shown, versus_table(comparison))
    for sentence in versus_warnings(comparison):
        shown.print(sentence, highlight=False)


def print_taken_as_exact(inputs: Iterable[str], shown: Console) -> None:
    """Name inputs whose uncertainty nothing states, before any figure that rests on them."""
    for sentence in taken_as_exact(inputs):
        shown.print(sentence, highlight=False)
