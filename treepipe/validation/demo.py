"""The demonstration: the smallest size of ``cells.py``, every system in turn, and its folder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from treepipe.files.outputs import Failures, claim_results, write_file
from treepipe.progress import Progress
from treepipe.results.result import write_json
from treepipe.results.sheet import Sheet, columns
from treepipe.results.show import console, print_sheet
from treepipe.results.timeline import draw_timelines
from treepipe.results.trace import write_chrome_trace
from treepipe.scenario.schema import ScheduleName
from treepipe.validation.cells import Cell, Size, cases_of
from treepipe.validation.comparison import compared
from treepipe.validation.judgement import Row as Row
from treepipe.validation.validation_report import row_sheet

SCHEDULES: tuple[ScheduleName, ...] = ("pp", "naive_pp", "pruned_pp", "flowspec")
SIZE = Size()


def run_demo(
    say: Progress, schedules: Sequence[ScheduleName] = SCHEDULES, size: Size = SIZE
) -> list[Row]:
    """Calibrate, predict all schedules, then run them."""
    return list(compared(cases_of(map(Cell, schedules), size), say).values())


def write_demo(rows: list[Row], out: Path) -> None:
    """Write plots, traces and ``demo.json`` into ``out``."""
    with Failures() as failures:
        content = {"schema": "treepipe.demo/1", "rows": [_row_content(row) for row in rows]}
        failures.attempt(write_json, content, str(out / "demo.json"), "--out")
        for label in ("prediction", "execution"):
            traces = [(row.schedule, getattr(row, label)) for row in rows]
            failures.attempt(write_chrome_trace, traces, out / f"{label}-trace.json", "--out")
        for row in rows:
            title = f"{row.schedule}: 4 emulated stages of 20 ms, links of 1 ms"
            path = out / f"timeline-{row.schedule}.png"
            failures.attempt(draw_timelines, row.timelines, title, path, option="--out")


def claim_folder(out: Path) -> None:
    """Make the folder; refuse one that contains anything but an earlier demonstration."""
    claim_results(out, "demo.json", "demonstration")


def _row_content(row: Row) -> dict[str, Any]:
    return {
        "schedule": row.schedule,
        "predicted_time_between_tokens_ms": row.predicted.mean,
        "predicted_interval_ms": [row.predicted.low, row.predicted.high],
        "measured_time_between_tokens_ms": row.measured,
        "error": row.error,
        "duration_error": row.duration_error,
        "tokens_per_round": row.tokens_per_round,
        "lossless": row.lossless,
        "predicted_utilization": dict(row.predicted_utilization),
        "utilization": dict(row.utilization),
    }


def show_demo(rows: Sequence[Row], out: Path, quiet: bool) -> None:
    """Print the demonstration's tables, and write the same text into the folder."""
    title = "Time between tokens: predicted before the run, then measured"
    times = row_sheet("demo", title, {row.schedule: row for row in rows})
    tables = [times, _utilization_sheet(rows)]
    text = io.StringIO()
    for table in tables:
        print_sheet(Console(file=text, width=130, markup=False, emoji=False), table)
    with Failures() as failures:
        failures.attempt(write_file, out / "table.txt", text.getvalue(), "--out")
        if not quiet:
            shown = console()
            for table in tables:
                print_sheet(shown, table)
            shown.print(f"pictures, traces and figures: {out}/", highlight=False)


def _utilization_sheet(rows: Sequence[Row]) -> Sheet:
    devices = [device.removeprefix("pipeline0.") for device in rows[0].utilization]
    title = "Utilization: predicted / measured"
    sheet = Sheet(title, columns("schedule", *devices), name="utilization")
    for row in rows:
        shares = [
            f"{row.predicted_utilization[device]:.2f} / {share:.2f}"
            for device, share in row.utilization.items()
        ]
        sheet.add(row.schedule, *shares)
    return sheet
