"""Judgement of a run against its prediction: the error, its parts, and the text.

A text agrees with plain greedy decoding of an unpartitioned target if it is equal to the last
token, or if its first difference from it (in the same type, in 16 bits with the prompt in the same
chunks, one row at a time) is the runner-up of a tie, that is, if rounding alone separates the
target's two best logits. Sums depend on the number of rows of a pass; ties are frequent in 16 bits
and rare in float32, where ``generate()`` itself breaks them differently with other chunks of the
prompt.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from treepipe.results.estimates import summarize
from treepipe.results.metrics import METRIC as METRIC
from treepipe.results.metrics import run_metrics
from treepipe.results.recording import Recording
from treepipe.results.statistics import Interval
from treepipe.results.trace import BUSY, Trace
from treepipe.scenario.deployment import FULL, Computed, Deployment, RequestSpec
from treepipe.scenario.resolve import estimate_warnings
from treepipe.scenario.rows import with_guessed_rows
from treepipe.sim.predict import asked_rows, extrapolation_warnings
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

TIE = 8.0
"""Largest difference of tied logits in units of rounding (the type's epsilon times the largest
logit); in 16 bits passes of other sizes move the bundled pair's logits by up to 2."""
LEAST_UNIT = 2.0**-15
"""Least unit as a share of the largest logit: in float32 roundings of all layers add up to many
epsilons. Seen: two logits of 12 that changed places were 0.0015 apart, four such units."""


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The second best token at a place, its logit's distance to the best, and rounding's unit."""

    token: int
    behind: float
    unit: float


@dataclass(frozen=True, slots=True)
class PlainText:
    """A plain continuation, and the second best tokens by place."""

    tokens: tuple[int, ...]
    runners_up: tuple[RunnerUp, ...]


PlainTexts: TypeAlias = Mapping[tuple[tuple[int, ...], frozenset[int]], PlainText]
"""Plain greedy continuations by (prompt, end of text)."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of a run's texts with plain decoding's, both computed in ``dtype``.

    Attributes:
        equal, texts: number of texts that are equal to the last token, and of all texts.
        tokens_before: tokens before the texts' first differences, of all ``tokens``.
        margin: largest difference (logits) between the target's own token and the other one at a
            first difference; None if there is none.
        lossless: whether all texts agree by the definition of this module.
        where: text and new token of that difference, counted from 1.
    """

    dtype: Computed
    equal: int
    texts: int
    tokens_before: int
    tokens: int
    margin: float | None
    lossless: bool
    where: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.equal == self.texts:
            where = "" if self.dtype == FULL else f" in {self.dtype}"
            return f"every text equals plain greedy decoding{where}"
        found = f"{self.equal} of {self.texts} texts equal plain greedy decoding in {self.dtype}"
        shares = f"{self.tokens_before} of {self.tokens} tokens are before a first difference"
        if self.margin is None or self.where is None:
            return f"{found}; {shares}"
        ties = "a tie by rounding" if self.lossless else "more than rounding explains"
        text, place = self.where
        return (
            f"{found}; {shares}, where logits differ by up to {self.margin:.2g} "
            f"(text {text}, token {place}): {ties}"
        )


def agreement(
    requests: Sequence[RequestSpec], executed: Trace, texts: PlainTexts, dtype: Computed
) -> Agreement:
    """Compare a run's texts with plain ones; a text that ended early does not agree."""
    equal, before, tokens, agree = 0, 0, 0, True
    parted = list[tuple[float, tuple[int, int]]]()
    for text, (spec, trace) in enumerate(zip(requests, executed.requests, strict=True), start=1):
        plain = texts[spec.prompt, spec.end_tokens]
        wanted, got = plain.tokens[: spec.max_new_tokens], trace.tokens
        tokens += len(got)
        if got == wanted:
            equal, before = equal + 1, before + len(got)
            continue
        pairs = enumerate(zip(got, wanted, strict=False))
        place = next((i for i, (ours, theirs) in pairs if ours != theirs), None)
        before += len(got) if place is None else place
        tie = False
        if place is not None:
            runner = plain.runners_up[place]
            parted.append((runner.behind, (text, place + 1)))
            tie = got[place] == runner.token and runner.behind <= TIE * runner.unit
        agree = agree and tie
    most, where = max(parted, default=(None, None))
    return Agreement(dtype, equal, len(requests), before, tokens, most, agree, where)


