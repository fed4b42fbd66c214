"""Predictions beside runs: sentences, tables, pictures, and the report of ``treepipe validate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treepipe.files.outputs import Failures
from treepipe.report.background import background, file_chapter
from treepipe.report.page import Chapter, Picture, Report
from treepipe.results.sheet import Sheet, columns
from treepipe.results.show import Scale
from treepipe.results.timeline import draw_timelines, timelines_figure
from treepipe.results.trace import write_chrome_trace
from treepipe.scenario.scenario import Scenario
from treepipe.validation.judgement import METRIC, Row
from treepipe.validation.plain import Agreement

FITS = 0.02
"""Relative difference below which the mean time of work matches its profile."""


def row_sheet(name: str, title: str, rows: Mapping[str, Row]) -> Sheet:
    """Show a line per row: the time between tokens, tokens per round as run, the draft's
    utilization, and the text."""
    times = ["predicted (ms)", "± (ms)", "measured (ms)", "error|+.1%", "of it durations|+.1%"]
    shares = ["draft utilization predicted|.2f", "measured|.2f"]
    heads = columns("schedule", *times, "tokens per round|.2f", *shares, "text = plain greedy")
    sheet = Sheet(title, heads, name=name)
    for label, row in rows.items():
        value, high = row.predicted.mean, row.predicted.high
        half = None if high is None else high - value
        busy = row.predicted_utilization["draft0"], row.utilization["draft0"]
        found = value, half, row.measured, row.error, row.duration_error, row.tokens_per_round
        sheet.add(label, *found, *busy, row.lossless)
    return sheet


# --- of entries of a validation file -------------------------------------------------------------


def explain(scenario: Mapping[str, Any]) -> list[str]:
    """Explain the errors of an entry's prediction in sentences."""
    time = scenario["metrics"][METRIC]
    side = "high" if time["error"] > 0 else "low"
    found = [
        f"time between tokens: {time['predicted']:.1f} ms predicted, {time['measured']:.1f} ms "
        f"measured, {abs(time['error']):.1%} too {side}: {time['duration_error']:+.1%} by "
        f"durations, {time['acceptance_error']:+.1%} by acceptance"
    ]
    if scenario["drift"] != 1:
        found.append(
            f"this machine took {scenario['drift']:.2f} times as long as when its host was "
            f"calibrated: with that taken off, which the run tells itself, "
            f"{scenario['drift_corrected_duration_error']:+.1%} by durations"
        )
    if time["run_low"] is not None:
        inside = time["run_low"] <= time["measured"] <= time["run_high"]
        found.append(
            f"a run's time between tokens was to lie from {time['run_low']:.1f} to "
            f"{time['run_high']:.1f} ms in 95 % of cases; this one's {'does' if inside else 'not'}"
        )
    found += _work(scenario) if scenario["work"] else []
    found += scenario.get("told", [])
    rounds = scenario["metrics"].get("tokens_per_round")
    if rounds is not None:
        found.append(
            f"acceptance: {rounds['predicted']:.2f} tokens per round predicted, "
            f"{rounds['measured']:.2f} measured"
        )
    if scenario["lossless"] is not None:
        found.append(str(Agreement(**scenario["agreement"])))
    return found + [f"warning: {warning}" for warning in scenario["warnings"]]


def _work(scenario: Mapping[str, Any]) -> list[str]:
    """List the kinds of work that took longer or shorter than simulated, the farthest off first."""
    off = {
        kind: times["measured_ms"] / times["replayed_ms"] - 1
        for kind, times in scenario["work"].items()
        if times["replayed_ms"]
    }
    other = [
        kind for kind in sorted(off, key=lambda kind: -abs(off[kind])) if abs(off[kind]) > FITS
    ]
    if not other and abs(scenario["metrics"][METRIC]["duration_error"]) > FITS:
        return [
            f"all work took what its profile says within {FITS:.0%}: what durations explain is "
            f"waiting between pieces of work (messages, waking up)"
        ]
    return [
        f"{kind}: {times['measured_ms']:.2f} ms measured, {times['replayed_ms']:.2f} ms "
        f"simulated ({off[kind]:+.0%}), {times['per_token']:.2g} times per token"
        for kind in other
        for times in [scenario["work"][kind]]
    ]


def metrics_sheet(scenario: Mapping[str, Any]) -> Sheet:
    """Show every metric: predicted, measured, error and its parts."""
    errors = "error|+.1%", "of it durations|+.1%", "of it acceptance|+.1%"
    heads = columns("metric", "unit", "predicted|.4g", "measured|.4g", *errors)
    sheet = Sheet(f"{scenario['scenario']}: metrics", heads, name="metrics")
    parts = ("error", "duration_error", "acceptance_error")
    for metric, each in scenario["metrics"].items():
        scale = Scale.of(each["unit"], each["predicted"], each["measured"])
        values = [each[side] / scale.size for side in ("predicted", "measured")]
        sheet.add(scale.name(metric), scale.unit, *values, *(each[part] for part in parts))
    return sheet


