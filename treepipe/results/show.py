"""Output on a terminal: progress, and results as tables."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import TYPE_CHECKING

import rich.progress
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from treepipe.progress import Progress
from treepipe.results.metrics import PERCENTILES
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.statistics import Interval
from treepipe.results.where import NAMES, Shares

if TYPE_CHECKING:  # they show themselves in notebooks by this file
    from treepipe.results.result import MetricValue, Result
    from treepipe.results.versus import Comparison, Difference


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

    A call with (text, steps) opens a bar; ("", n) advances the last one, (text, 0) annotates it.
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


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit of a row of a table: ``size`` of the values' own units."""

    size: float
    unit: str

    @classmethod
    def of(cls, unit: str, *values: float) -> Scale:
        """Choose the unit that suits the largest of the times; other units are unchanged.

        >>> Scale.of("ms", 33560.0).unit, Scale.of("ms", 207900.0, 12.0).unit
        ('s', 'min')
        """
        if unit != "ms":
            return cls(1.0, unit)
        most = max(map(abs, values))
        if not most:
            return MS
        return next((scale for scale, limit in _BELOW_MS if most < limit), TIMES[-1])

    def name(self, metric: str) -> str:
        """Return a metric's name, without its unit if the unit has its own column."""
        return metric.removesuffix("_ms") if self in TIMES else metric


HALF = "p50_time_between_tokens_ms"
NOT_LOSSLESS = "not lossless: the rule may change the target's text"
MS = Scale(1.0, "ms")
TIMES = (Scale(1e-3, "µs"), MS, Scale(1e3, "s"), Scale(60e3, "min"), Scale(3.6e6, "h"))
SHARE = Scale(1.0, "1")
_BELOW_MS = tuple(zip(TIMES, (0.01, 1e3, 120e3, 7.2e6), strict=False))
"""Upper limit (ms) of each unit in tables, so that they show 0.05 ms, 90 s and 100 min."""


def number(value: float, digits: int = 4) -> str:
    """Format a number with at least ``digits`` significant digits and no power of ten.

    >>> number(33560.4), number(0.99996), number(0.0000123456), number(-2.5)
    ('33,560', '1', '0.00001235', '-2.5')
    """
    if not value:
        return "0"
    places = digits - 1 - floor(log10(abs(value)))
    text = f"{value:,.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if places > 0 else text


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
    print_taken_as_exact(result.taken_as_exact, shown)
    for table in result_tables(result):
        print_sheet(shown, table)
    for sentence in result_sentences(result):
        shown.print(sentence, highlight=False)


def print_versus(found: Comparison, shown: Console) -> None:
    """Print what is taken as exact, a comparison's table and warnings."""
    print_taken_as_exact([*found.a.taken_as_exact, *found.b.taken_as_exact], shown)
    print_sheet(shown, versus_table(found))
    for sentence in versus_warnings(found):
        shown.print(sentence, highlight=False)


def print_taken_as_exact(inputs: Iterable[str], shown: Console) -> None:
    """Name inputs whose uncertainty nothing states, before any figure that rests on them."""
    for sentence in taken_as_exact(inputs):
        shown.print(sentence, highlight=False)


def taken_as_exact(inputs: Iterable[str]) -> list[str]:
    """Name inputs whose uncertainty nothing states, each once."""
    return [f"taken as exact: {each}" for each in dict.fromkeys(inputs)]


def result_sentences(result: Result) -> list[str]:
    """Return what is said below a result's tables: what a figure means that may surprise, warnings,
    and what binds."""
    found = [] if result.lossless else [NOT_LOSSLESS]
    if (half := result.metrics.get(HALF)) is not None and not half.mean:
        found.append(
            f"{HALF.removesuffix('_ms')} is 0: most tokens come together with the one before, from "
            f"one verification"
        )
    found += [f"warning: {warning}" for warning in result.warnings]
    return found + ([] if result.critical_path is None else result.critical_path.sentences)


