"""The demonstration: calibrate, predict, run for real, and compare, schedule by schedule."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from treepipe.files.folder import claim
from treepipe.files.outputs import Faults, write_file
from treepipe.results.result import write_json
from treepipe.results.show import Say, console, print_table
from treepipe.results.timeline import draw_timelines
from treepipe.results.trace import write_chrome_trace
from treepipe.scenario.scenario import Scenario
from treepipe.validation.comparison import Case, compare
from treepipe.validation.judgement import Row as Row

SCENARIO = Path(__file__).parents[1] / "studies" / "scenarios" / "demo.toml"
SCHEDULES = ("pp", "naive_pp", "pruned_pp", "flowspec")
CALIBRATED_ON = "reference:calibration"
"""Instead of the acceptance that the file names."""
PLAIN_REQUESTS = 3
"""Plain decoding takes the same time for every token, so a few prompts tell it."""


def run_demo(say: Say) -> list[Row]:
    """Calibrate, predict all schedules, then run them."""
    return list(compare([_case(name) for name in SCHEDULES], say))


def _case(name: str) -> Case:
    fewer = {"workload.requests": PLAIN_REQUESTS} if name == "pp" else {}
    scenario = Scenario.load(SCENARIO).with_(**{"schedule.name": name, **fewer})
    return Case(name, scenario, CALIBRATED_ON)


def write_demo(rows: list[Row], out: Path) -> None:
    """Pictures, traces and ``demo.json`` into ``out``."""
    with Faults() as faults:
        content = {"schema": "treepipe.demo/1", "rows": [_row_content(row) for row in rows]}
        faults.attempt(write_json, content, str(out / "demo.json"), "--out")
        for label in ("prediction", "execution"):
            traces = [(row.schedule, getattr(row, label)) for row in rows]
            faults.attempt(write_chrome_trace, traces, out / f"{label}-trace.json", "--out")
        for row in rows:
            shown = [("simulated, with this run's acceptance replayed", row.replay)]
            shown.append(("executed", row.execution))
            title = f"{row.schedule}: 4 emulated stages of 20 ms, links of 1 ms"
            path = out / f"timeline-{row.schedule}.png"
            faults.attempt(draw_timelines, shown, title, path, option="--out")


def claim_folder(out: Path) -> None:
    """Make the folder; refuse one that holds something other than an earlier demonstration."""
    claim(out, "demo.json", "demonstration")


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
    """Print the demonstration's table, and put the same text into the folder."""
    tables = [_demo_table(rows), _utilization_table(rows)]
    text = io.StringIO()
    for table in tables:
        Console(file=text, width=110).print(table)
    with Faults() as faults:
        faults.attempt(write_file, out / "table.txt", text.getvalue(), "--out")
        if not quiet:
            shown = console()
            for table in tables:
                print_table(shown, table)
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
