"""Estimates from traces: warm-up, observations over runs or batches, intervals
(``docs/statistics.md``)."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Literal

import numpy as np

from treepipe.core.errors import UserError
from treepipe.results.critical_path import CriticalPath, PathPart, added_up
from treepipe.results.metric import Floats, Percentile, Ratio, Sums, Windows
from treepipe.results.metrics import (
    METRICS,
    PERCENTILES,
    metric_ratios,
    metrics_of_run,
    timeless,
    utilization_ratios,
)
from treepipe.results.statistics import (
    FEWEST,
    LEAST_BATCHES,
    MSER_BATCH,
    SHARE,
    Interval,
    Range,
    batch_count,
    mser5,
    ratio_observations,
    stays_correlated,
)
from treepipe.results.trace import Trace

MANY_REQUESTS = 100
"""Fewest requests per run for finding a warm-up; with fewer, none is removed automatically."""
NEGLIGIBLE = 1e-3
"""Relative half-width below which an interval causes no warning."""
ROUGH = 2.718
"""Ratio of an interval's end to its value beyond which a warning is given (e: a half-width of the
value itself)."""
LEAST_GAPS = 100
"""Fewest gaps between tokens for which a batch has its own 99th percentile."""
UNSETTLED = (
    "warm-up: the first half of the requests differs from the rest; more requests "
    "(workload.requests) would tell where it ends"
)
P99 = "p99_time_between_tokens_ms"
PER_TARGET = ("throughput_tokens_s", "time_between_tokens_ms", P99)
"""Metrics that are given for each target."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """Observations of every metric and of every device's utilization.

    Attributes:
        over: kind of observation; None where there is only one.
        warmup: requests at the beginning of each run that are not counted.
        metrics, utilization: observations; a metric's mean is its value over all of them.
        settled: False if the runs' first halves differ from the rest (see ``mser5``).
        timeless: metrics left out because no time passes in any run.
        redrawn: mean of the runs' ``redrawn`` (see ``Trace``).
        exact: nothing in the runs is drawn at random.
    """

    over: Literal["runs", "batches"] | None
    warmup: int
    metrics: Mapping[str, Floats]
    utilization: Mapping[str, Floats]
    settled: bool = True
    timeless: tuple[str, ...] = ()
    redrawn: float = 0.0
    exact: bool = False

    @property
    def common(self) -> float:
        """The share of variance that observations have in common through recorded texts, for
        ``Interval``.

        The mean of n texts drawn of P recorded ones has the texts' own variance over n, and over P
        if others were recorded. Runs drawn from resamples vary by both, batches by the first alone.
        """
        return self.redrawn if self.over == "batches" else self.redrawn / (1 + self.redrawn)

    @property
    def intervals(self) -> tuple[dict[str, Interval], dict[str, Interval]]:
        """Intervals of the metrics' and of the devices' utilization's means."""
        return self._intervals(self.common)

    @property
    def of_a_run(self) -> dict[str, Interval]:
        """Each metric's prediction interval for one further run; without ends over batches."""
        if self.over == "batches":
            return {name: Interval(float(v.mean()), None, None) for name, v in self.metrics.items()}
        return self._intervals(1.0)[0]

    def _intervals(self, common: float) -> tuple[dict[str, Interval], dict[str, Interval]]:
        def estimate(values: Floats, within: Range) -> Interval:
            return Interval.over(
                values, within, common, batches=self.over == "batches", exact=self.exact
            )

        metrics = {name: estimate(v, METRICS[name].range) for name, v in self.metrics.items()}
        return metrics, {name: estimate(v, SHARE) for name, v in self.utilization.items()}

    @property
    def warnings(self) -> list[str]:
        """Sentences on what makes the intervals doubtful."""
        sentences = []
        if not self.settled:
            sentences.append(UNSETTLED)
        if self.timeless:
            sentences.append(
                f"no time passes (all times are 0), so these have no value: "
                f"{', '.join(self.timeless)}"
            )
        intervals = {} if self.over is None else self.intervals[0]
        if not self.exact and (few := self._too_few):
            sentences.append(f"{few} runs tell no interval; it takes {FEWEST} or more (--runs)")
            intervals = {}
        rough = [name for name, each in intervals.items() if _is_rough(each, self.metrics[name])]
        if rough:
            others = f" and {len(rough) - 1} others" if rough[1:] else ""
            sentences.append(
                f"{self.over} are so few or so unlike that the interval of {rough[0]}{others} is a "
                f"rough one; more runs (--runs) or requests (workload.requests) narrow it"
            )
        if self.over == "batches":
            names = [
                name
                for name, values in self.metrics.items()
                if stays_correlated(values) and not _is_negligible(intervals[name])
            ]
            if names:
                sentences.append(
                    f"successive batches of the run are correlated, so intervals were widened "
                    f"({', '.join(names)}); more requests or several runs (--runs) are safer"
                )
        return sentences

    @property
    def _too_few(self) -> int:
        """The number of runs, if they are too few for an interval; else 0."""
        runs = max(map(len, self.metrics.values()), default=0)
        return runs if self.over == "runs" and runs < FEWEST else 0


