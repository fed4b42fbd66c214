"""Errors of predictions and their parts, and summaries over scenarios.

Converts rows to the content of a validation file (``treepipe.validation/1``). An error is signed
and relative to the measurement; the duration error remains when the run's acceptance is replayed,
the rest is acceptance error.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treepipe.core.errors import UserError
from treepipe.files.reading import UNREADABLE, parse_json, read_text, reading_fault
from treepipe.results.estimates import summarize
from treepipe.results.metrics import METRICS, utilization
from treepipe.results.statistics import Interval
from treepipe.results.trace import Trace
from treepipe.validation.judgement import METRIC, Row, lengths_ms

SCHEMA = "treepipe.validation/1"
NOTICEABLE = 0.01
"""Changes of an error below this are not reported."""


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
    alone = entries[0] if len(entries) == 1 else {}
    return {"schema": SCHEMA, **alone, "scenarios": list(entries), "summary": summary(entries)}


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


def load_validation(path: Path, key: str) -> dict[str, Any]:
    """Load the validation file that ``key`` names; raises ``UserError``."""
    try:
        content = parse_json(read_text(path))
        if content["schema"] != SCHEMA:
            raise ValueError(f"key schema = {content['schema']!r}, not {SCHEMA!r}")
        for each in content["scenarios"]:
            _ = each["scenario"], each["metrics"][METRIC]["error"]
        _ = content["summary"]["error"]["median"], content["summary"]["utilization"]["median"]
    except FileNotFoundError:
        raise UserError(f"{key} {path}: there is no such file") from None
    except KeyError as missing:
        raise UserError(f"{key} {path}: is no validation: key {missing} is missing") from None
    except (*UNREADABLE, TypeError) as error:
        raise UserError(f"{key} {path}: is no validation: {reading_fault(error)}") from None
    return dict(content)


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


def _change(earlier: float, now: float) -> dict[str, Any]:
    smaller = abs(earlier) - abs(now)
    verdict = "same" if abs(smaller) < NOTICEABLE else "better" if smaller > 0 else "worse"
    return {"earlier": earlier, "now": now, "verdict": verdict}
