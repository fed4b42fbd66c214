"""The measured column of a study: its own points, run on real processes beside the predictions.

The devices, links and schedule are the study's. The models are the bundled pair, and every worker
emulates its device's time: this tests the composition of times, not whether a study's durations are
those of the papers' servers. Independent of any paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from treepipe.profiles.library import HELD_OUT
from treepipe.progress import Progress
from treepipe.results.metrics import METRICS
from treepipe.results.sheet import Sheet, columns
from treepipe.scenario.scenario import Scenario
from treepipe.studies.study import Entry, Measuring, StudyResult
from treepipe.validation.comparison import Case, compared
from treepipe.validation.judgement import Cut, Row, faults_of, warnings_of
from treepipe.validation.validation import spread

BUNDLED: Mapping[str, Any] = {
    "emulate": True,
    "target": {"checkpoint": "reference", "layers": 8},
    "acceptance": {"source": "profile", "name": "reference"},  # replaced by a calibration
    "workload.prompts": HELD_OUT,
    "workload.stop_at_end_of_text": False,
}


def on_bundled_pair(scenario: Scenario, measuring: Measuring) -> Scenario:
    """Replace the models by the bundled pair; keep devices, links and schedule."""
    content = scenario.content
    for pipeline in content["pipelines"]:
        for stage in pipeline["stages"]:
            stage.pop("layers", None)
    for draft in content["drafts"]:
        draft["model"] = {"checkpoint": "reference"}
    changes = {
        **BUNDLED,
        "pipelines": content["pipelines"],
        "drafts": content["drafts"],
        "runs": measuring.runs,
        "workload.requests": content["workload"].get("concurrency", 1) * measuring.prompts,
        "workload.new_tokens": measuring.new_tokens,
    }
    return scenario.with_(**changes)


@dataclass(frozen=True, slots=True)
class Axis:
    """The varied parameter: its ``key`` in ``measured/KEY=VALUE/METRIC``, and its name in words."""

    key: str
    name: str


@dataclass(frozen=True, slots=True)
class MeasuredColumn:
    """Points by value of the varied parameter, each predicted with the bundled pair, then run; and
    the study's metrics with their names on its page. The error of the first metric is split."""

    axis: Axis
    rows: Mapping[int, Row]
    metrics: Mapping[str, str]

    def join(self, result: StudyResult, title: str, entries: Sequence[Entry] = ()) -> None:
        """Add figures, table and sentence to the study's page, and further ``entries``."""
        name = f"{result.study}-measured"
        named = {f"{self.axis.key} {value}": row for value, row in self.rows.items()}
        result.rows += [*self.entries(), *entries]
        result.tables.append(self.sheet(name, title))
        result.findings.append(self.finding())
        result.warnings |= warnings_of(named)
        result.faults += faults_of(named)

    def entries(self) -> list[Entry]:
        found = []
        for (value, row), metric in product(self.rows.items(), self.metrics):
            key, unit = f"measured/{self.axis.key}={value}/{metric}", METRICS[metric].unit
            found.append(Entry.of(key, unit, row.metrics[metric], row.measured_metrics[metric]))
        return found

    def finding(self) -> str:
        metric, name = next(iter(self.metrics.items()))
        errors = spread({str(n): row.error_of(metric) for n, row in self.rows.items()})
        durations = spread({str(n): row.duration_error_of(metric) for n, row in self.rows.items()})
        return (
            f"run on real processes with the bundled pair, devices emulated: {name} predicted to "
            f"{errors['worst']:.1%} at worst ({self.axis.key} {errors['worst_at']}), "
            f"{errors['bias']:+.1%} in the mean; durations alone to {durations['worst']:.1%}, "
            f"{durations['bias']:+.1%} in the mean"
        )

    def sheet(self, name: str, title: str) -> Sheet:
        """Show predicted beside measured figures."""
        first, heads = next(iter(self.metrics)), [f"{self.axis.name}|d"]
        for metric, called in self.metrics.items():
            unit = _unit(metric, " ({})")
            heads += [f"{called}, predicted{unit}|.4g", f"measured{unit}|.4g"]
        heads += [f"error of the {self.metrics[first]}|+.1%", "of it durations|+.1%"]
        sheet = Sheet(title, columns(*heads, "text = plain greedy"), name=name)
        for value, row in self.rows.items():
            pairs = ((row.metrics[m].mean, row.measured_metrics[m]) for m in self.metrics)
            errors = row.error_of(first), row.duration_error_of(first)
            sheet.add(value, *(each for pair in pairs for each in pair), *errors, row.lossless)
        return sheet


def _unit(metric: str, form: str) -> str:
    unit = METRICS[metric].unit
    return "" if unit == "1" else form.format(unit)


def measure(
    axis: Axis,
    scenarios: Mapping[int, Scenario],
    metrics: Mapping[str, str],
    measuring: Measuring,
    say: Progress,
    cut: Cut = lambda trace: trace,
) -> MeasuredColumn:
    """Predict all points with the bundled pair, then run them; ``cut``: the measured part."""
    cases = [
        Case(f"{axis.key} {value}", on_bundled_pair(scenario, measuring), measuring.calibrated_on)
        for value, scenario in scenarios.items()
    ]
    rows = compared(cases, say, cut)
    return MeasuredColumn(axis, dict(zip(scenarios, rows.values(), strict=True)), metrics)
