"""The demonstration: some systems on an emulated cluster, predicted and run, and its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treepipe.core.schedules import systems
from treepipe.files.outputs import Failures, write_file
from treepipe.profiles.library import CALIBRATION
from treepipe.progress import Progress
from treepipe.results.result import write_json
from treepipe.results.screen import Screen
from treepipe.results.sheet import Sheet, columns
from treepipe.results.show import console, print_screen, print_sheet
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.validation.comparison import Case, compared
from treepipe.validation.judgement import Row
from treepipe.validation.validation import (
    entry,
    validation,
    validation_screen,
    write_timelines,
)

SCHEMA = "treepipe.demo/1"
SCENARIO = Path(__file__).parents[1] / "studies" / "scenarios" / "demo.toml"
SCHEDULES: tuple[ScheduleName, ...] = ("pp", "naive_pp", "pruned_pp", "flowspec")
PLAIN = {"workload.requests": 3}
"""Fewer prompts for plain decoding, which takes equal time for every token."""


def run_demo(
    say: Progress,
    schedules: Sequence[ScheduleName] = SCHEDULES,
    calibrate_on: str = CALIBRATION,
    **changes: Any,
) -> list[Row]:
    """Calibrate, predict all schedules, then run them; ``changes`` of the scenario's keys."""
    base, cases = Scenario.load(SCENARIO), list[Case]()
    for name in schedules:
        own = {} if systems()[name].drafts else PLAIN
        scenario = base.with_(**{"name": name, "schedule.name": name, **own, **changes})
        cases.append(Case(name, scenario, calibrate_on))
    return list(compared(cases, say).values())


def write_demo(rows: Sequence[Row], out: Path) -> None:
    """Write ``demo.json``, the tables and each schedule's timelines into ``out``."""
    with Failures() as failures:
        content = {"schema": SCHEMA, "rows": [_content(row) for row in rows]}
        failures.attempt(write_json, content, str(out / "demo.json"), "--out")
        sheets = [each for each in (_screen(rows).table, _shares(rows)) if each is not None]
        tables = "\n".join(sheet.markdown() for sheet in sheets)
        failures.attempt(write_file, out / "demo.md", tables, "--out")
        for row in rows:
            failures.attempt(write_timelines, row, out / row.label, "--out")


def _content(row: Row) -> dict[str, Any]:
    """Return a row of ``demo.json``: the figures, and what else an entry of a validation holds."""
    return {
        **entry(row),
        "predicted_time_between_tokens_ms": row.predicted.mean,
        "measured_time_between_tokens_ms": row.measured,
        "error": row.error,
        "utilization": dict(row.utilization),
    }


def _screen(rows: Sequence[Row]) -> Screen:
    return validation_screen(validation([entry(row) for row in rows]))


def _shares(rows: Sequence[Row]) -> Sheet:
    """Return the text and the busy shares of all devices, by schedule."""
    heads = columns("schedule", "tokens per round|.2f", "text = plain greedy", *rows[0].utilization)
    shares = Sheet("Utilization: predicted / measured", heads, name="utilization")
    for row in rows:
        predicted, measured = row.predicted_utilization, row.utilization
        busy = (f"{predicted[each]:.2f} / {share:.2f}" for each, share in measured.items())
        shares.add(row.schedule, row.tokens_per_round, row.lossless, *busy)
    return shares


def show_demo(rows: Sequence[Row], out: Path) -> None:
    """Print the demonstration's answer and tables."""
    print_screen(_screen(rows))
    print_sheet(console(), _shares(rows))
    console().print(f"pictures, traces and figures: {out}/", highlight=False)
