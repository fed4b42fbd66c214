"""Every schedule on the emulated cluster, predicted and run; and what FlowSpec's barrier costs.

The cluster is the demonstration's: a draft and four stages of 20 ms, links of 1 ms. The second part
sets ``flowspec_free`` (ours) against ``flowspec`` with more stages and slower links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from treepipe.core.schedules import systems
from treepipe.results.plots import BLACK, BLUE, GREY, MEASURED, ORANGE, band, clean
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Say
from treepipe.scenario.schema import ScheduleName
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.comparison import Case, compare
from treepipe.validation.demo import CALIBRATED_ON, SCENARIO
from treepipe.validation.judgement import METRIC, Row, faults_of, warnings_of

NAME = "all-schedules"
FREE_NAME = "flowspec-free"
SCHEDULES: tuple[str, ...] = tuple(systems())
BARRIER: tuple[ScheduleName, ScheduleName] = ("flowspec", "flowspec_free")
AIM = 0.08
"""Largest error of the predicted time between tokens that we want."""
WHOLE_TARGET = "{ stage_ms = { 1 = 80.0, 64 = 83.2, 128 = 136.0 }, prune_ms = 0.5 }"
"""The four stages' work on one device (``emulated-20ms``, four times)."""
EXTRA: dict[str, tuple[str, ...]] = {
    "pipedec": ("schedule.group_size=2", "schedule.children=8"),
    "specpipe_db": ("workload.concurrency=4", "schedule.batch=4"),
    "starsd": (
        f"pipelines=[{{ count = 3, stages = [{{ device = {WHOLE_TARGET} }}] }}]",
        "workload.concurrency=3",
    ),
}
"""What a schedule needs besides its name to show what it is for."""
Place = tuple[int, float, str]
"""Stages, one-way latency in ms, schedule."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done: prompts (plain decoding takes the same for every token), tokens, runs;
    for the comparison of the two flowspecs the stages, one-way latencies (ms) and its prompts."""

    schedules: Sequence[ScheduleName] = SCHEDULES
    prompts: int = 4
    plain_prompts: int = 2
    new_tokens: int = 40
    runs: int = 8
    stages: Sequence[int] = (4, 8)
    latencies_ms: Sequence[float] = (0.5, 5.0, 20.0)
    free_prompts: int = 2


