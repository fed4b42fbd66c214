"""The demonstration: some systems on an emulated cluster, predicted and run, and its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treepipe.core.schedules import systems
from treepipe.files.outputs import Failures
from treepipe.profiles.library import CALIBRATION
from treepipe.progress import Progress
from treepipe.results.result import write_json
from treepipe.results.show import console, print_sheet
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.validation.comparison import Case, compared
from treepipe.validation.judgement import Row
from treepipe.validation.validation import entry, row_sheet, validation, write_timelines

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
    """Write the validation file ``demo.json``, and each schedule's timelines, into ``out``."""
    with Failures() as failures:
        content = validation([entry(row) for row in rows])
        failures.attempt(write_json, content, str(out / "demo.json"), "--out")
        for row in rows:
            failures.attempt(write_timelines, row, out / row.label, "--out")


def show_demo(rows: Sequence[Row], out: Path) -> None:
    """Print the demonstration's table."""
    title = "Time between tokens: predicted before the run, then measured"
    print_sheet(console(), row_sheet("demo", title, {row.schedule: row for row in rows}))
    console().print(f"pictures, traces and figures: {out}/", highlight=False)
