"""The demonstration: calibrate, predict, run for real, and compare, schedule by schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treepipe.outputs import Faults
from treepipe.result import write_json
from treepipe.studies.comparison import Case, compare
from treepipe.studies.folder import claim
from treepipe.studies.judgement import Row as Row
from treepipe.studies.study import Say
from treepipe.studies.timeline import draw_timelines
from treepipe.trace import write_chrome_trace

SCENARIO = Path(__file__).parent / "scenarios" / "demo.toml"
SCHEDULES = ("pp", "naive_pp", "pruned_pp", "flowspec")
CALIBRATED_ON = "reference:calibration"
"""Instead of the acceptance that the file names."""
PLAIN_REQUESTS = 3
"""Plain decoding takes the same time for every token, so a few prompts tell it."""


def run_demo(say: Say) -> list[Row]:
    """Calibrate, predict all schedules, then run them."""
    return list(compare([_case(name) for name in SCHEDULES], say))


def _case(name: str) -> Case:
    fewer = (f"workload.requests={PLAIN_REQUESTS}",) if name == "pp" else ()
    return Case(name, SCENARIO, (f"schedule.name={name}", *fewer), CALIBRATED_ON)


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
