"""Predictions beside runs: sentences, tables and pictures of ``treepipe validate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treepipe.files.outputs import Failures
from treepipe.results.result import data_frame
from treepipe.results.sheet import Sheet, columns, notebook
from treepipe.results.timeline import draw_timelines, timelines_figure
from treepipe.results.trace import write_chrome_trace
from treepipe.results.units import Scale
from treepipe.validation.judgement import METRIC, Row
from treepipe.validation.plain import Agreement
from treepipe.validation.validation import (
    BusyShares,
    MetricErrors,
    busy_shares,
    entry,
    metric_errors,
    validation,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


@dataclass(frozen=True)
class Validation:
    """Predictions, runs and their relative errors, of the first scenario unless all are meant.

    >>> Validation(()).warnings
    ()
    """

    rows: tuple[Row, ...]

    @property
    def metrics(self) -> dict[str, MetricErrors]:
        """Predicted, replayed and measured figures, with errors."""
        return metric_errors(self.rows[0])

    @property
    def utilization(self) -> dict[str, BusyShares]:
        """Busy shares, predicted, replayed and measured, by device."""
        return busy_shares(self.rows[0])

    @property
    def lossless(self) -> bool | None:
        """Whether all texts equal plain greedy decoding; None where texts are sampled."""
        found = [row.lossless for row in self.rows]
        return None if None in found else all(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of all scenarios."""
        return tuple(warning for row in self.rows for warning in row.warnings)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file ``treepipe.validation/1``, of all scenarios."""
        return validation([entry(row) for row in self.rows])

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` of the metrics; ``UserError`` without pandas."""
        return data_frame([{"name": name, **asdict(each)} for name, each in self.metrics.items()])

    def plot(self) -> Figure:
        """Draw the timelines, simulated with the run's acceptance and executed."""
        row = self.rows[0]
        return timelines_figure([("simulated", row.replay), ("executed", row.execution)], row.label)

    def __repr__(self) -> str:
        return "\n".join(
            f"{row.label}: {row.predicted.mean:.4g} ms between tokens predicted, "
            f"{row.measured:.4g} ms measured ({row.error:+.1%})"
            for row in self.rows
        )

    def _repr_html_(self) -> str:
        return notebook([metrics_sheet(entry(self.rows[0]))], self.warnings)


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