def run(say: Say, full: bool) -> StudyResult:
    """4 prompts per schedule and 2 for the flowspecs; in full, 60 (plain decoding: 6) and 9."""
    settings = Settings(prompts=60, plain_prompts=6, free_prompts=9) if full else Settings()
    return study(settings, say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Predict and run every schedule, then both flowspecs on every pipeline."""
    places = [
        (stages, latency, name)
        for stages in settings.stages
        for latency in settings.latencies_ms
        for name in BARRIER
    ]
    cases = {_free_case(settings, place).label: place for place in places}
    all_cases = [_case(settings, name) for name in settings.schedules]
    all_cases += [_free_case(settings, place) for place in places]
    rows, free = dict[str, Row](), dict[Place, Row]()
    for row in compare(all_cases, say):
        if row.label in cases:
            free[cases[row.label]] = row
        else:
            rows[row.label] = row
    rows = {name: rows[name] for name in settings.schedules}  # they came cluster by cluster
    free = {place: free[place] for place in places}
    named = rows | {label: free[place] for label, place in cases.items()}
    return StudyResult(
        NAME,
        [*_entries(rows), *_free_entries(free)],
        [_sheet(rows), _free_sheet(free)],
        {NAME: _figure(rows), FREE_NAME: _free_figure(free)},
        [*_findings(rows), *_free_findings(free), *warnings_of(named)],
        faults_of(named),
    )


def _case(settings: Settings, name: str) -> Case:
    prompts = settings.plain_prompts if name == "pp" else settings.prompts
    overrides = (*_common(settings, name, prompts), *EXTRA.get(name, ()))
    return Case.of(name, SCENARIO, overrides, CALIBRATED_ON)


def _free_case(settings: Settings, place: Place) -> Case:
    stages, latency, name = place
    return Case.of(
        f"{name}, {stages} stages, {latency:g} ms",
        SCENARIO,
        (
            *_common(settings, name, settings.free_prompts),
            f"pipelines.0.stages.0.count={stages}",
            f"links.default={{ latency_ms = {latency}, bandwidth_mbit_s = 1000.0 }}",
        ),
        CALIBRATED_ON,
    )


def _common(settings: Settings, name: str, prompts: int) -> tuple[str, ...]:
    return (
        f"schedule.name={name}",
        f"workload.requests={prompts}",
        f"workload.new_tokens={settings.new_tokens}",
        f"runs={settings.runs}",
    )


def ratio(free: Mapping[Place, Row], stages: int, latency: float) -> tuple[float, float]:
    """Time between tokens of flowspec_free over flowspec's: predicted, measured."""
    barrier, without = (free[stages, latency, name] for name in BARRIER)
    return without.predicted.mean / barrier.predicted.mean, without.measured / barrier.measured


def _pairs(free: Mapping[Place, Row]) -> list[tuple[int, float]]:
    return [(stages, latency) for stages, latency, name in free if name == BARRIER[0]]


# --- what goes into the JSON file, and in words --------------------------------------------------


def _time_entry(key: str, row: Row) -> Entry:
    value = row.predicted
    return Entry(f"{key}/{METRIC}", "ms", value.mean, value.low, value.high, row.measured)


def _entries(rows: Mapping[str, Row]) -> list[Entry]:
    found = []
    for name, row in rows.items():
        shares = row.predicted_utilization["draft0"], row.utilization["draft0"]
        found.append(_time_entry(name, row))
        found.append(Entry(f"{name}/draft_utilization", "1", shares[0], measured=shares[1]))
    return found


def _free_entries(free: Mapping[Place, Row]) -> list[Entry]:
    found = [_time_entry(f"stages={p[0]}/latency={p[1]:g}/{p[2]}", r) for p, r in free.items()]
    for stages, latency in _pairs(free):
        predicted, measured = ratio(free, stages, latency)
        key = f"stages={stages}/latency={latency:g}/free_over_flowspec"
        found.append(Entry(key, "1", predicted, measured=measured))
    return found


def _findings(rows: Mapping[str, Row]) -> list[str]:
    errors = {name: abs(row.error) for name, row in rows.items()}
    if not errors:
        return []
    worst = max(errors, key=errors.__getitem__)
    inside = sum(error <= AIM for error in errors.values())
    durations = max(abs(row.duration_error) for row in rows.values())
    return [
        f"error of the predicted time between tokens: at most {errors[worst]:.1%} ({worst}), at "
        f"most {AIM:.0%} for {inside} of {len(errors)} schedules; from durations alone at most "
        f"{durations:.1%}"
    ]


def _free_findings(free: Mapping[Place, Row]) -> list[str]:
    found = []
    for stages, latency in _pairs(free):
        predicted, measured = ratio(free, stages, latency)
        said = ["wins" if share < 1 else "loses" for share in (predicted, measured)]
        verdict = said[0] if said[0] == said[1] else f"{said[0]} as predicted, {said[1]} as run"
        found.append(
            f"flowspec_free {verdict} with {stages} stages and links of {latency:g} ms: time "
            f"between tokens {predicted - 1:+.1%} predicted, {measured - 1:+.1%} measured"
        )
    return found


# --- tables and plots ----------------------------------------------------------------------------

TIMES = (
    Column("predicted", "ms"),
    Column("±", "ms"),
    Column("measured", "ms"),
    Column("error", shown="+.1%"),
    Column("of it durations", shown="+.1%"),
)


def _times(row: Row) -> tuple[float | None, ...]:
    """Cells of the columns ``TIMES``."""
    value = row.predicted
    half = None if value.high is None else value.high - value.mean
    return value.mean, half, row.measured, row.error, row.duration_error


def _sheet(rows: Mapping[str, Row]) -> Sheet:
    extra = [
        Column("tokens per round", shown=".2f"),
        Column("draft utilization predicted", shown=".2f"),
        Column("measured", shown=".2f"),
        Column("text = plain greedy"),
    ]
    title = "Time between tokens, 4 emulated stages of 20 ms, links of 1 ms"
    sheet = Sheet(NAME, title, [Column("schedule"), *TIMES, *extra])
    for name, row in rows.items():
        shares = row.predicted_utilization["draft0"], row.utilization["draft0"]
        sheet.add(name, *_times(row), row.tokens_per_round, *shares, row.lossless)
    return sheet


def _free_sheet(free: Mapping[Place, Row]) -> Sheet:
    columns = [Column("stages", shown="d"), Column("latency", "ms", ".3g"), Column("schedule")]
    shares = [Column("over flowspec, predicted", shown=".2f"), Column("measured", shown=".2f")]
    title = "flowspec with and without the barrier: time between tokens"
    sheet = Sheet(FREE_NAME, title, [*columns, *TIMES, *shares, Column("text = plain greedy")])
    for (stages, latency, name), row in free.items():
        both = ratio(free, stages, latency) if name == BARRIER[1] else (None, None)
        sheet.add(stages, latency, name, *_times(row), *both, row.lossless)
    return sheet


def _figure(rows: Mapping[str, Row]) -> Figure:
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    names, places = list(rows), range(len(rows))
    upper, lower = [place - 0.2 for place in places], [place + 0.2 for place in places]
    predicted: dict[str, Any] = {"height": 0.38, "color": BLUE, "label": "predicted before the run"}
    run = {"height": 0.38, "color": ORANGE, "label": "measured on real processes"}
    whiskers = {"ecolor": BLACK, "capsize": 2}
    halves = [row.halves for row in rows.values()]
    means = [row.predicted.mean for row in rows.values()]
    measured = [row.measured for row in rows.values()]
    left.barh(upper, means, xerr=[half for half, _ in halves], **whiskers, **predicted)
    left.barh(lower, measured, xerr=[half for _, half in halves], **whiskers, **run)
    for place, row in zip(places, rows.values(), strict=True):
        end = max(row.predicted.mean + row.halves[0], row.measured + row.halves[1])
        text = f"{row.error:+.1%} ({row.duration_error:+.1%})"
        left.annotate(text, (end, place), (6, 0), va="center", **_POINTS)
    right.barh(upper, [r.predicted_utilization["draft0"] for r in rows.values()], **predicted)
    right.barh(lower, [row.utilization["draft0"] for row in rows.values()], **run)
    left.set_yticks(list(places), names)
    left.invert_yaxis()
    left.set_xlim(0, 1.2 * max(*means, *measured))
    left.set_xlabel("time between tokens (ms), 95 % intervals\nnumbers: error (of it durations)")
    right.set_xlabel("utilization of the draft (share of time)")
    for panel in (left, right):
        clean(panel, axis="x")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


_POINTS: Mapping[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": GREY}


def _free_figure(free: Mapping[Place, Row]) -> Figure:
    counts = sorted({stages for stages, _, _ in free})
    figure = Figure(figsize=(4.8 * len(counts), 4.4), layout="constrained")
    axes: Any = figure.subplots(1, len(counts), sharey=True, squeeze=False)[0]
    for panel, count in zip(axes, counts, strict=True):
        for name, color in zip(BARRIER, (GREY, BLUE), strict=True):
            shown = {p[1]: row for p, row in free.items() if (p[0], p[2]) == (count, name)}
            style = {"color": color, "label": f"{name}, predicted"}
            band(panel, list(shown), [row.predicted for row in shown.values()], style)
            dots = {**MEASURED, "color": color, "label": f"{name}, measured"}
            halves = [row.halves[1] for row in shown.values()]
            measured = [row.measured for row in shown.values()]
            panel.errorbar(list(shown), measured, halves, capsize=3, lw=1.2, **dots)
        panel.set_title(f"{count} stages of 20 ms")
        panel.set_xlabel("one-way latency of every link (ms)")
        clean(panel)
    axes[0].set_ylabel("time between tokens (ms)")
    axes[0].set_ylim(bottom=0)  # of all panels
    axes[0].legend(frameon=False, loc="upper left")
    return figure
