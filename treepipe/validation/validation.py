"""Errors of predictions and their parts: the validation file, its sentences, tables and pictures.

An error is signed and relative to the measurement; the duration error remains when the run's
acceptance is replayed, the rest is acceptance error. The file is ``treepipe.validation/1``.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treepipe.files.outputs import Failures
from treepipe.results.estimates import summarize
from treepipe.results.metrics import METRICS, utilization
from treepipe.results.result import data_frame
from treepipe.results.screen import Screen, Shown
from treepipe.results.sheet import Sheet, columns, words
from treepipe.results.statistics import Interval
from treepipe.results.timeline import draw_timelines, timelines_figure
from treepipe.results.trace import Trace, write_chrome_trace
from treepipe.results.units import Scale
from treepipe.validation.judgement import METRIC, Agreement, Row, lengths_ms

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SCHEMA = "treepipe.validation/1"


@dataclass(frozen=True, slots=True)
class MetricErrors:
    """A metric as predicted, replayed and measured, and its errors (None if 0 was measured); the 95
    % prediction interval of a run is ``run_low`` to ``run_high`` (None after one simulation)."""

    predicted: float
    replayed: float
    measured: float
    unit: str
    error: float | None
    duration_error: float | None
    acceptance_error: float | None
    run_low: float | None
    run_high: float | None


@dataclass(frozen=True, slots=True)
class BusyShares:
    """A device's share of time at work as predicted, replayed and measured."""

    predicted: float
    replayed: float
    measured: float


def metric_errors(row: Row) -> dict[str, MetricErrors]:
    """Return the errors of a case's metrics."""
    return errors_of(row.metrics, row.of_a_run, row.measured_metrics, row.replayed_metrics)


def errors_of(
    predicted: Mapping[str, Interval],
    of_a_run: Mapping[str, Interval],
    measured: Mapping[str, float],
    replayed: Mapping[str, float],
) -> dict[str, MetricErrors]:
    """Return the errors of all metrics that prediction, run and replay have."""
    found = {}
    for name in METRICS:
        if all(name in each for each in (predicted, measured, replayed)):
            means = predicted[name].mean, replayed[name], measured[name]
            apart = (means[0] - means[2], means[1] - means[2], means[0] - means[1])
            errors = [each / means[2] if means[2] else None for each in apart]
            run = of_a_run[name]
            values = *means, METRICS[name].unit
            found[name] = MetricErrors(*values, *errors, *[run.low, run.high])
    return found


def busy_shares(row: Row) -> dict[str, BusyShares]:
    """Return the busy shares of all devices."""
    predicted, replayed = row.predicted_utilization, utilization(row.replay)
    return {
        name: BusyShares(predicted[name], replayed[name], share)
        for name, share in row.utilization.items()
    }


def entry(row: Row) -> dict[str, Any]:
    """Return the entry of one scenario in a validation file."""
    measured, shares = summarize([row.execution])
    return {
        "scenario": row.label,
        "schedule": row.schedule,
        "prediction": {
            "metrics": intervals_of(row.metrics),
            "utilization": dict(row.predicted_utilization),
        },
        "measurement": {
            "metrics": intervals_of(measured),
            "utilization": {name: share.as_dict() for name, share in shares.items()},
        },
        "metrics": {name: asdict(each) for name, each in metric_errors(row).items()},
        "utilization": {name: asdict(each) for name, each in busy_shares(row).items()},
        "work": work(row.replay, row.execution),
        "drift": row.drift,
        "drift_corrected_duration_error": row.drift_corrected_duration_error,
        "lossless": row.lossless,
        "agreement": None if row.agreement is None else asdict(row.agreement),
        "warnings": list(row.warnings),
    }


