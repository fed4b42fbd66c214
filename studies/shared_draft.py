"""StarSD for real: one draft process serves 1 to 6 target processes; from when on is it busy?

A round of a target: the draft serves it for S (evaluation, decision, ``gamma`` passes), the target
needs Z to verify and return. The draft never idles if Z <= (N - 1) S, so that is fully loaded from
ceil(Z / S) + 1 targets on (StarSD, section 4). Measured, "fully loaded" means: busy for at least
``FULL_LOAD`` of the steady part of the run. Times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from treepipe.executor.launch import prepare
from treepipe.results.metrics import UNITS
from treepipe.results.plots import (
    BLUE,
    GREY,
    LEGEND,
    MEASURED,
    PREDICTED,
    PURPLE,
    REPLAYED,
    band,
    clean,
)
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Say
from treepipe.results.steady import median, return_times, steady
from treepipe.scenario.deployment import HEADER_BYTES, Deployment
from treepipe.scenario.scenario import Scenario
from treepipe.sim.theory.starsd import Cycle
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.cells import CALIBRATED_ON, SCENARIO
from treepipe.validation.comparison import Case, compare
from treepipe.validation.judgement import Row, faults_of, warnings_of

NAME = "shared-draft"
GAMMA = 4
FULL_LOAD = 0.95
TARGET = "{ stage_ms = { 1 = 40.0, 64 = 42.0, 128 = 70.0 }, prune_ms = 0.5 }"
"""A made-up device that holds a whole target; with it the closed form says 4 targets."""
THROUGHPUT, SERVICE = "throughput_tokens_s", "draft_service_ms"
IDLE, WAIT, TOKENS = "draft_idle_ms", "draft_wait_ms", "tokens_per_round"
SHOWN = {
    THROUGHPUT: "throughput",
    SERVICE: "service per turn (S)",
    IDLE: "draft idle per turn",
    WAIT: "waiting for the draft per turn",
    "draft_rounds_s": "draft rounds",
    "target_rounds_s": "rounds of a target",
}
"""Metrics of the table, by their names there."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done; every target serves ``prompts`` requests, one at a time."""

    targets: Sequence[int] = (1, 2, 3, 4, 5, 6)
    prompts: int = 3
    new_tokens: int = 80
    runs: int = 8


