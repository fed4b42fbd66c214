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
from treepipe.profiles.library import LIBRARY, profile_names
from treepipe.result import write_json
from treepipe.toml_file import read_toml
from treepipe.trace import Trace, write_chrome_trace

if TYPE_CHECKING:
    from treepipe.studies.demo import Row

PROFILE_KINDS = ("devices", "links")


def _console() -> Console:
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
    if json is not None:
        write_json(result, json)
    if trace is not None:
        _writable(trace, "--trace")
        write_chrome_trace([(str(result["scenario"]), traces[0])], trace)
    if plot is not None:
        from treepipe.studies.timeline import draw_timelines

        _writable(plot, "--plot")
        draw_timelines([(str(result["source"]), traces[0])], str(result["scenario"]), plot)
    if not quiet and json != "-":
        _print_result(result)


def _writable(path: Path, option: str) -> None:
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}")


def _print_result(result: Mapping[str, Any]) -> None:
    table = Table(title=f"{result['scenario']} ({result['source']}, {result['runs']} runs)")
    table.add_column("metric")
    table.add_column("mean", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("unit")
    for name, value in result["metrics"].items():
        table.add_row(name, f"{value['mean']:.4g}", _interval(value), value["unit"])
    for device, value in result["utilization"].items():
        table.add_row(f"utilization {device}", f"{value['mean']:.3f}", _interval(value), "1")
    console = _console()
    console.print(table)
    if not result["lossless"]:
        console.print("not lossless: the rule may change the target's text")
    for warning in result["warnings"]:
        console.print(f"warning: {warning}", highlight=False)


def _interval(value: Mapping[str, Any]) -> str:
    return "" if value["low"] is None else f"{value['low']:.4g} … {value['high']:.4g}"


def show_demo(rows: Sequence[Row], out: Path, quiet: bool) -> None:
    """Print the demonstration's table, and put the same text into the folder."""
    tables = [_demo_table(rows), _utilization_table(rows)]
    with (out / "table.txt").open("w", encoding="utf-8") as file:
        for table in tables:
            Console(file=file, width=110).print(table)
    if quiet:
        return
    console = _console()
    for table in tables:
        console.print(table)
    console.print(f"pictures, traces and figures: {out}/", highlight=False)


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


def show_profiles() -> None:
    """List all profiles by kind."""
    table = Table()
    table.add_column("kind")
    table.add_column("name")
    table.add_column("source")
    for kind in PROFILE_KINDS:
        for name in profile_names(kind):
            source = read_toml(LIBRARY / kind / f"{name}.toml").get("source", "")
            table.add_row(kind, name, str(source))
    _console().print(table)


def show_profile(name: str) -> None:
    """Print one profile's file. Raises ``UserError`` if there is none of that name."""
    for kind in PROFILE_KINDS:
        if name in profile_names(kind):
            text = (LIBRARY / kind / f"{name}.toml").read_text(encoding="utf-8")
            Console().print(text, highlight=False, markup=False)
            return
    known = [known for kind in PROFILE_KINDS for known in profile_names(kind)]
    raise UserError(f"profile {name!r}: there is none of that name; there are {', '.join(known)}")