def validation(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the file's content; a single scenario's keys are also at the top level."""
    alone, total = entries[0] if len(entries) == 1 else {}, summary(entries)
    first = {"schema": SCHEMA, "answer": f"{_in_words(entries, total)}."}
    return {**first, **alone, "scenarios": list(entries), "summary": total}


def work(replay: Trace, execution: Trace) -> dict[str, dict[str, float]]:
    """Return mean milliseconds, replayed and measured, of each kind of work (and of transfers), and
    its number per new token of the run."""
    tokens = sum(len(request.tokens) for request in execution.requests)
    found: dict[str, dict[str, float]] = {}
    for kind in sorted({span.kind for span in execution.spans}):
        ran, simulated = (lengths_ms(trace, kind) for trace in (execution, replay))
        if simulated and tokens:
            found[kind] = {
                "replayed_ms": statistics.fmean(simulated),
                "measured_ms": statistics.fmean(ran),
                "per_token": len(ran) / tokens,
            }
    return found


def summary(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize the errors of ``METRIC`` over all scenarios: bias, median and worst error,
    correlation; and the errors of utilization in points over all devices."""
    cells = {each["scenario"]: each["metrics"][METRIC] for each in entries}
    found: dict[str, Any] = {"metric": METRIC, "scenarios": len(cells)}
    for part in ("error", "duration_error", "acceptance_error"):
        found[part] = spread({name: cell[part] for name, cell in cells.items()})
    pairs = [(cell["predicted"], cell["measured"]) for cell in cells.values()]
    found["pearson_r"] = _correlation(pairs)
    found["utilization"] = spread(
        {
            f"{each['scenario']}: {device}": share["predicted"] - share["measured"]
            for each in entries
            for device, share in each["utilization"].items()
        }
    )
    return found


def intervals_of(metrics: Mapping[str, Interval]) -> dict[str, Any]:
    """Return metrics as a file holds them."""
    return {
        name: {**metrics[name].as_dict(), "unit": metric.unit}
        for name, metric in METRICS.items()
        if name in metrics
    }


def spread(errors: Mapping[str, float]) -> dict[str, Any]:
    """Return signed errors' mean (bias), the median and largest of sizes, and the latter's name;
    None where there are no errors."""
    if not errors:
        return dict.fromkeys(("bias", "median", "worst", "worst_at"))
    worst = max(errors, key=lambda name: abs(errors[name]))
    return {
        "bias": statistics.fmean(errors.values()),
        "median": statistics.median([abs(error) for error in errors.values()]),
        "worst": abs(errors[worst]),
        "worst_at": worst,
    }


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Pearson's r; None for fewer than three pairs, or equal ones."""
    table = np.array(pairs, float).T
    if len(pairs) < 3 or not np.ptp(table, axis=1).all():
        return None
    return float(np.corrcoef(table)[0, 1])


FITS = 0.02
"""Relative difference below which the mean time of work matches its profile."""


@dataclass(frozen=True, repr=False)
class Validation(Shown):
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

    @property
    def screen(self) -> Screen:
        return validation_screen(self.to_json())


# --- of entries of a validation file -------------------------------------------------------------


def validation_screen(content: Mapping[str, Any]) -> Screen:
    """Make the screen of a validation file's content."""
    entries, total, r = content["scenarios"], content["summary"], content["summary"]["pearson_r"]
    explained = [explain(each) for each in entries]
    cells = {each["scenario"]: each["metrics"][METRIC] for each in entries}
    table = _errors_sheet("time between tokens", cells)
    named = [(_errors_sheet(f"{e['scenario']}: metrics", e["metrics"]), e) for e in entries]
    tables = [each for sheet, e in named for each in (sheet, utilization_sheet(e))]
    together = [] if r is None else [f"Predicted and measured: Pearson's r = {r:.4f}."]
    notes = [f"{each}." for each in explained[0][1:4]] if len(entries) == 1 else together
    if len(entries) > 1:
        tables += [table, summary_sheet(total)]
    return Screen(
        _in_words(entries, total),
        tables[0] if len(entries) == 1 else table,
        notes,
        [warning for each in entries for warning in each["warnings"]],
        tables=[each for each in tables if each.rows],
        sentences=[*(sentence for each in explained for sentence in each), *together],
    )


PARTS = ("error", "duration_error", "acceptance_error")


def _in_words(entries: Sequence[Mapping[str, Any]], total: Mapping[str, Any]) -> str:
    """Return the answer: the error of one scenario, or the sizes of several ones' errors."""
    if len(entries) == 1:
        return f"{entries[0]['scenario']}: {_error_in_words(entries[0])}"
    error = total["error"]
    if not entries:
        return "nothing was compared"
    return (
        f"{len(entries)} scenarios: the time between tokens is off by {error['median']:.1%} in the "
        f"median, by {error['worst']:.1%} at worst ({error['worst_at']})"
    )


def _error_in_words(scenario: Mapping[str, Any]) -> str:
    time = scenario["metrics"][METRIC]
    side = "high" if time["error"] > 0 else "low"
    return (
        f"time between tokens: {time['predicted']:.1f} ms predicted, {time['measured']:.1f} ms "
        f"measured, {abs(time['error']):.1%} too {side}: {time['duration_error']:+.1%} by "
        f"durations, {time['acceptance_error']:+.1%} by acceptance"
    )


def explain(scenario: Mapping[str, Any]) -> list[str]:
    """Explain the errors of an entry's prediction in sentences."""
    time, found = scenario["metrics"][METRIC], [_error_in_words(scenario)]
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
    return found


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


def _errors_sheet(title: str, cells: Mapping[str, Mapping[str, Any]]) -> Sheet:
    """Show errors by metric or scenario, and which part of each is whose."""
    heads = columns("predicted|.4g", "measured|.4g", "error|+.1%", "durations|+.1%")
    heads = [*words("", "unit"), *heads, *columns("acceptance|+.1%")]
    sheet = Sheet(title, heads, name="metrics")
    for name, each in cells.items():
        scale = Scale.of(each["unit"], each["predicted"], each["measured"])
        values = [each[side] / scale.size for side in ("predicted", "measured")]
        sheet.add(scale.name(name), scale.unit, *values, *(each[part] for part in PARTS))
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


def write_timelines(row: Row, path: Path, option: str = "--timelines") -> None:
    """Write ``path.png``, replay above run, and ``path-trace.json`` with the prediction."""
    traces = [("prediction", row.prediction), ("replay", row.replay), ("execution", row.execution)]
    picture, trace = (path.with_name(path.name + end) for end in (".png", "-trace.json"))
    with Failures() as failures:
        failures.attempt(write_chrome_trace, traces, trace, option)
        failures.attempt(draw_timelines, row.timelines, row.label, picture, option=option)