OVERRUN, NOTICED = 1.25, 0.01
"""Thresholds of a warning: the median time of work over its profile's, and the share of the run
that the excess takes."""
NOTICED_LOAD = 0.5
"""Threshold of a warning: processors' worth of other programs' work."""

Timed: TypeAlias = Literal["emulated", "here", "elsewhere"]
"""Origin of device times: emulated, or profiles of this machine or of other machines."""
SLOWER: Mapping[Timed, str] = {
    "emulated": "this host is slower at it than the device that it emulates",
    "here": (
        "slower than when this machine was calibrated, pass by pass and alone: serving adds what "
        "no profile holds (messages, Python, other roles at work), and clocks differ from hour "
        "to hour"
    ),
    "elsewhere": (
        "slower than its profile, which was not measured on this machine and holds nothing of "
        "what serving adds (messages, Python, other roles at work)"
    ),
}
UNSTATED = "slower than its profile, which states no time for it (it is not calibrated)"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Metrics and utilization over a case's simulated runs, the intervals of a single run's metrics
    (``Estimates.of_a_run``), and the first run's trace."""

    metrics: Mapping[str, Interval]
    utilization: Mapping[str, Interval]
    of_a_run: Mapping[str, Interval]
    trace: Trace


@dataclass(frozen=True, slots=True)
class Row:
    """One case's prediction and run. ``measured`` and so on are ``METRIC``'s, in milliseconds.

    Attributes:
        metrics: predicted metrics over the prediction's runs, before the run.
        of_a_run: predicted intervals of a single run's metrics.
        replayed_metrics: metrics simulated with the run's own acceptance, so that only durations
            differ.
        measured_over_requests: METRIC per request of the run, with its interval.
        lossless: whether every text agrees with plain greedy decoding (see above); None: texts
            were sampled.
        agreement: details of the agreement with plain greedy decoding; None: texts were sampled.
    """

    label: str
    schedule: str
    metrics: Mapping[str, Interval]
    of_a_run: Mapping[str, Interval]
    measured_metrics: Mapping[str, float]
    replayed_metrics: Mapping[str, float]
    measured_over_requests: Interval
    predicted_utilization: Mapping[str, float]
    utilization: Mapping[str, float]
    lossless: bool | None
    warnings: tuple[str, ...]
    prediction: Trace
    replay: Trace
    execution: Trace
    agreement: Agreement | None = None

    @property
    def predicted(self) -> Interval:
        return self.metrics[METRIC]

    @property
    def measured(self) -> float:
        return self.measured_metrics[METRIC]

    @property
    def replayed(self) -> float:
        return self.replayed_metrics[METRIC]

    @property
    def tokens_per_round(self) -> float:
        return self.measured_metrics["tokens_per_round"]

    @property
    def timelines(self) -> list[tuple[str, Trace]]:
        """The replay and the run, with their titles."""
        replay = "simulated, with this run's acceptance replayed", self.replay
        return [replay, ("executed", self.execution)]

    @property
    def error(self) -> float:
        """Signed error, relative to the measurement."""
        return self.predicted.mean / self.measured - 1

    @property
    def duration_error(self) -> float:
        """The part of the error that remains if the run's acceptance is replayed."""
        return self.replayed / self.measured - 1

    @property
    def drift(self) -> float:
        """This machine's slowdown in the run since its host's profile was measured, from the
        workers' fixed piece of work; 1 if unknown."""
        costs = [m.costs for m in self.replay.machines if m.costs is not None]
        then, now = (costs[0].gauge if costs else None), self.execution.gauge_ms
        return 1.0 if then is None or now is None else now / then

    @property
    def drift_corrected_duration_error(self) -> float:
        """``duration_error`` at the machine's speed in the run, which no prediction knows."""
        return self.replayed * self.drift / self.measured - 1

    @property
    def halves(self) -> tuple[float, float]:
        """Half-widths of the predicted and the measured interval; 0 if there is none."""
        both = self.predicted, self.measured_over_requests
        low, high = (0.0 if each.high is None else each.high - each.mean for each in both)
        return low, high

    def error_of(self, metric: str) -> float:
        """Return the error of a metric."""
        return self.metrics[metric].mean / self.measured_metrics[metric] - 1

    def duration_error_of(self, metric: str) -> float:
        return self.replayed_metrics[metric] / self.measured_metrics[metric] - 1


