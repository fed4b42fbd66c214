"""Predictions beside runs as a report: what ``treepipe validate`` has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treepipe.report.background import background, file_chapter
from treepipe.report.page import Chapter, Picture, Report
from treepipe.results.timeline import timelines_figure
from treepipe.scenario.scenario import Scenario
from treepipe.validation.judgement import METRIC, Row
from treepipe.validation.plain import Agreement
from treepipe.validation.validate import (
    changes,
    explain,
    metrics_sheet,
    summary_sheet,
    utilization_sheet,
)


def validation_report(
    content: Mapping[str, Any],
    rows: Mapping[str, Row],
    scenarios: Sequence[Scenario],
    command: str = "",
) -> Report:
    """Args: ``content``: of the validation file. ``command``: what made the report, for a shell."""
    names = [each["scenario"] for each in content["scenarios"]]
    chapters = [_scenario(each, rows[each["scenario"]]) for each in content["scenarios"]]
    if len(names) > 1:
        chapters.insert(0, Chapter("All scenarios", tables=[summary_sheet(content["summary"])]))
    if "against" in content:
        chapters.append(Chapter("Since the earlier validation", changes(content["against"])))
    warnings = [w for each in content["scenarios"] for w in each["warnings"]]
    return Report(
        f"Validation: {names[0] if len(names) == 1 else f'{len(names)} scenarios'}",
        [f"How far off are predictions of {', '.join(names)}, and what is the error due to?"],
        _answer(content),
        [
            *chapters,
            *background(scenarios[0], warnings, command, scenarios),
            *map(file_chapter, scenarios[1:]),
        ],
    )


def _answer(content: Mapping[str, Any]) -> list[str]:
    """The error, its parts, and whether the texts are right."""
    summary, alone = content["summary"], len(content["scenarios"]) == 1
    lossless = [each["lossless"] for each in content["scenarios"]]
    right = (
        f"In {sum(map(bool, lossless))} of {len(lossless)} scenarios all texts are plain greedy "
        f"decoding's, but for ties by rounding."
    )
    if None in lossless:
        right = "Texts were sampled, so not all of them are compared with plain decoding's."
    if alone:
        (entry,) = content["scenarios"]
        time = entry["metrics"][METRIC]
        if entry["agreement"] is not None:
            said = str(Agreement(**entry["agreement"]))
            right = f"{said[0].upper()}{said[1:]}."
        return [
            f"{METRIC} was predicted as {time['predicted']:.4g} ms and measured as "
            f"{time['measured']:.4g} ms: {time['error']:+.1%}, of which "
            f"{time['duration_error']:+.1%} by durations and {time['acceptance_error']:+.1%} by "
            f"acceptance.",
            right,
        ]
    error, durations = summary["error"], summary["duration_error"]
    return [
        f"{METRIC} is off by {error['median']:.1%} in the median, {error['worst']:.1%} at worst "
        f"({error['worst_at']}) and {error['bias']:+.1%} in the mean; durations alone by "
        f"{durations['median']:.1%}, {durations['worst']:.1%} and {durations['bias']:+.1%}.",
        right,
    ]


def _scenario(entry: Mapping[str, Any], row: Row) -> Chapter:
    said = [each for each in explain(entry) if not each.startswith("warning: ")]
    traces = [("simulated, with this run's acceptance replayed", row.replay)]
    traces.append(("executed", row.execution))
    picture = Picture(
        timelines_figure(traces, row.label),
        f"{row.label}: what every device did, simulated and run",
    )
    tables = [metrics_sheet(entry), utilization_sheet(entry)]
    return Chapter(row.label, said, tables, [picture])
