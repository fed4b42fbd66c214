"""What the command line shows: progress on a terminal, tables, and the files asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import rich.progress
from rich.console import Console
from rich.table import Table

from treepipe.errors import UserError
from treepipe.result import write_json
from treepipe.trace import Trace, write_chrome_trace

if TYPE_CHECKING:
    from treepipe.studies.demo import Row


def console() -> Console:
    """Standard output; on a pipe as wide as our tables."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


class Progress:
    """A bar per kind of work on a terminal, nothing on a pipe or when quiet.

    Called with (what, steps) it opens a bar, with ("", n) it advances the last one.
    """

    def __init__(self, quiet: bool) -> None:
        console = Console(stderr=True)
        self._bars = rich.progress.Progress(
            rich.progress.TextColumn("{task.description:<24}"),
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


def show_result(
    result: Mapping[str, Any],
    traces: Sequence[Trace],
    json: str | None,
    trace: Path | None,
    plot: Path | None,
    quiet: bool,
) -> None:
    """Write the files asked for and print the table (not if JSON goes to standard output)."""
    name = str(result["scenario"])
    _write_files(result, json, [(name, traces[0])], trace, name, plot)
    if not quiet and json != "-":
        _print_result(result)


def show_theory(result: Mapping[str, Any], json: str | None, quiet: bool) -> None:
    """The same for a closed form, whose own quantities follow the metrics."""
    _write_files(result, json, [], None, str(result["scenario"]), None)
    if quiet or json == "-":
        return
    _print_result(result)
    form = result["closed_form"]
    table = Table(title=form["source"])
    table.add_column("term (its unit in its name)")
    table.add_column("value", justify="right")
    for name, value in form["terms"].items():
        table.add_row(name, f"{value:.4g}")
    if form["terms"]:
        console().print(table)


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
    _write_files(versus, json, named, trace, ", ".join(names), plot)
    if not quiet and json != "-":
        _print_versus(versus)


def _write_files(
    content: Mapping[str, Any],
    json: str | None,
    traces: Sequence[tuple[str, Trace]],
    trace: Path | None,
    title: str,
    plot: Path | None,
) -> None:
    if json is not None:
        write_json(content, json)
    if trace is not None:
        _writable(trace, "--trace")
        write_chrome_trace(traces, trace)
    if plot is not None:
        from treepipe.studies.timeline import draw_timelines

        _writable(plot, "--plot")
        draw_timelines(traces, title, plot)


def _writable(path: Path, option: str) -> None:
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}")


def _print_result(result: Mapping[str, Any]) -> None:
    table = Table(title=f"{result['scenario']} ({result['source']}, {_basis(result)})")
    table.add_column("metric")
    table.add_column("mean", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("unit")
    for name, value in result["metrics"].items():
        table.add_row(name, f"{value['mean']:.4g}", _interval(value), value["unit"])
    for device, value in result["utilization"].items():
        table.add_row(f"utilization {device}", f"{value['mean']:.3f}", _interval(value), "1")
    shown = console()
    shown.print(table)
    if not result["lossless"]:
        shown.print("not lossless: the rule may change the target's text")
    for warning in result["warnings"]:
        shown.print(f"warning: {warning}", highlight=False)


def _basis(result: Mapping[str, Any]) -> str:
    """What the figures rest on: a closed form, or runs, batches, warm-up."""
    if not result["runs"]:
        return "expected values"
    text = "1 run" if result["runs"] == 1 else f"{result['runs']} runs"
    if result["intervals_over"] == "batches":
        text += " in batches"
    dropped = result["warmup_requests"]
    return text + (f", without its first {dropped} requests" if dropped else "")


def _interval(value: Mapping[str, Any], digits: int = 4) -> str:
    low, high = value["low"], value["high"]
    return "" if low is None else f"{low:.{digits}g} … {high:.{digits}g}"


def _print_versus(versus: Mapping[str, Any]) -> None:
    a, b = versus["a"], versus["b"]
    table = Table(title=f"A: {a['scenario']}, B: {b['scenario']} (simulation, {_basis(a)})")
    table.add_column("metric (its unit in its name)", no_wrap=True)
    for heading in ("A", "B", "B - A", "95 % interval", "relative", "paired off"):
        table.add_column(heading, justify="right")
    for name, each in versus["differences"].items():
        table.add_row(name, *_difference_cells(each))
    for device, each in versus["utilization_differences"].items():
        table.add_row(f"utilization {device}", *_difference_cells(each))
    shown = console()
    shown.print(table)
    for label, side in (("A", a), ("B", b)):
        if not side["lossless"]:
            shown.print(f"{label} is not lossless: the rule may change the target's text")
        for warning in side["warnings"]:
            shown.print(f"warning, {label}: {warning}", highlight=False)
    for warning in versus["warnings"]:
        shown.print(f"warning: {warning}", highlight=False)


def _difference_cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    """The last one: how much of the difference's variance the pairing has taken away."""
    relative, reduction = each["relative"], each["variance_reduction"]
    return (
        f"{each['a']:.4g}",
        f"{each['b']:.4g}",
        f"{each['difference']['mean']:+.4g}",
        _interval(each["difference"], digits=3),
        "" if relative is None else f"{relative['mean']:+.1%}",
        "" if reduction is None else f"{reduction:.0%}",
    )


def show_demo(rows: Sequence[Row], out: Path, quiet: bool) -> None:
    """Print the demonstration's table, and put the same text into the folder."""
    tables = [_demo_table(rows), _utilization_table(rows)]
    with (out / "table.txt").open("w", encoding="utf-8") as file:
        for table in tables:
            Console(file=file, width=110).print(table)
    if quiet:
        return
    shown = console()
    for table in tables:
        shown.print(table)
    shown.print(f"pictures, traces and figures: {out}/", highlight=False)


def _demo_table(rows: Sequence[Row]) -> Table:
    table = Table(title="Time between tokens: predicted before the run, then measured")
    for heading in ("schedule", "predicted ms", "measured ms", "error", "of it durations"):
        table.add_column(heading, justify="left" if heading == "schedule" else "right")
    table.add_column("tokens/round", justify="right")
    table.add_column("text = plain greedy")
    for row in rows:
        half = (row.predicted.high or row.predicted.mean) - row.predicted.mean
        table.add_row(
            row.schedule,
            f"{row.predicted.mean:.1f} ± {half:.1f}",
            f"{row.measured:.1f}",
            f"{row.error:+.1%}",
            f"{row.duration_error:+.1%}",
            f"{row.tokens_per_round:.2f}",
            "yes" if row.lossless else "NO",
        )
    return table


def _utilization_table(rows: Sequence[Row]) -> Table:
    table = Table(title="Utilization: predicted / measured")
    table.add_column("schedule")
    for device in rows[0].utilization:
        table.add_column(device.removeprefix("pipeline0."), justify="right")
    for row in rows:
        shares = [
            f"{row.predicted_utilization[device]:.2f} / {share:.2f}"
            for device, share in row.utilization.items()
        ]
        table.add_row(row.schedule, *shares)
    return table