def utilization_sheet(scenario: Mapping[str, Any]) -> Sheet:
    """Show every device's busy share of time."""
    shares = "predicted|.3f", "replayed|.3f", "measured|.3f"
    heads = columns("device", *shares, "predicted - measured (points)|+.1f")
    sheet = Sheet(f"{scenario['scenario']}: utilization", heads, name="utilization")
    for device, share in scenario["utilization"].items():
        off = 100 * (share["predicted"] - share["measured"])
        sheet.add(device, share["predicted"], share["replayed"], share["measured"], off)
    return sheet


def summary_sheet(summary: Mapping[str, Any]) -> Sheet:
    """Show the summary over all scenarios."""
    heads = columns("|s", "bias|+.1%", "median|.1%", "worst|.1%", "at")
    sheet = Sheet(f"{summary['scenarios']} scenarios, sizes of errors", heads, name="summary")
    names = {
        "error": "time between tokens",
        "duration_error": "… of it durations",
        "acceptance_error": "… of it acceptance",
        "utilization": "utilization (of 1)",
    }
    for part, name in names.items():
        each = summary[part]
        sheet.add(name, each["bias"], each["median"], each["worst"], each["worst_at"])
    return sheet


def changes(content: Mapping[str, Any]) -> list[str]:
    """Describe the changes that ``validation.against`` found in sentences."""
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


def write_timelines(row: Row, path: Path) -> None:
    """Write ``path.png``, replay above run, and ``path-trace.json`` with the prediction."""
    traces = [("prediction", row.prediction), ("replay", row.replay), ("execution", row.execution)]
    picture, trace = (path.with_name(path.name + end) for end in (".png", "-trace.json"))
    with Failures() as failures:
        failures.attempt(write_chrome_trace, traces, trace, "--timelines")
        failures.attempt(draw_timelines, row.timelines, row.label, picture, option="--timelines")


# --- the page ------------------------------------------------------------------------------------


def validation_report(
    content: Mapping[str, Any],
    rows: Mapping[str, Row],
    scenarios: Sequence[Scenario],
    command: str = "",
) -> Report:
    """Make the page of a validation file's ``content``; it quotes the shell ``command``."""
    names = [each["scenario"] for each in content["scenarios"]]
    chapters = [_scenario(each, rows.get(each["scenario"])) for each in content["scenarios"]]
    if len(names) > 1:
        chapters.insert(0, Chapter("All scenarios", tables=[summary_sheet(content["summary"])]))
    if "against" in content:
        chapters.append(Chapter("Since the earlier validation", changes(content["against"])))
    warnings = [w for each in content["scenarios"] for w in each["warnings"]]
    chapters += background(scenarios[0], warnings, command, scenarios)
    return Report(
        f"Validation: {names[0] if len(names) == 1 else f'{len(names)} scenarios'}",
        [f"How far off are predictions of {', '.join(names)}, and what is the error due to?"],
        _answer(content),
        [*chapters, *map(file_chapter, scenarios[1:])],
    )


def _answer(content: Mapping[str, Any]) -> list[str]:
    lossless = [each["lossless"] for each in content["scenarios"]]
    right = (
        f"In {sum(map(bool, lossless))} of {len(lossless)} scenarios all texts are plain greedy "
        f"decoding's, but for ties by rounding."
    )
    if None in lossless:
        right = "Texts were sampled, so not all of them are compared with plain decoding's."
    if len(lossless) == 1:
        (entry,) = content["scenarios"]
        time = entry["metrics"][METRIC]
        if "told" in entry:
            right = entry["told"][0]
        elif entry["agreement"] is not None:
            said = str(Agreement(**entry["agreement"]))
            right = f"{said[0].upper()}{said[1:]}."
        return [
            f"{METRIC} was predicted as {time['predicted']:.4g} ms and measured as "
            f"{time['measured']:.4g} ms: {time['error']:+.1%}, of which "
            f"{time['duration_error']:+.1%} by durations and {time['acceptance_error']:+.1%} by "
            f"acceptance.",
            right,
        ]
    error, durations = (content["summary"][part] for part in ("error", "duration_error"))
    return [
        f"{METRIC} is off by {error['median']:.1%} in the median, {error['worst']:.1%} at worst "
        f"({error['worst_at']}) and {error['bias']:+.1%} in the mean; durations alone by "
        f"{durations['median']:.1%}, {durations['worst']:.1%} and {durations['bias']:+.1%}.",
        right,
    ]


def _scenario(entry: Mapping[str, Any], row: Row | None) -> Chapter:
    said = [each for each in explain(entry) if not each.startswith("warning: ")]
    if row is None:
        return Chapter(entry["scenario"], said, [metrics_sheet(entry)])
    picture = Picture(
        timelines_figure(row.timelines, row.label),
        f"{row.label}: what every device did, simulated and run",
    )
    return Chapter(row.label, said, [metrics_sheet(entry), utilization_sheet(entry)], [picture])