def result_tables(result: Result) -> list[Sheet]:
    """Make tables of a result's figures in suitable units, and of several targets' figures."""
    columns = [*words("metric"), *figures("mean", "95 % interval"), *words("unit")]
    sheet = Sheet(f"{result.title} ({result.source}, {_basis(result)})", columns)
    for value in map(result.metrics.__getitem__, _means_first(result.metrics)):
        sheet.add(*_metric_cells(value))
    for device, share in result.utilization.items():
        ends = _ends(share, SHARE)
        sheet.add(f"utilization {device}", f"{share.mean:.3f}", ends, SHARE.unit)
    if not result.targets:
        return [sheet]
    by_target = Sheet("by target", [*words("target, metric"), *columns[1:]])
    for target, metrics in result.targets.items():
        for value in metrics.values():
            name, *cells = _metric_cells(value)
            by_target.add(f"{target} {name}", *cells)
    return [sheet, by_target]


def _means_first(names: Iterable[str]) -> list[str]:
    """Order metrics so that percentiles follow all that they are percentiles of."""
    return sorted(names, key=PERCENTILES.__contains__)


def shares_table(found: Shares) -> Sheet:
    """Make a table with a row per activity and a column per worker."""
    sheet = Sheet("where time goes, % of wall time", [*words(""), *figures(*found)])
    for kind, label in NAMES.items():
        parts = [each.get(kind, 0.0) for each in found.values()]
        if any(parts):
            sheet.add(label, *(f"{100 * part:.1f}" for part in parts))
    return sheet


def versus_table(found: Comparison) -> Sheet:
    """Make a table of every figure of both scenarios, and the difference."""
    columns = [*words("metric"), *figures("A", "B", "B - A", "95 % interval"), *words("unit")]
    columns += figures("relative", "paired off")
    title = f"A: {found.a.title}, B: {found.b.title} (simulation, {_basis(found.a)})"
    sheet = Sheet(title, columns)
    for name in _means_first(found.differences):
        each = found.differences[name]
        scale = Scale.of(each.unit or "", each.a, each.b)
        sheet.add(scale.name(name), *_difference_cells(each, scale))
    for device, each in found.utilization_differences.items():
        sheet.add(f"utilization {device}", *_difference_cells(each, SHARE))
    return sheet


def versus_warnings(found: Comparison) -> list[str]:
    """Return the warnings of each side, and of both together."""
    sentences = []
    for label, side in (("A", found.a), ("B", found.b)):
        if not side.lossless:
            sentences.append(f"{label} is {NOT_LOSSLESS}")
        sentences += [f"warning, {label}: {warning}" for warning in side.warnings]
    return sentences + [f"warning: {warning}" for warning in found.warnings]


def _basis(result: Result) -> str:
    """Describe the basis of the figures: runs, batches and warm-up."""
    text = "1 run" if result.runs == 1 else f"{result.runs} runs"
    if result.intervals_over == "batches":
        text += " in batches"
    dropped = result.warmup_requests
    return text + (f", without its first {dropped} requests" if dropped else "")


def _metric_cells(value: MetricValue) -> tuple[str, str, str, str]:
    scale = Scale.of(value.unit, value.mean)
    mean = number(value.mean / scale.size)
    return scale.name(value.name), mean, _ends(value, scale), scale.unit


def _difference_cells(each: Difference, scale: Scale) -> tuple[str, ...]:
    """Return a difference's cells, ending with the share of its variance that pairing removes."""
    apart, reduction = each.difference.mean / scale.size, each.variance_reduction
    return (
        number(each.a / scale.size),
        number(each.b / scale.size),
        f"{'+' if apart >= 0 else ''}{number(apart)}",
        _ends(each.difference, scale, digits=3),
        scale.unit,
        "" if each.relative is None else f"{each.relative.mean:+.1%}",
        "" if reduction is None else f"{reduction:.0%}",
    )


def _ends(value: MetricValue | Interval, scale: Scale, digits: int = 4) -> str:
    if value.low is None or value.high is None:
        return value.fixed
    return " … ".join(number(end / scale.size, digits) for end in (value.low, value.high))
