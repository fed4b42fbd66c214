"""Output on a terminal: progress, and results as tables."""

from __future__ import annotations

import contextlib
import sys
import threading

import rich.progress
from rich.console import Console

from treepipe.progress import Progress
from treepipe.results.screen import COLUMNS, Screen
from treepipe.results.sheet import Sheet


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

    def __init__(self, quiet: bool | None) -> None:
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
            disable=bool(quiet) or not console.is_terminal,
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
    """Print a table whose words and numbers stay whole however narrow the terminal is: where it is
    too narrow for its lines, every row becomes a sentence."""
    if sheet.title:
        shown.print(sheet.title, style="italic")
    lines, cut = sheet.plain(shown.width)
    if cut:
        heads = [column.heading for column in sheet.columns]
        cells = [
            ", ".join(
                f"{head} {cell}" for head, cell in zip(heads[1:], row[1:], strict=True) if cell
            )
            for row in sheet.texts
        ]
        lines = [f"{row[0]}: {each}" for row, each in zip(sheet.texts, cells, strict=True)]
    for line in lines:
        shown.print(line, highlight=False)


def print_screen(screen: Screen, *, verbose: bool = False, shown: Console | None = None) -> None:
    """Print the screen of an answer; ``verbose``: the answer with all tables and sentences."""
    shown = shown or (console() if verbose else console(COLUMNS))
    if not verbose:
        for line in screen.lines(shown.width, "--verbose"):
            shown.print(line, highlight=False, soft_wrap=True)
        return
    shown.print(screen.answer, highlight=False)
    for sheet in screen.tables:
        print_sheet(shown, sheet)
    for sentence in [*screen.sentences, *screen.doubts]:
        shown.print(sentence, highlight=False)