def critical_path(traces: Sequence[Trace], warmup: int = 0) -> CriticalPath:
    """Return all runs' critical path after the warm-up; empty if traces lack paths."""
    parts = list[PathPart]()
    for trace in traces:
        dropped = {*sorted(request.session for request in trace.requests)[:warmup]}
        parts += [part for part in trace.paths if part.session not in dropped]
    return added_up(parts)


def summarize(traces: Sequence[Trace]) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Return metrics and utilization over whole runs (or one run's batches), with intervals."""
    return observe(traces, 0).intervals


def observe(
    traces: Sequence[Trace], warmup: int | None = None, batches: int | None = None
) -> Estimates:
    """Estimate the runs' metrics: over runs if there are several, else over batches of one.

    Args:
        warmup: requests to leave out of each run; None: determined from the runs (``find_warmup``).
        batches: number of batches of a single run; None: as many as possible
            (``possible_batches``).

    Raises:
        UserError: ``warmup`` leaves no request.
    """
    traces = [trace for trace in traces if trace.requests]
    if not traces:
        return Estimates(None, 0, {}, {})
    warmup, settled = find_warmup(traces) if warmup is None else (warmup, True)
    least = min(len(trace.requests) for trace in traces)
    if warmup >= least:
        raise UserError(
            f"key workload.warmup_requests = {warmup} leaves nothing of a run's {least} requests"
        )
    if len(traces) == 1:
        count = possible_batches(traces[0], warmup) if batches is None else batches
        windows = [Windows.of(traces[0], count, warmup)]
    else:
        count = len(traces)
        windows = [Windows.of(trace, 1, warmup) for trace in traces]
    sums = [Sums(*pair) for pair in zip(traces, windows, strict=True)]
    answered = [each for each in sums if each.windows.answered]
    metrics = _observations([metric_ratios(each) for each in answered])
    utilization = _observations([utilization_ratios(each) for each in sums])
    lacking = set[str]().union(*map(timeless, answered))
    figures = {
        of: [of(requests) for each in windows for requests in each.requests]
        for of in {percentile.figures for percentile in PERCENTILES.values()}
    }
    for name, percentile in PERCENTILES.items():
        groups = figures[percentile.figures]
        percentiles = _percentiles(percentile, groups, of_batches=len(traces) == 1)
        if len(percentiles):
            metrics[name] = percentiles
    whole = windows if count == 1 or len(traces) > 1 else [Windows.of(traces[0], 1, warmup)]
    of_runs = [metrics_of_run(each) for each in whole]
    for name in dict.fromkeys(name for each in of_runs for name in each):
        metrics[name] = np.array([each[name] for each in of_runs if name in each])
    return Estimates(
        over=None if count == 1 else "batches" if len(traces) == 1 else "runs",
        warmup=warmup,
        metrics={name: metrics[name] for name in METRICS if name in metrics},
        utilization=utilization,
        settled=settled,
        timeless=tuple(sorted(lacking - {*metrics, *(["utilization"] if utilization else [])})),
        redrawn=fmean(trace.redrawn for trace in traces),
        exact=all(trace.exact for trace in traces) and (len(traces) > 1 or count == 1),
    )


def target_intervals(traces: Sequence[Trace], warmup: int) -> dict[str, dict[str, Interval]]:
    """Return intervals of each target (pipeline) by name, where there are several; ``warmup``
    requests of all targets together are left out of each run."""
    counted = [sorted(trace.requests, key=lambda r: r.session)[warmup:] for trace in traces]
    by_target = {}
    for target in sorted({request.pipeline for each in counted for request in each}):
        own = [
            Trace(
                (),
                requests=[r for r in each if r.pipeline == target and r.emitted],
                redrawn=trace.redrawn,
                exact=trace.exact,
            )
            for trace, each in zip(traces, counted, strict=True)
        ]
        intervals, _ = observe(own, 0).intervals
        by_target[f"pipeline{target}"] = {
            name: intervals[name] for name in PER_TARGET if name in intervals
        }
    return by_target if len(by_target) > 1 else {}


def find_warmup(traces: Sequence[Trace]) -> tuple[int, bool]:
    """Find the requests at the beginning of the runs that differ from the rest, and whether runs
    settle.

    MSER-5 is applied to the requests' latency per token, in the order of asking, averaged over the
    runs. The result is 0 if there are fewer than ``MANY_REQUESTS`` requests or they never overlap:
    then each finds an empty system, and all are alike.
    """
    least = min(len(trace.requests) for trace in traces)
    if least < MANY_REQUESTS or not any(_overlap(trace) for trace in traces):
        return 0, True
    series = np.array([_latency_per_token(trace)[:least] for trace in traces])
    with python_warnings.catch_warnings():  # a request that every run refused
        python_warnings.simplefilter("ignore", RuntimeWarning)
        means = np.nanmean(series, axis=0)
    known = means[~np.isnan(means)]
    warmup = mser5(known)
    return warmup, warmup < len(known) // MSER_BATCH // 2 * MSER_BATCH


def possible_batches(trace: Trace, warmup: int) -> int:
    """Return into how many batches a run can be cut; 1: it is too short.

    Where requests never overlap, each is a batch. Otherwise a batch has at least twice as many
    requests as are open at once on average, so that few of them extend into the next one.
    """
    least = 1
    if _overlap(trace):
        requests = trace.requests
        span = max(r.finished_ms for r in requests) - min(r.started_ms for r in requests)
        least = max(2, ceil(2 * sum(r.finished_ms - r.started_ms for r in requests) / span))
    return batch_count(len(trace.requests) - warmup, least)


def _is_rough(interval: Interval, values: Floats) -> bool:
    """Return whether the interval is too wide for the delta method's linear approximation, or so
    wide that it has no ends."""
    if interval.high is None:
        return len(values) >= FEWEST and not interval.fixed
    return interval.high > ROUGH * interval.mean > 0


def _is_negligible(interval: Interval) -> bool:
    return interval.high is None or interval.high - interval.mean <= NEGLIGIBLE * abs(interval.mean)


def _overlap(trace: Trace) -> bool:
    """Return whether a request was asked for while another one was open."""
    latest = -np.inf
    for request in sorted(trace.requests, key=lambda request: request.started_ms):
        if request.started_ms < latest:
            return True
        latest = max(latest, request.finished_ms)
    return False


def _latency_per_token(trace: Trace) -> Floats:
    requests = sorted(trace.requests, key=lambda request: request.session)
    return np.array(
        [(r.finished_ms - r.started_ms) / len(r.tokens) if r.emitted else np.nan for r in requests]
    )


def _observations(parts: Sequence[Mapping[str, Ratio]]) -> dict[str, Floats]:
    """Return linearized ratios over all runs' windows; one value if only one window has any."""
    observations = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        ratios = [part[name] for part in parts if name in part]
        if len(ratios) == 1 and len(ratios[0][0]) == 1:
            observations[name] = ratios[0][0] / ratios[0][1]
            continue
        above, below = (np.concatenate(column) for column in zip(*ratios, strict=True))
        values = ratio_observations(above, below)
        observations[name] = values if np.count_nonzero(below) > 1 else np.array([values.mean()])
    return observations


def _percentiles(percentile: Percentile, groups: list[Floats], *, of_batches: bool) -> Floats:
    """Return a percentile's observations, per run or per batch, of its figures in each; empty where
    there are too few figures.

    A percentile is no ratio of sums. Batches' own percentiles, shifted so that their mean is the
    whole run's, give its spread; batches that are too short are merged in pairs (sectioning:
    Asmussen and Glynn, Stochastic Simulation (2007), section III.5). Runs have few requests, so
    percentiles of requests' figures are shifted in the same way, to that of all runs together.
    """
    given = [each for each in groups if len(each)]
    if sum(map(len, given)) < percentile.least:
        return np.array([])

    def own(figures: Sequence[Floats]) -> Floats:
        return np.array([np.percentile(each, percentile.share) for each in figures])

    if not of_batches and not percentile.of_requests:
        return own(given)
    whole = float(np.percentile(np.concatenate(given), percentile.share))
    if len(groups) == 1:
        return np.array([whole])
    if of_batches:
        least = percentile.least if percentile.of_requests else LEAST_GAPS
        if min(map(len, groups)) < least and len(groups) >= 2 * LEAST_BATCHES:
            groups = [np.concatenate(pair) for pair in zip(groups[::2], groups[1::2], strict=True)]
        if min(map(len, groups)) < least:
            return np.array([whole])
        given = groups
    values = own(given)
    return np.asarray(values - values.mean() + whole)
