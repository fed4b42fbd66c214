"""The command ``treepipe validate``: predict, run, replay, explain, and hold against earlier.

Law of this file: it writes and prints; figures come from ``validation.py``, runs from
``comparison.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treepipe.core.errors import RunError, UserError
from treepipe.files.outputs import Faults, check_outputs, claim_folder
from treepipe.results.result import write_json
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Progress, Scale, console, print_sheet
from treepipe.results.timeline import draw_timelines
from treepipe.results.trace import write_chrome_trace
from treepipe.scenario.scenario import Scenario
from treepipe.validation.comparison import Case, compared
from treepipe.validation.judgement import METRIC, Row, faults_of
from treepipe.validation.plain import Agreement
from treepipe.validation.validation import against, entry, load_validation, validation

FITS = 0.02
"""Work whose mean time is this close to its profile's is as the profile says."""
PARTS = (
    Column("predicted", shown=".4g"),
    Column("measured", shown=".4g"),
    Column("error", shown="+.1%"),
    Column("of it durations", shown="+.1%"),
    Column("of it acceptance", shown="+.1%"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for.

    Attributes:
        overrides: as ``--set`` takes them, for every scenario.
        calibrate_on: prompts to calibrate acceptance on, whatever the scenarios say.
        earlier: a validation file to compare with.
        timelines: folder for pictures and traces.
        report: folder for the page.
        command: what was typed, which the page repeats.
        force: whether an earlier page may be overwritten.
    """

    paths: Sequence[Path]
    overrides: Sequence[str] = ()
    calibrate_on: str | None = None
    json: str | None = None
    earlier: Path | None = None
    timelines: Path | None = None
    quiet: bool = False
    report: Path | None = None
    command: str = ""
    force: bool = False


def perform(request: Request) -> dict[str, Any]:
    """Validate and show; returns the file's content.

    Raises:
        UserError: something that was given is wrong.
        RunError: a run failed, a text is not plain greedy decoding's, or a file could not be
            written.
    """
    earlier = None
    if request.earlier is not None:
        earlier = load_validation(request.earlier, "--against")
    if request.timelines is not None:
        claim_folder(request.timelines, "--timelines")
    check_outputs(
        {"--json": request.json, "--report": request.report},
        inputs=request.paths,
        keep=() if request.force else ("--report",),
    )
    cases = [
        Case(label, Scenario.load(path, request.overrides), request.calibrate_on)
        for label, path in _labels(request.paths).items()
    ]
    with Progress(request.quiet) as say:
        rows = compared(cases, say)
    content = validation([entry(row) for row in rows.values()])
    if earlier is not None:
        content["against"] = against(earlier, content)
    with Faults() as faults:
        faults.attempt(_write, request, content, rows)
        if request.report is not None:
            from treepipe.report.page import write_report
            from treepipe.validation.validation_report import validation_report

            scenarios = [case.scenario for case in cases]
            page = validation_report(content, rows, scenarios, request.command)
            faults.attempt(write_report, page, request.report)
        if not request.quiet and request.json != "-":
            _show(content)
        wrong = faults_of(rows)
        if wrong:
            raise RunError("; ".join(wrong))
    return content


def explain(scenario: Mapping[str, Any]) -> list[str]:
    """Why a prediction was off, in sentences. Args: ``scenario``: an entry of the file."""
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
    off = {
        kind: times["measured_ms"] / times["replayed_ms"] - 1
        for kind, times in scenario["work"].items()
        if times["replayed_ms"]
    }
    other = [kind for kind, by in sorted(off.items(), key=lambda o: -abs(o[1])) if abs(by) > FITS]
    for kind in other:
        times = scenario["work"][kind]
        found.append(
            f"{kind}: {times['measured_ms']:.2f} ms measured, {times['replayed_ms']:.2f} ms "
            f"simulated ({off[kind]:+.0%}), {times['per_token']:.2g} times per token"
        )
    if not other and abs(time["duration_error"]) > FITS:
        found.append(
            f"all work took what its profile says within {FITS:.0%}: what durations explain is "
            f"waiting between pieces of work (messages, waking up)"
        )
    rounds = scenario["metrics"].get("tokens_per_round")
    if rounds is not None:
        found.append(
            f"acceptance: {rounds['predicted']:.2f} tokens per round predicted, "
            f"{rounds['measured']:.2f} measured"
        )
    if scenario["lossless"] is not None:
        found.append(str(Agreement(**scenario["agreement"])))
    return found + [f"warning: {warning}" for warning in scenario["warnings"]]


def metrics_sheet(scenario: Mapping[str, Any]) -> Sheet:
    """Every metric: predicted, measured, error and its parts."""
    name = scenario["scenario"]
    sheet = Sheet("metrics", f"{name}: metrics", [Column("metric"), Column("unit"), *PARTS])
    parts = ("error", "duration_error", "acceptance_error")
    for metric, each in scenario["metrics"].items():
        scale = Scale.of(each["unit"], each["predicted"], each["measured"])
        values = [each[side] / scale.size for side in ("predicted", "measured")]
        sheet.add(scale.name(metric), scale.unit, *values, *(each[part] for part in parts))
    return sheet


def utilization_sheet(scenario: Mapping[str, Any]) -> Sheet:
    """Every device: busy share of time."""
    shares = [Column(each, shown=".3f") for each in ("predicted", "replayed", "measured")]
    columns = [Column("device"), *shares, Column("predicted - measured", "points", "+.1f")]
    sheet = Sheet("utilization", f"{scenario['scenario']}: utilization", columns)
    for device, share in scenario["utilization"].items():
        off = 100 * (share["predicted"] - share["measured"])
        sheet.add(device, share["predicted"], share["replayed"], share["measured"], off)
    return sheet


def summary_sheet(summary: Mapping[str, Any]) -> Sheet:
    """Many scenarios in a few figures."""
    columns = [Column("", shown="s"), Column("bias", shown="+.1%"), Column("median", shown=".1%")]
    columns += [Column("worst", shown=".1%"), Column("at")]
    sheet = Sheet("summary", f"{summary['scenarios']} scenarios, sizes of errors", columns)
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
    """What got better or worse, in sentences. Args: ``content``: of ``validation.against``."""
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


def _labels(paths: Sequence[Path]) -> dict[str, Path]:
    """Scenarios by the names of their files, or by their paths where two are called the same."""
    stems = [path.stem for path in paths]
    found = {
        stem if stems.count(stem) == 1 else str(p): p for stem, p in zip(stems, paths, strict=True)
    }
    if len(found) < len(paths):
        twice = next(path for path in paths if list(paths).count(path) > 1)
        raise UserError(f"{twice}: is given twice")
    return found


def _write(request: Request, content: Mapping[str, Any], rows: Mapping[str, Row]) -> None:
    with Faults() as faults:
        if request.json is not None:
            faults.attempt(write_json, content, request.json)
        if request.timelines is not None:
            for name, row in rows.items():
                faults.attempt(write_timelines, row, request.timelines / name.replace("/", "-"))


def write_timelines(row: Row, path: Path) -> None:
    """``path.png``, replay above run, and ``path-trace.json`` with the prediction, too."""
    shown = [("simulated, with this run's acceptance replayed", row.replay)]
    shown.append(("executed", row.execution))
    traces = [("prediction", row.prediction), ("replay", row.replay), ("execution", row.execution)]
    picture, trace = (path.with_name(path.name + end) for end in (".png", "-trace.json"))
    with Faults() as faults:
        faults.attempt(write_chrome_trace, traces, trace, "--timelines")
        faults.attempt(draw_timelines, shown, row.label, picture, option="--timelines")


def _show(content: Mapping[str, Any]) -> None:
    shown = console()
    for scenario in content["scenarios"]:
        print_sheet(shown, metrics_sheet(scenario))
        print_sheet(shown, utilization_sheet(scenario))
        for sentence in explain(scenario):
            shown.print(sentence, highlight=False)
    if len(content["scenarios"]) > 1:
        print_sheet(shown, summary_sheet(content["summary"]))
        correlation = content["summary"]["pearson_r"]
        if correlation is not None:
            shown.print(f"predicted and measured: Pearson's r = {correlation:.4f}")
    if "against" in content:
        for sentence in changes(content["against"]):
            shown.print(sentence, highlight=False)
