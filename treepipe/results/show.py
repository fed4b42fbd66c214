"""What the command line shows: progress on a terminal, tables, and the files asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import rich.progress
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from treepipe.files.outputs import Faults
from treepipe.results.result import Result, Terms, write_json
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.trace import Trace, write_chrome_trace
from treepipe.results.where import NAMES, Shares, picture_beside, shares

Say: TypeAlias = Callable[[str, int], None]
"""Progress: what happens now, and how many steps of it there are; ("", 1) is one step done."""


def console(width: int = 120) -> Console:
    """Standard output, which shows what users named as they named it: no ``[x]`` is a style.

    Args: ``width``: on a pipe, as wide as the tables.
    """
    console = Console(markup=False, emoji=False)
    return console if console.is_terminal else Console(width=width, markup=False, emoji=False)


class Progress:
    """A bar per kind of work on a terminal, nothing on a pipe or when quiet.

    Called with (what, steps) it opens a bar, with ("", n) it advances the last one.
    """

    def __init__(self, quiet: bool) -> None:
        console = Console(stderr=True)
        self._bars = rich.progress.Progress(
            rich.progress.TextColumn("{task.description:<24}", markup=False),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._current: rich.progress.TaskID | None = None

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def __call__(self, what: str, steps: int) -> None:
        if what:
            self._current = self._bars.add_task(what, total=steps)
        elif self._current is not None:
            self._bars.advance(self._current, steps)


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit in which a row of a table is shown: so many (``size``) of the values' own."""

    size: float
    unit: str

    @classmethod
    def of(cls, unit: str, *values: float) -> Scale:
        """Times in what suits the largest of them; everything else as it is.

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
        """A metric's name, whose unit stands in a column of its own if it may be another one."""
        return metric.removesuffix("_ms") if self in TIMES else metric


NOT_LOSSLESS = "not lossless: the rule may change the target's text"
MS = Scale(1.0, "ms")
TIMES = (Scale(1e-3, "µs"), MS, Scale(1e3, "s"), Scale(60e3, "min"), Scale(3.6e6, "h"))
SHARE = Scale(1.0, "1")
_BELOW_MS = tuple(zip(TIMES, (0.01, 1e3, 120e3, 7.2e6), strict=False))
"""Up to which time each unit is read most easily: 0.05 ms, 90 s and 100 min rather than others."""


def number(value: float, digits: int = 4) -> str:
    """At least so many significant digits, and never a power of ten.

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

    Where its cells do not fit side by side, they are broken between words; where that is not
    enough, its frame is left out; then every row becomes a sentence.
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
    """Give every column the width of its longest word or more; whether there is room for that."""
    least = [max(cell_len(word) for text in cells for word in text.split(" ")) for cells in columns]
    most = [max(map(cell_len, cells)) for cells in columns]
    if not frame:
        table.box, table.padding = None, (0, 1, 0, 0)
        table.pad_edge = False
    spare = width - sum(least) - (3 * len(columns) + 1 if frame else len(columns) - 1)
    if spare < 0:
        return False
    for column, low, high in zip(table.columns, least, most, strict=True):
        column.width = low + min(high - low, spare)
        spare -= column.width - low
    return True


def show_result(
    result: Result,
    json: str | None,
    trace: Path | None,
    plot: Path | None,
    quiet: bool,
    where: bool = False,
) -> None:
    """Write the files asked for and print the table (not if JSON goes to standard output).

    Args:
        where: tell where each worker's time went, too; with ``plot`` in a second picture.
    """
    first = [(result.scenario, run) for run in result.traces[:1]]
    with Faults() as faults:
        content, found = result.to_json(), shares(result.traces) if where else {}
        if where:
            content["where_time_goes"] = {"unit": "1", "workers": found}
        faults.attempt(_write_files, content, json, first, trace, result.scenario, plot)
        if where and plot is not None:
            from treepipe.results.where_plot import draw_shares

            faults.attempt(
                draw_shares, found, result.scenario, picture_beside(plot), "--where-time-goes"
            )
        if not quiet and json != "-":
            print_result(content, console())
            for sentence in result.critical_path.sentences if result.critical_path else ():
                console().print(sentence, highlight=False)
            if where:
                print_sheet(console(), shares_table(found))


def shares_table(found: Shares) -> Sheet:
    """A row per thing that a worker can be at, a column per worker."""
    sheet = Sheet("", "where time goes, % of wall time", [*words(""), *figures(*found)])
    for kind, label in NAMES.items():
        parts = [each.get(kind, 0.0) for each in found.values()]
        if any(parts):
            sheet.add(label, *(f"{100 * part:.1f}" for part in parts))
    return sheet


def show_theory(result: Result, json: str | None, quiet: bool) -> None:
    """The same for a closed form, whose own quantities follow the metrics."""
    with Faults() as faults:
        faults.attempt(show_result, result, json, None, None, quiet)
        form = result.closed_form
        if form is not None and form.terms and not quiet and json != "-":
            print_sheet(console(), terms_table(form))


def terms_table(form: Terms) -> Sheet:
    """A closed form's own quantities."""
    sheet = Sheet("", form.source, [*words("term (its unit in its name)"), *figures("value")])
    for name, value in form.terms.items():
        sheet.add(name, number(value))
    return sheet


