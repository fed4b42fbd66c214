"""SpecPipe's width trade-off for real: time between tokens and hit rate against the layer's width.

A wider layer hits more often (P(w) saturates), and costs more where the device's time jumps, every
64 tokens on the authors' GPUs (SpecPipe, section 4.3). Four emulated stages have such a jump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from treepipe.results.metrics import UNITS
from treepipe.results.plots import GREY, MEASURED, PREDICTED, REPLAYED, band, clean
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Say
from treepipe.scenario.scenario import Scenario
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.cells import CALIBRATED_ON, SCENARIO
from treepipe.validation.comparison import Case, compare
from treepipe.validation.judgement import METRIC, Row, faults_of, warnings_of

NAME = "width-sweep"
HIT = "hit_rate"
KNEE = 64
"""Tokens up to which a pass is cheap."""
STAGE_MS = {1: 20.0, KNEE: 21.0, KNEE + 1: 38.0, 128: 40.0}
"""A made-up device: milliseconds of a stage's pass against tokens."""
CHILDREN = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done: the layers' widths, prompts and new tokens, the prediction's runs."""

    widths: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 96)
    prompts: int = 6
    new_tokens: int = 40
    runs: int = 8


def run(say: Say, full: bool) -> StudyResult:
    """All widths on 6 prompts, or on all 60."""
    return study(Settings(prompts=60) if full else Settings(), say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Predict and run every width."""
    cases = [_case(settings, width) for width in settings.widths]
    named = {row.label: row for row in compare(cases, say)}
    rows = dict(zip(settings.widths, named.values(), strict=True))  # one cluster: in order
    best = (
        min(rows, key=lambda w: rows[w].predicted.mean),
        min(rows, key=lambda w: rows[w].measured),
    )
    entries = [entry for width, row in rows.items() for entry in _entries(width, row)]
    entries.append(Entry("best_width", "nodes", best[0], measured=best[1]))
    return StudyResult(
        NAME,
        entries,
        [_sheet(rows)],
        {NAME: _figure(rows)},
        [f"best width: predicted {best[0]}, measured {best[1]}", *warnings_of(named)],
        faults_of(named),
    )


def _case(settings: Settings, width: int) -> Case:
    table = ", ".join(f"{tokens} = {time}" for tokens, time in STAGE_MS.items())
    return Case(
        f"width {width}",
        Scenario.load(
            SCENARIO,
            (
                "schedule.name=specpipe",
                f"schedule.width={width}",
                f"schedule.children={CHILDREN}",
                f"pipelines.0.stages.0.device={{ stage_ms = {{ {table} }}, prune_ms = 0.5 }}",
                f"workload.requests={settings.prompts}",
                f"workload.new_tokens={settings.new_tokens}",
                f"runs={settings.runs}",
            ),
        ),
        CALIBRATED_ON,
    )


def _entries(width: int, row: Row) -> list[Entry]:
    return [
        Entry(
            f"width={width}/{metric}",
            UNITS[metric],
            row.metrics[metric].mean,
            row.metrics[metric].low,
            row.metrics[metric].high,
            row.measured_metrics[metric],
        )
        for metric in (METRIC, HIT)
    ]


def _sheet(rows: Mapping[int, Row]) -> Sheet:
    sheet = Sheet(
        NAME,
        f"SpecPipe, 4 emulated stages with a jump beyond {KNEE} tokens: time between tokens (TBT)",
        [
            Column("width", shown="d"),
            Column("TBT predicted", "ms"),
            Column("low", "ms"),
            Column("high", "ms"),
            Column("TBT measured", "ms"),
            Column("error", shown="+.1%"),
            Column("of it durations", shown="+.1%"),
            Column("hit rate predicted", shown=".3f"),
            Column("hit rate measured", shown=".3f"),
            Column("draft utilization predicted", shown=".2f"),
            Column("draft utilization measured", shown=".2f"),
            Column("lossless"),
        ],
    )
    for width, row in rows.items():
        sheet.add(
            width,
            row.predicted.mean,
            row.predicted.low,
            row.predicted.high,
            row.measured,
            row.error,
            row.duration_error,
            row.metrics[HIT].mean,
            row.measured_metrics[HIT],
            row.predicted_utilization["draft0"],
            row.utilization["draft0"],
            row.lossless,
        )
    return sheet


def _figure(rows: Mapping[int, Row]) -> Figure:
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    axes: Any = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    widths = list(rows)
    shown = ((METRIC, "time between tokens (ms)"), (HIT, "hit rate (share of tokens)"))
    for panel, (metric, label) in zip(axes, shown, strict=True):
        panel.axvline(KNEE, color=GREY, ls=":", lw=1.2, label=f"the stages' knee: {KNEE} tokens")
        band(panel, widths, [row.metrics[metric] for row in rows.values()], PREDICTED)
        measured = [row.measured_metrics[metric] for row in rows.values()]
        if metric == METRIC:
            panel.plot(widths, [row.replayed for row in rows.values()], **REPLAYED)
            halves = [row.halves[1] for row in rows.values()]
            panel.errorbar(widths, measured, halves, capsize=3, lw=1.2, **MEASURED)
        else:
            panel.plot(widths, measured, **MEASURED)
        panel.set_ylabel(label)
        clean(panel)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    axes[1].set_xscale("log", base=2)
    axes[1].set_xticks(widths, [str(width) for width in widths])
    axes[1].minorticks_off()
    axes[1].set_xlabel("width w: most nodes of a tree layer")
    figure.suptitle("SpecPipe on 4 emulated stages (20 ms up to 64 tokens, 38 ms beyond)")
    return figure
