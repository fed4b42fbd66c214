"""The table of metrics for both worlds: each record gives column, unit, goal, limit and
computation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np

from treepipe.core.requests import RequestTrace
from treepipe.results.metric import Floats, Metric, Percentile, Ratio, Sums, Windows
from treepipe.results.statistics import SHARE, Range
from treepipe.results.trace import Trace

METRIC = "time_between_tokens_ms"
"""Default metric for judging predictions and comparing systems."""


def token_gaps(requests: Iterable[RequestTrace]) -> Floats:
    """Return the gap before each token; among tokens emitted together, later ones have 0."""
    gaps: list[float] = []
    for request in requests:
        for (before, _), (now, count) in zip(request.emitted, request.emitted[1:], strict=False):
            gaps += [now - before] + [0.0] * (count - 1)
    return np.array(gaps)


def fairness(windows: Windows) -> float | None:
    """Return Jain's index of the targets' throughputs: 1 if all are equal, 1/n if one has all. Each
    counts from its first request's start to its last one's end. None for fewer than two targets.

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


def _energy(run: Sums) -> Ratio | None:
    """Return the joules of all machines, each with idle power all the time and the rest by its busy
    share; None if a machine's power is unknown."""
    machines = run.trace.machines
    powers = [(machine, *machine.power_w) for machine in machines if machine.power_w is not None]
    if not run.trace.spans or not machines or len(powers) < len(machines):
        return None
    joules = np.zeros_like(run.time_ms)
    for machine, idle_w, busy_w in powers:
        busy_ms = run.busy_together_ms(machine) / machine.capacity
        joules += (idle_w * run.time_ms + (busy_w - idle_w) * busy_ms) / 1e3
    return joules, run.emitted


def _price(run: Sums) -> Ratio | None:
    """Return the millionths of all machines' prices by the hour; None if one is unknown."""
    machines = run.trace.machines
    prices = [machine.usd_per_hour for machine in machines if machine.usd_per_hour is not None]
    if not machines or len(prices) < len(machines):
        return None
    return sum(prices) * run.time_ms / 3.6, run.emitted


def _if_paged(figure: Callable[[RequestTrace], float]) -> Callable[[Sums], Ratio | None]:
    """Return a figure per request, in runs where requests can be preempted."""
    return lambda r: (r.over_requests(figure), r.answered) if r.trace.paged else None


def _kept_per(whole: Callable[[Sums], Floats]) -> Callable[[Sums], Ratio | None]:
    """Make the ratio of requests within their limits (Zhong et al., OSDI 2024, section 2.1)."""

    def ratio(run: Sums) -> Ratio | None:
        slo = run.trace.slo
        if slo is None:
            return None
        kept = [sum(map(slo.kept, each)) for each in run.windows.all_requests]
        return np.array(kept, float), whole(run)

    return ratio


def _times(name: str, time_ms: Callable[[RequestTrace], float]) -> list[Metric]:
    """Make the metrics of a time of each request. Of fewer than 20 requests the 95th percentile
    is the largest time or beyond it, as is the 99th of fewer than 100."""

    def times(requests: Iterable[RequestTrace]) -> Floats:
        return np.array([time_ms(request) for request in requests])

    return _with_percentiles(
        Metric(name, "ms", lambda r: (r.over_requests(time_ms), r.answered), "less"),
        *(Percentile(share, times, least) for share, least in ((50, 20), (95, 20), (99, 100))),
    )


def _with_percentiles(mean: Metric, *percentiles: Percentile) -> list[Metric]:
    metrics = [mean]
    for each in percentiles:
        name, words = f"p{each.share}_{mean.name}", f"{each.share}th percentile of {mean.in_words}"
        metrics.append(Metric(name, mean.unit, None, mean.better, words, percentile=each))
    return metrics


_TABLE = (
    *_with_percentiles(
        Metric(METRIC, "ms", lambda r: (r.decoding_ms, r.new_tokens), "less"),
        *(Percentile(share, token_gaps, 1, of_requests=False) for share in (50, 95, 99)),
    ),
    Metric(
        "throughput_tokens_s", "tokens/s", lambda r: (r.emitted, r.time_s), "more", "throughput"
    ),
    Metric(
        "per_session_throughput_tokens_s",
        "tokens/s",
        lambda r: (1e3 * r.new_tokens, r.decoding_ms),
        "more",
        "throughput of one request",
    ),
    *_times("time_to_first_token_ms", lambda request: request.first_token_ms - request.started_ms),
    *_times("request_latency_ms", lambda request: request.finished_ms - request.started_ms),
    Metric("goodput_requests_s", "requests/s", _kept_per(lambda r: r.time_s), "more", "goodput"),
    Metric(
        "slo_attainment",
        "1",
        _kept_per(lambda r: r.all_requests),
        "more",
        "share of promises kept",
        SHARE,
    ),
    Metric("tokens_per_round", "tokens", lambda r: (r.committed, r.rounds), range=Range(1.0)),
    Metric("tokens_per_step", "tokens", lambda r: (r.committed, r.steps)),
    Metric("hit_rate", "1", lambda r: (r.committed - r.rounds, r.committed), range=SHARE),
    Metric(
        "flushes_per_100_tokens",
        "1/100 tokens",
        lambda r: (100 * r.rounds, r.committed),
        range=Range(0.0, 100.0),
    ),
    Metric("wasted_node_share", "1", lambda r: (r.fed - r.accepted, r.fed), range=SHARE),
    Metric("draft_service_ms", "ms", lambda r: (r.turn_ms, r.turns)),
    Metric("draft_wait_ms", "ms", lambda r: (r.wait_ms, r.turns)),
    Metric("draft_idle_ms", "ms", lambda r: (r.idle_ms, r.turns)),
    Metric(
        "draft_rounds_s", "1/s", lambda r: (r.turns, r.server_s), words="rounds of a draft server"
    ),
    Metric(
        "target_rounds_s",
        "1/s",
        lambda r: (r.turns, r.server_s * r.pipelines),
        words="rounds of a target",
    ),
    Metric("joules_per_token", "J/token", _energy, "less", "energy per token"),
    Metric("usd_per_million_tokens", "USD/1e6 tokens", _price, "less", "cost of a million tokens"),
    Metric("fairness", "1", range=SHARE, of_run=fairness),
    Metric("preemptions_per_request", "1", _if_paged(lambda r: r.preemptions)),
    Metric("recomputed_tokens_per_request", "tokens", _if_paged(lambda r: r.recomputed_tokens)),
)
METRICS = {each.name: each for each in _TABLE}
"""All metrics by name, in the order of results."""
PRICES = {
    "price_usd": Metric("price_usd", "USD", None, "less", "price"),
    "price_usd_per_hour": Metric("price_usd_per_hour", "USD/h", None, "less", "price per hour"),
}
"""Prices of all devices together, by name."""
GOALS = tuple(name for name, metric in METRICS.items() if metric.better is not None)
"""Metrics that can be a plan's goal, and that can be bounded."""
PERCENTILES = {name: m.percentile for name, m in METRICS.items() if m.percentile is not None}


def metric(name: str) -> Metric:
    """Return the metric or price of this name."""
    return METRICS.get(name) or PRICES[name]


def in_words(name: str) -> str:
    """Return a metric's or price's words in a sentence, without its unit.

    >>> in_words("p95_time_to_first_token_ms"), in_words("joules_per_token")
    ('95th percentile of time to first token', 'energy per token')
    """
    return metric(name).in_words


def run_metrics(trace: Trace) -> dict[str, float]:
    """Compute all metrics of one run that apply to it.

    Time between tokens is decoding time over new tokens, both summed over requests; the first token
    belongs to prefill and is not counted.
    """
    if not any(request.emitted for request in trace.requests):
        return {}
    windows = Windows.of(trace)
    ratios = metric_ratios(Sums(trace, windows))
    values = {name: float(above[0] / below[0]) for name, (above, below) in ratios.items()}
    for name, percentile in PERCENTILES.items():
        figures = percentile.figures(windows.requests[0])
        if len(figures) >= percentile.least:
            values[name] = float(np.percentile(figures, percentile.share))
    return values | metrics_of_run(windows)


def metrics_of_run(windows: Windows) -> dict[str, float]:
    """Compute the metrics that are neither ratios nor percentiles, as far as the run has them."""
    values = {name: of_run(windows) for name, m in METRICS.items() if (of_run := m.of_run)}
    return {name: value for name, value in values.items() if value is not None}


def utilization(trace: Trace) -> dict[str, float]:
    """Compute every device's busy share between the first request's start and the last one's end;
    empty if no time passes."""
    ratios = utilization_ratios(Sums(trace, Windows.of(trace)))
    return {device: float(busy[0] / time[0]) for device, (busy, time) in ratios.items()}


def metric_ratios(run: Sums) -> dict[str, Ratio]:
    """Compute every metric that is a ratio of sums, if it has a denominator."""
    return {name: ratio for name, ratio in _all_ratios(run).items() if ratio[1].sum()}


def timeless(run: Sums) -> set[str]:
    """Return the metrics (and "utilization") left out because no time passes."""
    if run.time_ms.sum():
        return set()
    rates = {n for n, (above, below) in _all_ratios(run).items() if above.sum() and not below.sum()}
    return rates | {"utilization"}


def _all_ratios(run: Sums) -> dict[str, Ratio]:
    ratios = {name: ratio(run) for name, m in METRICS.items() if (ratio := m.ratio) is not None}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def utilization_ratios(run: Sums) -> dict[str, Ratio]:
    """Return busy and whole time per window, of every device and of every shared machine; empty if
    no time passes.

    A machine's whole time counts once per unit of its capacity.
    """
    lengths = run.time_ms
    if not lengths.sum():
        return {}
    shares = {name: (busy, lengths) for name, busy in run.busy_ms.items()}
    for machine in run.trace.machines:
        if len(machine.roles) > 1:
            shares[machine.name] = run.busy_together_ms(machine), lengths * machine.capacity
    return shares