def show_versus(
    versus: Mapping[str, Any],
    traces: Sequence[Trace],
    json: str | None,
    trace: Path | None,
    plot: Path | None,
    quiet: bool,
) -> None:
    """The same for a comparison. Args: ``traces``: the first run of A and of B."""
    names = [f"{key.upper()}: {versus[key]['scenario']}" for key in ("a", "b")]
    named = list(zip(names, traces, strict=True))
    with Faults() as faults:
        faults.attempt(_write_files, versus, json, named, trace, ", ".join(names), plot)
        if not quiet and json != "-":
            print_versus(versus, console())


def _write_files(
    content: Mapping[str, Any],
    json: str | None,
    traces: Sequence[tuple[str, Trace]],
    trace: Path | None,
    title: str,
    plot: Path | None,
) -> None:
    with Faults() as faults:
        if json is not None:
            faults.attempt(write_json, content, json)
        if trace is not None:
            faults.attempt(write_chrome_trace, traces, trace, "--trace")
        if plot is not None:
            from treepipe.results.timeline import draw_timelines

            faults.attempt(draw_timelines, traces, title, plot, option="--plot")


def print_result(result: Mapping[str, Any], shown: Console) -> None:
    """A result's tables and warnings."""
    for table in result_tables(result):
        print_sheet(shown, table)
    if not result["lossless"]:
        shown.print(NOT_LOSSLESS)
    for warning in result["warnings"]:
        shown.print(f"warning: {warning}", highlight=False)


def result_tables(result: Mapping[str, Any]) -> list[Sheet]:
    """A result's figures, times in the unit that suits each; and those of several targets."""
    title = f"{result['scenario']} ({result['source']}, {_basis(result)})"
    sheet = _metrics_sheet(title, "metric")
    for name, value in result["metrics"].items():
        _add_metric(sheet, "", name, value)
    for device, value in result["utilization"].items():
        share = f"{value['mean']:.3f}"
        sheet.add(f"utilization {device}", share, _interval(value, SHARE), SHARE.unit)
    if "targets" not in result:
        return [sheet]
    by_target = _metrics_sheet("by target", "target, metric")
    for target, metrics in result["targets"].items():
        for name, value in metrics.items():
            _add_metric(by_target, f"{target} ", name, value)
    return [sheet, by_target]


def _metrics_sheet(title: str, first: str) -> Sheet:
    columns = [*words(first), *figures("mean", "95 % interval"), *words("unit")]
    return Sheet("", title, columns)


def _add_metric(sheet: Sheet, of: str, name: str, value: Mapping[str, Any]) -> None:
    scale = Scale.of(value["unit"], value["mean"])
    mean = number(value["mean"] / scale.size)
    sheet.add(f"{of}{scale.name(name)}", mean, _interval(value, scale), scale.unit)


def _basis(result: Mapping[str, Any]) -> str:
    """What the figures rest on: a closed form, or runs, batches, warm-up."""
    if not result["runs"]:
        return "expected values"
    text = "1 run" if result["runs"] == 1 else f"{result['runs']} runs"
    if result["intervals_over"] == "batches":
        text += " in batches"
    dropped = result["warmup_requests"]
    return text + (f", without its first {dropped} requests" if dropped else "")


def _interval(value: Mapping[str, Any], scale: Scale, digits: int = 4) -> str:
    if value["low"] is None:
        return ""
    low, high = (number(value[end] / scale.size, digits) for end in ("low", "high"))
    return f"{low} … {high}"


def print_versus(versus: Mapping[str, Any], shown: Console) -> None:
    """A comparison's table and warnings."""
    print_sheet(shown, versus_table(versus))
    for sentence in versus_warnings(versus):
        shown.print(sentence, highlight=False)


def versus_table(versus: Mapping[str, Any]) -> Sheet:
    """Every figure of both, and the difference."""
    a, b = versus["a"], versus["b"]
    columns = [*words("metric"), *figures("A", "B", "B - A", "95 % interval"), *words("unit")]
    columns += figures("relative", "paired off")
    sheet = Sheet("", f"A: {a['scenario']}, B: {b['scenario']} (simulation, {_basis(a)})", columns)
    for name, each in versus["differences"].items():
        scale = Scale.of(each["unit"], each["a"], each["b"])
        sheet.add(scale.name(name), *_difference_cells(each, scale))
    for device, each in versus["utilization_differences"].items():
        sheet.add(f"utilization {device}", *_difference_cells(each, SHARE))
    return sheet


def versus_warnings(versus: Mapping[str, Any]) -> list[str]:
    """What is to be said of each side, and of both."""
    found = []
    for label in ("A", "B"):
        side = versus[label.lower()]
        if not side["lossless"]:
            found.append(f"{label} is {NOT_LOSSLESS}")
        found += [f"warning, {label}: {warning}" for warning in side["warnings"]]
    return found + [f"warning: {warning}" for warning in versus["warnings"]]


def _difference_cells(each: Mapping[str, Any], scale: Scale) -> tuple[str, ...]:
    """The last one: how much of the difference's variance the pairing has taken away."""
    relative, reduction = each["relative"], each["variance_reduction"]
    apart = each["difference"]["mean"] / scale.size
    return (
        number(each["a"] / scale.size),
        number(each["b"] / scale.size),
        f"{'+' if apart >= 0 else ''}{number(apart)}",
        _interval(each["difference"], scale, digits=3),
        scale.unit,
        "" if relative is None else f"{relative['mean']:+.1%}",
        "" if reduction is None else f"{reduction:.0%}",
    )
