"""The measured column of a study: its own points, run on real processes beside what is predicted.

The devices, links and schedule are the study's. The models are the bundled pair, as nobody has the
papers' servers at hand, and every worker lives in its device's time: so it is tried how times are
composed, not whether a study's durations are those of the servers. Law of this file: it knows no
paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from treepipe.results.metrics import METRICS
from treepipe.results.plots import MEASURED, PREDICTED, REPLAYED
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Say
from treepipe.results.trace import Trace
from treepipe.scenario.scenario import Scenario
from treepipe.studies.plots import Line, Panel, line_figure
from treepipe.studies.study import Entry, Measuring, StudyResult
from treepipe.validation.comparison import Case, compared
from treepipe.validation.judgement import Cut, Row, faults_of
from treepipe.validation.validation import spread

BUNDLED: Mapping[str, Any] = {
    "emulate": True,
    "target": {"checkpoint": "reference", "layers": 8},
    "acceptance": {"source": "profile", "name": "reference"},  # calibrated anew
    "workload.prompts": "reference:heldout",
    "workload.stop_at_end_of_text": False,
}


def on_bundled_pair(scenario: Scenario, measuring: Measuring) -> Scenario:
    """The same devices, links and schedule; the bundled pair's layers are shared evenly."""
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
    """What a study varies.

    Attributes:
        key: in the entries' keys: ``measured/KEY=VALUE/METRIC``.
        name: in words, of the table's first column and the plot's axis.
        log: whether the plot's axis is logarithmic, to the base of 2.
    """

    key: str
    name: str
    log: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredColumn:
    """Points by the value of what is varied, each predicted with the bundled pair, then run.

    Attributes:
        metrics: those that the study is about, by what they are called on its page; the first
            one's error is split.
    """

    axis: Axis
    rows: Mapping[int, Row]
    metrics: Mapping[str, str]

    def join(self, result: StudyResult, title: str, entries: Sequence[Entry] = ()) -> None:
        """Put its figures, its table, its plot, and what it says on the study's page.

        Args: ``entries``: what the study itself makes of the rows.
        """
        name = f"{result.study}-measured"
        named = {f"{self.axis.key} {value}": row for value, row in self.rows.items()}
        result.rows += [*self.entries(), *entries]
        result.tables.append(self.sheet(name, title))
        result.figures[name] = self.figure(title)
        result.findings += [self.finding(), *self.warnings()]
        result.faults += faults_of(named)

    def entries(self) -> list[Entry]:
        """Every metric at every point."""
        found = []
        for value, row in self.rows.items():
            for metric in self.metrics:
                key, seen = f"measured/{self.axis.key}={value}/{metric}", row.metrics[metric]
                figures = seen.mean, seen.low, seen.high, row.measured_metrics[metric]
                found.append(Entry(key, METRICS[metric].unit, *figures))
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

    def warnings(self) -> list[str]:
        """Each once, with the points that it holds for."""
        where: dict[str, list[str]] = {}
        for value, row in self.rows.items():
            for warning in row.warnings:
                where.setdefault(warning, []).append(str(value))
        return [f"{self.axis.key} {', '.join(values)}: {said}" for said, values in where.items()]

    def sheet(self, name: str, title: str) -> Sheet:
        """Predicted beside measured."""
        first = next(iter(self.metrics))
        columns = [Column(self.axis.name, shown="d")]
        for metric, called in self.metrics.items():
            unit = "" if METRICS[metric].unit == "1" else METRICS[metric].unit
            columns.append(Column(f"{called}, predicted", unit, ".4g"))
            columns.append(Column("measured", unit, ".4g"))
        columns.append(Column(f"error of the {self.metrics[first]}", shown="+.1%"))
        columns.append(Column("of it durations", shown="+.1%"))
        sheet = Sheet(name, title, [*columns, Column("text = plain greedy")])
        for value, row in self.rows.items():
            pairs = ((row.metrics[m].mean, row.measured_metrics[m]) for m in self.metrics)
            errors = row.error_of(first), row.duration_error_of(first)
            sheet.add(value, *(each for pair in pairs for each in pair), *errors, row.lossless)
        return sheet

    def figure(self, title: str) -> Figure:
        """A panel per metric."""
        panels = []
        for metric, called in self.metrics.items():
            seen = {value: row.metrics[metric] for value, row in self.rows.items()}
            replayed = {value: row.replayed_metrics[metric] for value, row in self.rows.items()}
            measured = {value: row.measured_metrics[metric] for value, row in self.rows.items()}
            styles = (seen, PREDICTED), (replayed, REPLAYED), (measured, MEASURED)
            unit = "" if METRICS[metric].unit == "1" else f"\n({METRICS[metric].unit})"
            lines = [Line(values, style) for values, style in styles]
            panels.append(Panel(called + unit, lines, zero=False))
        return line_figure(title, self.axis.name, panels, log=self.axis.log)


def measure(
    axis: Axis,
    scenarios: Mapping[int, Scenario],
    metrics: Mapping[str, str],
    measuring: Measuring,
    say: Say,
    cut: Cut | None = None,
) -> MeasuredColumn:
    """Predict all points with the bundled pair, then run them.

    Args:
        cut: what is measured of a run; all of it if not given.
    """
    cases = [
        Case(f"{axis.key} {value}", on_bundled_pair(scenario, measuring), measuring.calibrated_on)
        for value, scenario in scenarios.items()
    ]
    rows = compared(cases, say, cut or _whole)
    return MeasuredColumn(axis, dict(zip(scenarios, rows.values(), strict=True)), metrics)


def _whole(trace: Trace) -> Trace:
    return trace
