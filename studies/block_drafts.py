"""The study ``block-drafts``: a tree from one draft pass under FlowSpec, SpecPipe and PipeDec.

The demonstration's cluster with the bundled models; only the draft and the time of its passes
differ. A pass takes as long whichever draft runs it: a level of the language model or of the EAGLE
head, a whole block of the block draft. A fourth, counterfactual draft takes a block's time and is
accepted as the EAGLE head, which tells the effect of time from that of acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from treepipe.progress import Progress
from treepipe.results.estimates import observe
from treepipe.results.plots import clean, whiskers
from treepipe.results.sheet import Sheet, columns
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict
from treepipe.studies.plots import SHADES
from treepipe.studies.reproduction import fill
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.cells import SCENARIO
from treepipe.validation.comparison import Case, compared
from treepipe.validation.judgement import METRIC, Row, faults_of, warnings_of
from treepipe.validation.validation import spread

NAME = "block-drafts"
PAGE = Path(__file__).with_suffix(".md")
SYSTEMS = ("flowspec", "specpipe", "pipedec")
MODEL, EAGLE, BLOCK = "language model", "EAGLE head", "block draft"
AS_EAGLE = "block's time, EAGLE's acceptance"
DRAFTS: Mapping[str, Mapping[str, Any]] = {
    MODEL: {"drafts.0.source": "model", "acceptance.name": "reference"},
    EAGLE: {
        "drafts.0.source": "eagle",
        "drafts.0.head": "reference",
        "acceptance.name": "reference-eagle",
    },
    BLOCK: {
        "drafts.0.source": "block",
        "drafts.0.head": "reference",
        "acceptance.name": "reference-block",
    },
    AS_EAGLE: {
        "drafts.0.source": "eagle",
        "drafts.0.head": "reference",
        "drafts.0.one_pass": True,
        "acceptance.name": "reference-eagle",
    },
}
"""Keys of each draft."""
Place: TypeAlias = tuple[str, str, float]
"""System, draft, and time of a draft pass (ms)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Times of a draft pass (ms) to predict with, those also run, and the sizes of both."""

    pass_ms: Sequence[float] = (1.0, 3.0, 6.0, 12.0, 20.0)
    measured_ms: Sequence[float] = (12.0, 3.0)
    systems: Sequence[str] = SYSTEMS
    requests: int = 3
    measured_requests: int = 2
    new_tokens: int = 40
    runs: int = 8


SHORT = Settings(measured_ms=(12.0,))
FULL = Settings(requests=9, measured_requests=9, runs=6)
"""As many prompts of each of the three kinds, as pools have (see the page)."""


def scenario_of(place: Place, requests: int, settings: Settings) -> Scenario:
    system, draft, pass_ms = place
    times = {1: pass_ms, 16: 1.07 * pass_ms, 64: 1.33 * pass_ms}
    return Scenario.load(SCENARIO).with_(
        **{
            "name": f"{system}, {draft}, {pass_ms:g} ms",
            "schedule.name": system,
            "drafts.0.device": {"profile": "emulated-20ms", "draft_ms": times},
            "workload.requests": requests,
            "workload.new_tokens": settings.new_tokens,
            "runs": settings.runs,
            **DRAFTS[draft],
        }
    )


def study(settings: Settings, say: Progress) -> StudyResult:
    """Predict every system, draft and time, then predict and run some of them."""
    places = [
        (system, draft, pass_ms)
        for system in settings.systems
        for draft in DRAFTS
        for pass_ms in settings.pass_ms
    ]
    say("predicting", len(places))
    found = dict[Place, Interval]()
    for place in places:
        traces = predict(scenario_of(place, settings.requests, settings))
        found[place] = observe(traces).intervals[0][METRIC]
        say("", 1)
    run = {
        (system, draft, pass_ms): scenario_of(
            (system, draft, pass_ms), settings.measured_requests, settings
        )
        for pass_ms in settings.measured_ms
        for system in settings.systems
        for draft in (MODEL, EAGLE, BLOCK)
    }
    named = compared([Case(each.name, each) for each in run.values()], say)
    rows = {place: named[scenario.name] for place, scenario in run.items()}
    return StudyResult(
        NAME,
        [*_predicted(found), *_measured(rows)],
        [_sheet(found), _run_sheet(rows)],
        {NAME: _figure(found, rows)},
        [*_findings(rows), *_flips(found)],
        warnings_of(named),
        faults_of(named),
        sections={heading: told for heading, told in fill(PAGE, [], {}).items() if heading},
    )


def _key(place: Place) -> str:
    return f"{place[0]}/{place[1].replace(' ', '-')}/pass={place[2]:g}"


def _predicted(found: Mapping[Place, Interval]) -> list[Entry]:
    return [Entry.of(f"{_key(place)}/{METRIC}", "ms", each) for place, each in found.items()]


def _measured(rows: Mapping[Place, Row]) -> list[Entry]:
    return [
        Entry.of(f"run/{_key(place)}/{METRIC}", "ms", row.predicted, row.measured)
        for place, row in rows.items()
    ]


def _sheet(found: Mapping[Place, Interval]) -> Sheet:
    heads = columns("system", "draft pass (ms)|.3g", *[f"{draft} (ms)" for draft in DRAFTS])
    sheet = Sheet("Time between tokens, predicted", heads, name="predicted")
    for system, pass_ms in dict.fromkeys((place[0], place[2]) for place in found):
        times = (found[system, draft, pass_ms].mean for draft in DRAFTS)
        sheet.add(system, pass_ms, *times)
    return sheet


def _run_sheet(rows: Mapping[Place, Row]) -> Sheet:
    heads = columns(
        "system",
        "draft pass (ms)|.3g",
        "draft",
        "predicted (ms)",
        "± (ms)",
        "measured (ms)",
        "error|+.1%",
        "of it durations|+.1%",
        "draft busy, predicted|.0%",
        "measured|.0%",
    )
    sheet = Sheet("Time between tokens, predicted and run", heads, name="run")
    for (system, draft, pass_ms), row in rows.items():
        sheet.add(
            system,
            pass_ms,
            draft,
            row.predicted.mean,
            row.halves[0],
            row.measured,
            row.error,
            row.duration_error,
            row.predicted_utilization["draft0"],
            row.utilization["draft0"],
        )
    return sheet


def _findings(rows: Mapping[Place, Row]) -> list[str]:
    """Say by how much the block draft moves each system, predicted and run."""
    found = []
    for (system, draft, pass_ms), row in rows.items():
        if draft != BLOCK:
            continue
        moved = []
        for other in (EAGLE, MODEL):
            base = rows[system, other, pass_ms]
            predicted = row.predicted.mean / base.predicted.mean - 1
            moved.append(
                f"{predicted:+.0%} predicted and {row.measured / base.measured - 1:+.0%} run "
                f"against the {other}"
            )
        found.append(
            f"{system} with draft passes of {pass_ms:g} ms: a block draft moves the time between "
            f"tokens by {', '.join(moved)}"
        )
    errors = spread({_key(place): row.error for place, row in rows.items()})
    durations = spread({_key(place): row.duration_error for place, row in rows.items()})
    found.append(
        f"error of the predictions: at most {errors['worst']:.1%} ({errors['worst_at']}), "
        f"{errors['bias']:+.1%} in the mean; from durations alone at most "
        f"{durations['worst']:.1%}"
    )
    return found


def _flips(found: Mapping[Place, Interval]) -> list[str]:
    """Say from which time of a pass on a block draft is predicted to be the faster one."""
    said = []
    for system in dict.fromkeys(place[0] for place in found):
        times = sorted({place[2] for place in found})
        for other in (EAGLE, MODEL):
            wins = [
                ms for ms in times if found[system, BLOCK, ms].mean < found[system, other, ms].mean
            ]
            where = f"from {wins[0]:g} ms a pass on" if wins else "at none of these times"
            said.append(f"{system}: the block draft is predicted to beat the {other} {where}")
    return said


def _figure(found: Mapping[Place, Interval], rows: Mapping[Place, Row]) -> Figure:
    systems = [*dict.fromkeys(place[0] for place in found)]
    figure = Figure(figsize=(4 * len(systems), 4.4), layout="constrained")
    panels = figure.subplots(1, len(systems), sharey=True, squeeze=False)[0]
    for panel, system in zip(panels, systems, strict=True):
        for draft, colour in zip(DRAFTS, SHADES, strict=False):
            own = {p[2]: each for p, each in found.items() if p[:2] == (system, draft)}
            dashes = "--" if draft == AS_EAGLE else "-"
            means = [each.mean for each in own.values()]
            panel.plot([*own], means, dashes, color=colour, label=draft)
            below, above = whiskers([*own.values()])
            low, high = np.subtract(means, below), np.add(means, above)
            panel.fill_between([*own], low, high, color=colour, alpha=0.15, linewidth=0)
            run = {p[2]: row.measured for p, row in rows.items() if p[:2] == (system, draft)}
            label = "measured" if draft == MODEL else None
            panel.plot([*run], [*run.values()], "o", color=colour, mec="black", label=label)
        panel.set_title(system)
        panel.set_xlabel("time of a draft pass (ms)")
        clean(panel)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("time between tokens (ms)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure
