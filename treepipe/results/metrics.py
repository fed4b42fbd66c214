"""The table of metrics, and how each is computed from a run's trace, for both worlds.

Nearly every metric is a ratio of two sums over the run (time over tokens, tokens over rounds), so
the sums are kept per window of the run: over one window they give a run's metric, over many
(``estimates.py``) its interval. Windows follow each other, and their sums add up to the run's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from treepipe.core.draft_work import Turn
from treepipe.core.requests import Objectives, RequestTrace
from treepipe.results.statistics import POSITIVE, SHARE, Range
from treepipe.results.trace import BUSY, Trace
from treepipe.scenario.machines import Machine

METRIC = "time_between_tokens_ms"
"""What predictions are judged by, and systems compared by, unless another one is asked for."""
Floats: TypeAlias = npt.NDArray[np.float64]
Ratio: TypeAlias = tuple[Floats, Floats]
"""[windows] numerators and denominators."""


def token_gaps(requests: Iterable[RequestTrace]) -> Floats:
    """Gap before each token; tokens emitted together share a time, so later ones wait 0."""
    gaps: list[float] = []
    for request in requests:
        for (before, _), (now, count) in zip(request.emitted, request.emitted[1:], strict=False):
            gaps += [now - before] + [0.0] * (count - 1)
    return np.array(gaps)


def first_token_times(requests: Iterable[RequestTrace]) -> Floats:
    """How long each request waited for its first token (ms)."""
    return np.array([request.first_token_ms - request.started_ms for request in requests])


def latencies(requests: Iterable[RequestTrace]) -> Floats:
    """How long each request took (ms)."""
    return np.array([request.finished_ms - request.started_ms for request in requests])


@dataclass(frozen=True, slots=True)
class Percentile:
    """A metric that is no ratio of sums.

    Attributes:
        share: of the figures, in per cent, that are at most as large.
        figures: gaps between tokens, or one figure of each request.
        least: fewer figures do not tell it.
    """

    share: int
    figures: Callable[[Iterable[RequestTrace]], Floats]
    least: int

    @property
    def of_requests(self) -> bool:
        """Whether there is one figure of each request."""
        return self.figures is not token_gaps


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a run, or the price of a plan's devices.

    Attributes:
        better: which values are better. Such a metric can be a plan's goal, and be bounded.
        words: what a sentence calls it, where its name does not say it; its unit stands elsewhere.
        per_time: it has no value where no time passes.
        percentile: what it is of, if it is one.
    """

    name: str
    unit: str
    better: Literal["less", "more"] | None = None
    words: str = ""
    range: Range = POSITIVE
    per_time: bool = False
    percentile: Percentile | None = None

    @property
    def less_is_better(self) -> bool:
        return self.better == "less"

    @property
    def in_words(self) -> str:
        """The metric as a sentence says it.

        >>> METRICS["p95_time_to_first_token_ms"].in_words, METRICS["joules_per_token"].in_words
        ('95th percentile of time to first token', 'energy per token')
        """
        return self.words or self.name.removesuffix("_ms").replace("_", " ")


def _with_percentiles(
    name: str, figures: Callable[[Iterable[RequestTrace]], Floats], least: tuple[int, int, int]
) -> list[Metric]:
    """A time and percentiles of it. Args: ``least``: figures that each percentile needs."""
    mean = Metric(name, "ms", "less")
    found = [mean]
    for share, needed in zip((50, 95, 99), least, strict=True):
        words, percentile = (
            f"{share}th percentile of {mean.in_words}",
            Percentile(share, figures, needed),
        )
        found.append(Metric(f"p{share}_{name}", "ms", "less", words, percentile=percentile))
    return found


# Of fewer than 20 requests the 95th percentile is the largest or beyond it, as the 99th of fewer
# than 100 is.
_TABLE = (
    *_with_percentiles("time_between_tokens_ms", token_gaps, (1, 1, 1)),
    Metric("throughput_tokens_s", "tokens/s", "more", "throughput", per_time=True),
    Metric(
        *("per_session_throughput_tokens_s", "tokens/s", "more", "throughput of one request"),
        per_time=True,
    ),
    *_with_percentiles("time_to_first_token_ms", first_token_times, (20, 20, 100)),
    *_with_percentiles("request_latency_ms", latencies, (20, 20, 100)),
    Metric("goodput_requests_s", "requests/s", "more", "goodput", per_time=True),
    Metric("slo_attainment", "1", "more", "share of promises kept", SHARE),
    Metric("tokens_per_round", "tokens", range=Range(1.0)),
    Metric("tokens_per_step", "tokens"),
    Metric("hit_rate", "1", range=SHARE),
    Metric("flushes_per_100_tokens", "1/100 tokens", range=Range(0.0, 100.0)),
    Metric("wasted_node_share", "1", range=SHARE),
    Metric("draft_service_ms", "ms"),
    Metric("draft_wait_ms", "ms"),
    Metric("draft_idle_ms", "ms"),
    Metric("draft_rounds_s", "1/s", words="rounds of a draft server", per_time=True),
    Metric("target_rounds_s", "1/s", words="rounds of a target", per_time=True),
    Metric("joules_per_token", "J/token", "less", "energy per token"),
    Metric("usd_per_million_tokens", "USD/1e6 tokens", "less", "cost of a million tokens"),
    Metric("fairness", "1", range=SHARE),
    Metric("preemptions_per_request", "1"),
    Metric("recomputed_tokens_per_request", "tokens"),
)
METRICS = {metric.name: metric for metric in _TABLE}
"""All metrics by name, in the order in which results list them."""
PRICES = {
    "price_usd": Metric("price_usd", "USD", "less", "price"),
    "price_usd_per_hour": Metric("price_usd_per_hour", "USD/h", "less", "price per hour"),
}
"""Prices of all devices together, by name."""
GOALS = tuple(name for name, metric in METRICS.items() if metric.better is not None)
"""Metrics that a plan can be searched for, and that can be bounded."""
PERCENTILES = {name: m.percentile for name, m in METRICS.items() if m.percentile is not None}
PER_TIME = tuple(name for name, metric in METRICS.items() if metric.per_time)


def metric(name: str) -> Metric:
    """The metric or price of this name."""
    return METRICS.get(name) or PRICES[name]


def in_words(name: str) -> str:
    """What a sentence calls a metric or a price; its unit stands elsewhere."""
    return metric(name).in_words


@dataclass(frozen=True, slots=True)
class Windows:
    """A run cut into windows of successive requests.

    What is counted per request belongs to the request's window, what is counted over time to the
    window in whose time it is. A window ends when all requests up to its last one are finished.

    Attributes:
        requests: per window, those that have a token.
        edges: [windows + 1] times (ms) at which they begin and end.
        whole: from the run's very beginning.
        asked: per window, all requests.
    """

    requests: tuple[tuple[RequestTrace, ...], ...]
    edges: Floats
    whole: bool
    asked: tuple[tuple[RequestTrace, ...], ...]

    @classmethod
    def of(cls, trace: Trace, count: int = 1, warmup: int = 0) -> Windows:
        """``count`` windows of (nearly) as many requests each, the first ``warmup`` left out.

        The trace has more than ``warmup`` requests.
        """
        requests = sorted(trace.requests, key=lambda request: request.session)
        firsts = np.linspace(warmup, len(requests), count + 1).round().astype(int)
        finished = np.maximum.accumulate([request.finished_ms for request in requests])
        edges = np.array([finished[first - 1] for first in firsts if first], float)
        if not warmup:
            edges = np.insert(edges, 0, min(request.started_ms for request in requests))
        asked = tuple(tuple(requests[a:b]) for a, b in itertools.pairwise(firsts))
        served = tuple(tuple(each for each in group if each.emitted) for group in asked)
        return cls(served, edges, not warmup, asked)

    @property
    def answered(self) -> bool:
        """Whether any request in them has a token."""
        return any(self.requests)


def run_metrics(trace: Trace) -> dict[str, float]:
    """All metrics of one run that apply to it.

    Time between tokens is decoding time over new tokens, both summed over requests; the first
    token belongs to prefill and is not counted.
    """
    if not any(request.emitted for request in trace.requests):
        return {}
    windows = Windows.of(trace)
    values = {name: float(n[0] / d[0]) for name, (n, d) in metric_ratios(trace, windows).items()}
    for name, percentile in PERCENTILES.items():
        figures = percentile.figures(windows.requests[0])
        if len(figures) >= percentile.least:
            values[name] = float(np.percentile(figures, percentile.share))
    fair = fairness(windows)
    return values if fair is None else {**values, "fairness": fair}


def fairness(windows: Windows) -> float | None:
    """Jain's index of the targets' throughputs, 1 if all are equal and 1/n if one has all; each
    counts from its first request's start to its last one's end. None of fewer than two targets.

    (Jain, Chiu and Hawe 1984, section 3.)
    """
    served: dict[int, list[RequestTrace]] = {}
    for request in itertools.chain.from_iterable(windows.requests):
        served.setdefault(request.pipeline, []).append(request)
    times = [max(r.finished_ms for r in s) - min(r.started_ms for r in s) for s in served.values()]
    if len(served) < 2 or not all(times):
        return None
    tokens = [sum(len(request.tokens) for request in each) for each in served.values()]
    rates = np.array(tokens) / np.array(times)
    return float(rates.sum() ** 2 / (len(rates) * (rates**2).sum()))


def utilization(trace: Trace) -> dict[str, float]:
    """Busy share of every device between the first request's start and the last one's end; of
    none if no time passes between them."""
    ratios = utilization_ratios(trace, Windows.of(trace))
    return {device: float(busy[0] / time[0]) for device, (busy, time) in ratios.items()}


def metric_ratios(trace: Trace, windows: Windows) -> dict[str, Ratio]:
    """Every metric but the percentile as sums per window; those without a denominator left out."""
    return {name: ratio for name, ratio in _all_ratios(trace, windows).items() if ratio[1].sum()}


def timeless(trace: Trace, windows: Windows) -> set[str]:
    """Metrics that are left out since no time passes, and "utilization"; none where time does."""
    if np.diff(windows.edges).sum():
        return set()
    return {name for name in PER_TIME if name in _all_ratios(trace, windows)} | {"utilization"}


def _all_ratios(trace: Trace, windows: Windows) -> dict[str, Ratio]:
    found = _request_ratios(windows) | _round_ratios(windows)
    found["throughput_tokens_s"] = _emitted(trace, windows), np.diff(windows.edges) / 1e3
    found |= _draft_ratios(trace, windows)
    if trace.slo is not None:
        found |= _promise_ratios(trace.slo, windows)
    if trace.paged:
        found |= _preemption_ratios(windows)
    return found | _running_ratios(trace, windows)


def _running_ratios(trace: Trace, windows: Windows) -> dict[str, Ratio]:
    """Energy and price of all machines together; left out where one's is not known.

    A machine draws its idle power all the time, and the rest by how busy it is.
    """
    machines, lengths = trace.machines, np.diff(windows.edges)
    tokens, found = _emitted(trace, windows), dict[str, Ratio]()
    prices = [machine.usd_per_hour for machine in machines if machine.usd_per_hour is not None]
    if machines and len(prices) == len(machines):
        found["usd_per_million_tokens"] = sum(prices) * lengths / 3.6, tokens
    powers = [(m, *m.power_w) for m in machines if m.power_w is not None]
    if trace.spans and machines and len(powers) == len(machines):
        worked = _busy_ms(trace, windows)
        energy = np.zeros(len(lengths))
        for machine, idle_w, busy_w in powers:
            busy = _together(machine, worked) / machine.capacity
            energy += (idle_w * lengths + (busy_w - idle_w) * busy) / 1e3
        found["joules_per_token"] = energy, tokens
    return found


def utilization_ratios(trace: Trace, windows: Windows) -> dict[str, Ratio]:
    """Busy and whole time per window, of every device and of every machine that several share;
    none if no time passes.

    A machine's whole time counts as often as it can work at once.
    """
    lengths = np.diff(windows.edges)
    if not lengths.sum():
        return {}
    worked = _busy_ms(trace, windows)
    found = {name: (busy, lengths) for name, busy in worked.items()}
    for machine in trace.machines:
        if len(machine.roles) > 1:
            found[machine.name] = _together(machine, worked), lengths * machine.capacity
    return found


def _busy_ms(trace: Trace, windows: Windows) -> dict[str, Floats]:
    """How long every device was busy, per window."""
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in trace.devices}
    for span in trace.spans:
        if span.kind in BUSY and span.device in spans:
            spans[span.device].append((span.start_ms, span.end_ms))
    return {name: _covered(each, windows.edges) for name, each in spans.items()}


def _together(machine: Machine, busy_ms: dict[str, Floats]) -> Floats:
    """Busy times of all roles on a machine, whatever it is called, added up."""
    return np.asarray(np.sum([busy_ms[role] for role in machine.roles], axis=0), float)


def _request_ratios(windows: Windows) -> dict[str, Ratio]:
    answered = np.array([len(each) for each in windows.requests], float)
    decoding = _sums(windows, lambda r: r.finished_ms - r.first_token_ms)
    new = _sums(windows, lambda r: len(r.tokens) - 1)
    ratios = {
        "time_to_first_token_ms": (
            _sums(windows, lambda r: r.first_token_ms - r.started_ms),
            answered,
        ),
        "request_latency_ms": (_sums(windows, lambda r: r.finished_ms - r.started_ms), answered),
    }
    if new.sum():
        ratios["time_between_tokens_ms"] = decoding, new
        ratios["per_session_throughput_tokens_s"] = 1e3 * new, decoding
    return ratios


def _promise_ratios(slo: Objectives, windows: Windows) -> dict[str, Ratio]:
    """Requests that got what they were promised, per second and of all that were asked (goodput and
    attainment as Zhong et al., OSDI 2024, section 2.1)."""
    kept = np.array([sum(map(slo.kept, each)) for each in windows.asked], float)
    asked = np.array([len(each) for each in windows.asked], float)
    return {
        "goodput_requests_s": (kept, np.diff(windows.edges) / 1e3),
        "slo_attainment": (kept, asked),
    }


def _preemption_ratios(windows: Windows) -> dict[str, Ratio]:
    answered = np.array([len(each) for each in windows.requests], float)
    return {
        "preemptions_per_request": (_sums(windows, lambda r: r.preemptions), answered),
        "recomputed_tokens_per_request": (_sums(windows, lambda r: r.recomputed_tokens), answered),
    }


def _round_ratios(windows: Windows) -> dict[str, Ratio]:
    rounds = _sums(windows, lambda r: len(r.rounds))
    tokens = _sums(windows, lambda r: sum([each.tokens for each in r.rounds]))
    steps = _sums(windows, lambda r: sum([each.steps for each in r.rounds]))
    fed = _sums(windows, lambda r: sum([each.fed for each in r.rounds]))
    accepted = _sums(windows, lambda r: sum([each.accepted for each in r.rounds]))
    if not tokens.sum() or not steps.sum():
        return {}
    return {
        "tokens_per_round": (tokens, rounds),
        "tokens_per_step": (tokens, steps),
        "hit_rate": (tokens - rounds, tokens),
        "flushes_per_100_tokens": (100 * rounds, tokens),
        "wasted_node_share": (fed - accepted, fed),
    }


def _draft_ratios(trace: Trace, windows: Windows) -> dict[str, Ratio]:
    """Ratios of the draft servers' turns (StarSD, section 5 and Table 1).

    Only turns that answer a pipeline count, in the window in which they end. Idle time is per
    turn, and counted from the first turn's start to the last one's end on each server.
    """
    servers: dict[int, list[Turn]] = {}
    for turn in trace.turns:
        if turn.pipeline is not None:
            servers.setdefault(turn.draft, []).append(turn)
    turns = [turn for each in servers.values() for turn in each]
    if not turns:
        return {}
    edges = windows.edges.copy()
    edges[0], edges[-1] = (-np.inf if windows.whole else edges[0]), np.inf
    times = np.array([(turn.arrived_ms, turn.started_ms, turn.ended_ms) for turn in turns])
    arrived, started, ended = times.T
    busy = _covered(times[:, 1:], edges)
    span = _covered([(each[0].started_ms, each[-1].ended_ms) for each in servers.values()], edges)
    served = _counts(ended, edges)
    rate_time = span / len(servers) / 1e3
    return {
        "draft_service_ms": (_counts(ended, edges, ended - started), served),
        "draft_wait_ms": (_counts(ended, edges, started - arrived), served),
        "draft_idle_ms": (np.maximum(span - busy, 0.0), served),  # not below 0 by rounding
        "draft_rounds_s": (served, rate_time),
        "target_rounds_s": (served, rate_time * len({turn.pipeline for turn in turns})),
    }


def _emitted(trace: Trace, windows: Windows) -> Floats:
    emissions = [each for request in trace.requests for each in request.emitted]
    times, counts = np.array(emissions, float).reshape(-1, 2).T
    edges = windows.edges.copy()
    edges[0] = -np.inf if windows.whole else edges[0]
    return _counts(times, edges, counts)


def _sums(windows: Windows, of: Callable[[RequestTrace], float]) -> Floats:
    return np.array([sum([of(request) for request in each]) for each in windows.requests], float)


def _counts(times: Floats, edges: Floats, weights: Floats | None = None) -> Floats:
    """Sum of weights (1 each) of the times in every (edge, next edge]."""
    place = np.searchsorted(edges, times, side="left") - 1
    inside = (place >= 0) & (place < len(edges) - 1)
    chosen = None if weights is None else weights[inside]
    return np.bincount(place[inside], chosen, len(edges) - 1).astype(float)


def _covered(spans: Sequence[tuple[float, float]] | Floats, edges: Floats) -> Floats:
    """How much of the spans' (start, end) lies in every (edge, next edge]."""
    starts, ends = np.array(spans, float).reshape(-1, 2).T
    lengths = np.maximum(ends - starts, 0.0)
    until = [float(np.clip(edge - starts, 0.0, lengths).sum()) for edge in edges]
    return np.diff(until)
