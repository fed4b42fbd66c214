"""The standard grid's report: ``validation.md``, ``validation.json`` and a scatter plot.

Converts entries to files; the sentences around the table describe the measurement.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.figure import Figure

from treepipe.executor.wire.processor import Processor, real_time_class
from treepipe.results.plots import BLUE, GREY, LEGEND, ORANGE, clean
from treepipe.results.result import write_json
from treepipe.results.sheet import Column, Sheet
from treepipe.studies.workshop.cells import Cell, Size
from treepipe.validation.judgement import METRIC
from treepipe.validation.validation import spread, summary_sheet, validation

KEPT = (METRIC, "time_to_first_token_ms", "tokens_per_round", "hit_rate")
"""Metrics in the committed file."""
AIMS = (
    ("duration_error", "median", 0.02, "replayed acceptance, median error"),
    ("duration_error", "worst", 0.06, "replayed acceptance, worst error"),
    ("error", "median", 0.05, "prediction, median error"),
    ("error", "worst", 0.12, "prediction, worst error"),
    ("utilization", "median", 0.03, "utilization, median difference"),
)
SHOWN = 12
"""Cells in the table, those farthest off; ``validation.json`` has all."""
MARKS_MS = (10, 20, 50, 100, 200, 500)
"""Ticks of the plot's axes, as far as they lie inside."""
FACTORS: Mapping[str, Callable[[Cell], Any]] = {
    "schedule": lambda cell: cell.schedule,
    "stages": lambda cell: cell.stages,
    "link (ms)": lambda cell: cell.latency_ms,
    "stage (ms)": lambda cell: cell.stage_ms,
    "prompts": lambda cell: cell.kind,
}

Found: TypeAlias = Sequence[tuple[Cell, Mapping[str, Any]]]
"""Cells and their entries."""

HOW = """\
The grid is schedules x {{2, 4, 8}} stages x links of {{0.2, 5, 20}} ms x stages of {{10, 20}} ms x
{{code, prose}}; the cells are a balanced fraction, in which every pair of levels occurs. treepipe
predicted each cell before any process started, then ran it on real processes with emulated devices
(the draft's is that of `emulated-20ms`). Acceptance was calibrated on 160 (code) or 64 (prose)
prompts of the cell's kind; those decoded come from other texts ({requests} prompts of {new_tokens}
tokens per cell, {chain_requests} for chains and `specinfer`, {plain_requests} for `pp`).
`make validate` measures again, and says what changed since `validation.json`, which has every cell.
[Emulated runs](emulated.md) says what such runs prove.

Measured {date} on {machine}: {cells} cells in {minutes:.1f} minutes. The load average was
{load:.1f} in the median of the cells (column *load*; the grid's own is about 1).

*Durations* are what is left of the error, relative to the measurement, when the simulator replays
the run's own acceptance; the rest is *acceptance*. Faster stages would measure this machine: a step
of eight stages and a draft costs about 10 ms of two such cores.
"""


def write_report(found: Found, out: Path, size: Size, took_s: float) -> dict[str, Any]:
    """Write the three files; returns the JSON file's content."""
    content = {
        **validation([_short(entry) for _, entry in found]),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine(),
        "took_s": round(took_s),
    }
    write_json(content, str(out / "validation.json"), "")
    text = _text(found, content, size)
    (out / "validation.md").write_text(text, encoding="utf-8")
    _figure(found).savefig(out / "validation.png", dpi=110)
    return content


def machine() -> str:
    """Describe processor, cores and versions, and whether the workers run at real-time priority."""
    processor = Processor.here()
    torch = importlib.metadata.version("torch")
    python = platform.python_version()
    priority = "" if real_time_class() is None else ", workers at real-time priority"
    return f"{processor.cores} cores ({processor.name}), Python {python}, torch {torch}{priority}"