def run(say: Say, full: bool) -> StudyResult:
    """3 prompts per target, or 10 (60 prompts for 6 targets)."""
    return study(Settings(prompts=10) if full else Settings(), say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Predict and run every number of targets."""
    cases = [_case(settings, targets) for targets in settings.targets]
    named = {row.label: row for row in compare(cases, say, steady)}
    rows = dict(zip(settings.targets, named.values(), strict=True))  # a cluster each: in order
    tokens = [row.metrics[TOKENS].mean for row in rows.values()]
    profile = profile_cycle(prepare(cases[0].scenario).deployment, sum(tokens) / len(tokens))
    measured = measured_cycle(rows)
    return StudyResult(
        NAME,
        [*_entries(rows), *_threshold_entries(rows, profile)],
        [_sheet(rows, profile)],
        {NAME: _figure(rows, profile)},
        [*_findings(rows, profile, measured), *warnings_of(named)],
        faults_of(named),
    )


def profile_cycle(plan: Deployment, tokens: float) -> Cycle:
    """Z and S from the plan's devices and links: a round has the root and ``GAMMA`` nodes."""
    draft, target = plan.drafts[0], plan.pipelines[0][0]
    rows = GAMMA + 1
    there, back = plan.link(draft.name, target.name), plan.link(target.name, draft.name)
    size = HEADER_BYTES + rows * (plan.row_bytes + 8)
    links = there.latency_ms + back.latency_ms + there.occupied_ms(size) + back.occupied_ms(size)
    times = draft.times
    service = times.evaluate(rows) + times.decide + GAMMA * times.draft(1)
    # The target prunes while the draft drafts, so that is no part of Z.
    return Cycle(target.times.stage(rows) + links, service, tokens)


def measured_cycle(rows: Mapping[int, Row]) -> Cycle:
    """Medians of the run with one target, where nothing waits."""
    row = rows[min(rows)]
    part = steady(row.execution)
    turns = [turn for turn in part.turns if turn.pipeline >= 0]
    service = median([turn.ended_ms - turn.started_ms for turn in turns])
    return Cycle(median(return_times(part)), service, row.tokens_per_round)


def load(service_ms: float, idle_ms: float) -> float:
    """Share of its time that the draft serves."""
    return service_ms / (service_ms + idle_ms)


def threshold(loads: Mapping[int, float]) -> int | None:
    """The smallest number of targets with which the draft is fully loaded, if there is one.

    >>> threshold({1: 0.3, 2: 0.6, 3: 0.97, 4: 1.0}), threshold({1: 0.3})
    (3, None)
    """
    return next((n for n, share in sorted(loads.items()) if share >= FULL_LOAD), None)


def _predicted_loads(rows: Mapping[int, Row]) -> dict[int, float]:
    return {n: load(r.metrics[SERVICE].mean, r.metrics[IDLE].mean) for n, r in rows.items()}


def _measured_loads(rows: Mapping[int, Row]) -> dict[int, float]:
    return {n: load(r.measured_metrics[SERVICE], r.measured_metrics[IDLE]) for n, r in rows.items()}


def _case(settings: Settings, targets: int) -> Case:
    return Case(
        f"{targets} target{'s' if targets > 1 else ''}",
        Scenario.load(
            SCENARIO,
            (
                "schedule.name=starsd",
                f"schedule.gamma={GAMMA}",
                f"pipelines=[{{ count = {targets}, stages = [{{ device = {TARGET} }}] }}]",
                f"workload.requests={targets * settings.prompts}",
                f"workload.new_tokens={settings.new_tokens}",
                f"workload.concurrency={targets}",
                f"runs={settings.runs}",
            ),
        ),
        CALIBRATED_ON,
    )


def _entries(rows: Mapping[int, Row]) -> list[Entry]:
    found = []
    predicted, measured = _predicted_loads(rows), _measured_loads(rows)
    for n, row in rows.items():
        for metric in SHOWN:
            value = row.metrics[metric]
            figures = (value.mean, value.low, value.high, row.measured_metrics[metric])
            found.append(Entry(f"n={n}/{metric}", UNITS[metric], *figures))
            if metric == THROUGHPUT:
                mean, low, high, seen = [None if f is None else f / n for f in figures]
                key = f"n={n}/per_target_tokens_s"
                found.append(Entry(key, "tokens/s", mean, low, high, seen))
        found.append(Entry(f"n={n}/draft_load", "1", predicted[n], measured=measured[n]))
    return found


def _threshold_entries(rows: Mapping[int, Row], profile: Cycle) -> list[Entry]:
    predicted = threshold(_predicted_loads(rows))
    return [
        Entry("n_full", "targets", predicted, measured=threshold(_measured_loads(rows))),
        Entry("n_full/closed_form", "targets", profile.n_full),
    ]


def _findings(rows: Mapping[int, Row], profile: Cycle, measured: Cycle) -> list[str]:
    seen = threshold(_measured_loads(rows)) or "more"
    simulated = threshold(_predicted_loads(rows)) or "more"
    return [
        f"closed form ceil(Z/S) + 1: {profile.n_full} targets by the profile (Z = "
        f"{profile.back_ms:.1f} ms, S = {profile.service_ms:.1f} ms), {measured.n_full} by the run "
        f"with {min(rows)} target(s) (Z = {measured.back_ms:.1f} ms, S = "
        f"{measured.service_ms:.1f} ms)",
        f"draft busy for at least {FULL_LOAD:.0%} of the steady part: from {simulated} targets on "
        f"in the simulator, from {seen} on in the runs",
    ]


def _sheet(rows: Mapping[int, Row], profile: Cycle) -> Sheet:
    """Figures below each other, a column per number of targets."""
    sheet = Sheet(
        NAME,
        "One draft process for N targets, steady part of each run",
        [Column("figure"), *(Column(f"N = {n}", shown=".3g") for n in rows)],
    )
    numbered = rows.items()
    for metric, name in SHOWN.items():
        unit = UNITS[metric]
        sheet.add(f"{name}, predicted ({unit})", *(r.metrics[metric].mean for r in rows.values()))
        sheet.add(
            f"{name}, measured ({unit})", *(r.measured_metrics[metric] for r in rows.values())
        )
        if metric == THROUGHPUT:
            sheet.add("… closed form (tokens/s)", *map(profile.throughput, rows))
            errors = (100 * row.error_of(metric) for row in rows.values())
            sheet.add("… error of the prediction (%)", *errors)
            errors = (100 * row.duration_error_of(metric) for row in rows.values())
            sheet.add("… of it durations (%)", *errors)
            per_target = (row.measured_metrics[metric] / n for n, row in numbered)
            sheet.add("… per target, measured (tokens/s)", *per_target)
        if metric == IDLE:
            sheet.add("… closed form (ms)", *(profile.idle_ms(n) / n for n in rows))
    sheet.add("draft's load, predicted", *_predicted_loads(rows).values())
    sheet.add("draft's load, measured", *_measured_loads(rows).values())
    sheet.add("tokens per round, predicted", *(r.metrics[TOKENS].mean for r in rows.values()))
    sheet.add("tokens per round, measured", *(r.measured_metrics[TOKENS] for r in rows.values()))
    sheet.add("text = plain greedy", *(row.lossless for row in rows.values()))
    return sheet


def _figure(rows: Mapping[int, Row], profile: Cycle) -> Figure:
    figure = Figure(figsize=(9, 7), layout="constrained")
    axes: Any = figure.subplots(2, 1, sharex=True)
    numbers = list(rows)
    for panel in axes:
        panel.axvline(profile.n_full, color=GREY, ls=":", label="ceil(Z/S) + 1")
        clean(panel)
    axes[0].plot(
        numbers,
        [profile.throughput(n) for n in numbers],
        color=GREY,
        ls="--",
        label="closed form with Z and S of the profile",
    )
    band(axes[0], numbers, [row.metrics[THROUGHPUT] for row in rows.values()], PREDICTED)
    replayed = [row.replayed_metrics[THROUGHPUT] for row in rows.values()]
    axes[0].plot(numbers, replayed, **REPLAYED)
    axes[0].plot(numbers, [row.measured_metrics[THROUGHPUT] for row in rows.values()], **MEASURED)
    axes[0].set_ylabel("throughput of all targets (tokens/s)")
    axes[0].set_ylim(bottom=0)
    for metric, name, color in ((IDLE, "idle", BLUE), (WAIT, "wait", PURPLE)):
        style = {"color": color, "label": f"{name}, predicted"}
        band(axes[1], numbers, [row.metrics[metric] for row in rows.values()], style)
        measured = {**MEASURED, "color": color, "label": f"{name}, measured"}
        axes[1].plot(numbers, [row.measured_metrics[metric] for row in rows.values()], **measured)
    axes[1].set_ylabel("draft idle, turn waiting (ms per turn)")
    axes[1].set_xlabel("N: targets that share the draft process")
    axes[1].set_xticks(numbers)
    axes[0].legend(loc="lower right", **LEGEND)
    axes[1].legend(loc="upper center", bbox_to_anchor=(0.4, 1.0), **LEGEND)
    figure.suptitle("StarSD: one draft process, N emulated targets of 40 ms")
    return figure