def judge(
    label: str,
    schedule: str,
    deployment: Deployment,
    prediction: Prediction,
    run: tuple[Trace, Recording],
    texts: PlainTexts | None,
    timed: Timed = "elsewhere",
) -> Row:
    """Compare a run with its prediction, its replay and plain ``texts`` (None if sampled)."""
    executed, recording = run
    source = ReplaySource(recording)
    replay = simulate(deployment, source)
    measured, shares = summarize([executed])
    agrees = None
    if texts is not None:
        agrees = agreement(deployment.requests, executed, texts, deployment.roles.dtype)
    guessed = with_guessed_rows(deployment, asked_rows(deployment, executed))
    per_request = [run_metrics(replace(executed, requests=[each])) for each in executed.requests]
    return Row(
        label=label,
        schedule=schedule,
        metrics=prediction.metrics,
        of_a_run=prediction.of_a_run,
        measured_metrics={name: each.mean for name, each in measured.items()},
        replayed_metrics=run_metrics(replay),
        measured_over_requests=Interval.over([m[METRIC] for m in per_request if METRIC in m]),
        predicted_utilization={name: each.mean for name, each in prediction.utilization.items()},
        utilization={name: each.mean for name, each in shares.items()},
        lossless=None if agrees is None else agrees.lossless,
        warnings=(
            *estimate_warnings(guessed),
            *guessed.warnings,
            *executed.warnings,
            *extrapolation_warnings(deployment, executed),
            *source.warnings(),
            *overruns(executed, replay, timed),
            *company_warnings(deployment, executed),
        ),
        prediction=prediction.trace,
        replay=replay,
        execution=executed,
        agreement=agrees,
    )


def lengths_ms(trace: Trace, kind: str) -> list[float]:
    """Return the times of all pieces of a kind of work."""
    return [span.length_ms for span in trace.spans if span.kind == kind]


def overruns(executed: Trace, replay: Trace, timed: Timed) -> list[str]:
    """List kinds of work that took longer than the profile says, with possible causes.

    Emulation waits until a profile's time is over; it cannot make work faster.
    """
    found = []
    ends = [span.end_ms for span in executed.spans]
    least = NOTICED * (max(ends) - min(span.start_ms for span in executed.spans)) if ends else 0.0
    for kind in sorted(BUSY):
        real, profile = (lengths_ms(trace, kind) for trace in (executed, replay))
        if not real or not profile:
            continue
        took, wanted = statistics.median(real), statistics.median(profile)
        if took > OVERRUN * wanted and len(real) * (took - wanted) >= least:
            found.append(
                f"{kind}: {took:.1f} ms in the median, {wanted:.1f} ms by the profile; "
                f"{SLOWER[timed] if wanted else UNSTATED}"
            )
    return found


def company_warnings(deployment: Deployment, executed: Trace) -> list[str]:
    """Tell of other programs beside the run that its hosts' profiles do not know."""
    away = {placed.name for placed in deployment.roles.placed if placed.worker is not None}
    return [
        f"host {machine.name}: other programs worked beside the run, as much as {seen:.1f} "
        f"processors do, and its profile knows of {known:.1f}: predictions may be too fast; end "
        f"them, or add them to the profile's key company"
        for machine in deployment.roles.machines
        if machine.costs is not None and not away & {*machine.roles}
        if (seen := executed.company or 0.0) > (known := machine.costs.known_company) + NOTICED_LOAD
    ]


def warnings_of(rows: Mapping[str, Row]) -> dict[str, list[str]]:
    """Map each warning to the names of its rows."""
    named: dict[str, list[str]] = {}
    for name, row in rows.items():
        for warning in row.warnings:
            named.setdefault(warning, []).append(name)
    return named


def faults_of(rows: Mapping[str, Row]) -> list[str]:
    """List the rows whose text is not plain decoding's, in a sentence each."""
    return [
        f"{name}: a text differs from plain greedy decoding"
        for name, row in rows.items()
        if row.lossless is False
    ]