def aims(summary: Mapping[str, Any]) -> list[str]:
    """Say of each aim whether it is met; the signed mean accompanies a median of sizes."""
    found = []
    for part, figure, limit, name in AIMS:
        value, signed = summary[part][figure], ""
        if figure == "median":
            signed = f"; signed mean {summary[part]['bias']:+.1%}"
        verdict = "met" if value <= limit else "**missed**"
        found.append(f"{name}: {value:.1%} (aim {limit:.0%}, {verdict}){signed}")
    return found


def levels(found: Found) -> Sheet:
    """Show median sizes of errors per level of each factor, and the bias."""
    columns = [Column("factor"), Column("level", shown="g"), Column("cells", shown="d")]
    columns += [
        Column(f"{part}, {what}", shown=shown)
        for part in ("error", "durations")
        for what, shown in (("bias", "+.1%"), ("median", ".1%"), ("worst", ".1%"))
    ]
    sheet = Sheet("By the levels of each factor", columns, name="levels")
    for factor, level_of in FACTORS.items():
        groups: dict[Any, list[Mapping[str, Any]]] = {}
        for cell, entry in found:
            groups.setdefault(level_of(cell), []).append(entry["metrics"][METRIC])
        for level in groups if factor == "schedule" else sorted(groups):
            times = groups[level]
            cells: list[Any] = [factor, level, len(times)]
            for part in ("error", "duration_error"):
                errors = spread({str(n): time[part] for n, time in enumerate(times)})
                cells += [errors["bias"], errors["median"], errors["worst"]]
            sheet.add(*cells)
    return sheet


def table(found: Found) -> Sheet:
    """Show the cells that are farthest off."""
    columns = [Column(name, shown="g") for name in FACTORS]
    columns += [Column("predicted", "ms"), Column("measured", "ms"), Column("error", shown="+.1%")]
    columns += [Column("durations", shown="+.1%"), Column("acceptance", shown="+.1%")]
    columns += [Column("utilization off by", "points"), Column("load")]
    sheet = Sheet("Time between tokens, the cells farthest off", columns, name="cells")
    errors = [abs(entry["metrics"][METRIC]["error"]) for _, entry in found]
    for place in sorted(range(len(found)), key=lambda at: -errors[at])[:SHOWN]:
        cell, entry = found[place]
        time = entry["metrics"][METRIC]
        shares = entry["utilization"].values()
        off = statistics.median([abs(each["predicted"] - each["measured"]) for each in shares])
        parts = (time[part] for part in ("error", "duration_error", "acceptance_error"))
        levels = (level(cell) for level in FACTORS.values())
        times = time["predicted"], time["measured"], *parts
        sheet.add(*levels, *times, 100 * off, entry["load"])
    return sheet


def _short(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry without the parts that the report does not use."""
    dropped = {"prediction", "measurement", "metrics"}
    kept = {name: each for name, each in entry["metrics"].items() if name in KEPT}
    return {**{key: each for key, each in entry.items() if key not in dropped}, "metrics": kept}


def _text(found: Found, content: Mapping[str, Any], size: Size) -> str:
    summary = content["summary"]
    how = HOW.format(
        **dataclasses.asdict(size) | {"cells": len(found)},
        date=content["date"],
        machine=content["machine"],
        minutes=content["took_s"] / 60,
        load=statistics.median([entry["load"] for _, entry in found]),
    )
    parts = ["# Validation: the standard grid\n", how]
    parts += [f"- {sentence}" for sentence in aims(summary)]
    if summary["pearson_r"] is not None:
        parts.append(f"- predicted and measured: Pearson's r = {summary['pearson_r']:.4f}")
    wrong = [entry["scenario"] for _, entry in found if entry["lossless"] is False]
    parts.append(f"- texts that differ from plain greedy decoding: {', '.join(wrong) or 'none'}")
    parts += ["", "![predicted against measured](validation.png)", ""]
    parts.append(summary_sheet(summary).markdown())
    parts += [levels(found).markdown(), table(found).markdown()]
    warned = {w for _, entry in found for w in _kinds(entry["warnings"])}
    parts += [f"- {warning}" for warning in sorted(warned)]
    return "\n".join(parts).rstrip() + "\n"


def _kinds(warnings: Sequence[str]) -> list[str]:
    """Return the warnings of slow work without their figures."""
    return ["work slower than its profile: " + w.split(":")[0] for w in warnings if "slower" in w]


def _figure(found: Found) -> Figure:
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    times = [entry["metrics"][METRIC] for _, entry in found]
    measured = [time["measured"] for time in times]
    ends = [0.9 * min(measured), 1.1 * max(measured)]
    left.plot(ends, ends, color=GREY, lw=0.8)
    style: dict[str, Any] = {"ls": "none", "ms": 5, "mec": "white", "mew": 0.5}
    left.plot(measured, [t["predicted"] for t in times], marker="o", color=BLUE, **style)
    marks = [mark for mark in MARKS_MS if ends[0] <= mark <= ends[1]]
    left.set(xscale="log", yscale="log")
    for axis in (left.xaxis, left.yaxis):
        axis.set_ticks(marks, [f"{mark:g}" for mark in marks])
        axis.set_ticks([], minor=True)
    left.set_xlabel("measured time between tokens (ms)")
    left.set_ylabel("predicted before the run (ms)")
    places = range(len(times))
    for part, color, dashes, label in (
        ("error", BLUE, "-", "predicted"),
        ("duration_error", ORANGE, "--", "with the run's acceptance replayed"),
    ):
        sizes = sorted(100 * abs(time[part]) for time in times)
        shares = [100 * (place + 1) / len(times) for place in places]
        right.step(sizes, shares, where="post", color=color, ls=dashes, label=label)
    right.set_xlabel("size of the error (%)")
    right.set_ylabel("cells with at most that (%)")
    right.set_xlim(left=0)
    right.set_ylim(0, 101)
    right.legend(loc="lower right", **LEGEND)
    clean(left)
    clean(right)
    return figure


# --- changes since an earlier grid ----------------------------------------------------------------

NOTICEABLE = 0.01
"""Changes of an error below this are not reported."""


def against(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two validation files: changes by scenario, and scenarios that only one has."""
    then, new = (
        {each["scenario"]: each["metrics"][METRIC] for each in content["scenarios"]}
        for content in (earlier, now)
    )
    common = [name for name in new if name in then]
    return {
        "metric": METRIC,
        "scenarios": {
            name: {
                part: _change(then[name][part], new[name][part])
                for part in ("error", "duration_error", "acceptance_error")
            }
            for name in common
        },
        "summary": {
            part: {
                figure: {"earlier": earlier["summary"][part][figure], "now": value}
                for figure, value in now["summary"][part].items()
                if figure != "worst_at"
            }
            for part in ("error", "duration_error", "utilization")
        },
        "only_earlier": [name for name in then if name not in new],
        "only_now": [name for name in new if name not in then],
    }


def changes(content: Mapping[str, Any]) -> list[str]:
    """Describe the changes that ``against`` found in sentences."""
    found = []
    for name, parts in content["scenarios"].items():
        error = parts["error"]
        if error["verdict"] != "same":
            found.append(
                f"{name}: {error['verdict']}, error {error['earlier']:+.1%} earlier, "
                f"{error['now']:+.1%} now (by durations {parts['duration_error']['earlier']:+.1%} "
                f"and {parts['duration_error']['now']:+.1%})"
            )
    median, bias = (content["summary"]["error"][figure] for figure in ("median", "bias"))
    found.append(
        f"{len(content['scenarios']) - len(found)} of {len(content['scenarios'])} scenarios as "
        f"far off as earlier; median error {median['earlier']:.1%} earlier, {median['now']:.1%} "
        f"now; signed mean {bias['earlier']:+.1%} earlier, {bias['now']:+.1%} now"
    )
    for key, when in (("only_earlier", "only earlier"), ("only_now", "new")):
        if content[key]:
            found.append(f"{when}: {', '.join(content[key])}")
    return found


def _change(earlier: float, now: float) -> dict[str, Any]:
    smaller = abs(earlier) - abs(now)
    verdict = "same" if abs(smaller) < NOTICEABLE else "better" if smaller > 0 else "worse"
    return {"earlier": earlier, "now": now, "verdict": verdict}
