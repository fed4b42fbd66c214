"""Trace -> metrics: the only place where a figure is computed from a run, for both worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from treepipe.draft_work import Turn
from treepipe.trace import BUSY, RequestTrace, Trace

UNITS = {
    "time_between_tokens_ms": "ms",
    "p99_time_between_tokens_ms": "ms",
    "throughput_tokens_s": "tokens/s",
    "per_session_throughput_tokens_s": "tokens/s",
    "time_to_first_token_ms": "ms",
    "request_latency_ms": "ms",
    "tokens_per_round": "tokens",
    "tokens_per_step": "tokens",
    "hit_rate": "1",
    "flushes_per_100_tokens": "1/100 tokens",
    "wasted_node_share": "1",
    "draft_service_ms": "ms",
    "draft_wait_ms": "ms",
    "draft_idle_ms": "ms",
    "draft_rounds_s": "1/s",
    "target_rounds_s": "1/s",
}


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean over runs and its 95 % confidence interval (Student's t); None with one run."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def over(cls, values: Sequence[float]) -> Interval:
        """Of at least one run's values.

        >>> Interval.over([2.0])
        Interval(mean=2.0, low=None, high=None)
        """
        mean = float(np.mean(values))
        if len(values) < 2:
            return cls(mean, None, None)
        half = float(stats.t.ppf(0.975, len(values) - 1)) * float(stats.sem(values))
        return cls(mean, mean - half, mean + half)

    def as_dict(self) -> dict[str, float | None]:
        return {"mean": self.mean, "low": self.low, "high": self.high}


def run_metrics(trace: Trace) -> dict[str, float]:
    """All metrics of one run that apply to it.

    Time between tokens is decoding time over new tokens, both summed over requests; the first
    token belongs to prefill and is not counted.
    """
    requests = [request for request in trace.requests if request.emitted]
    if not requests:
        return {}
    decoding = sum(request.finished_ms - request.first_token_ms for request in requests)
    new = sum(len(request.tokens) - 1 for request in requests)
    span = max(r.finished_ms for r in requests) - min(r.started_ms for r in requests)
    values = {
        "throughput_tokens_s": 1e3 * sum(len(r.tokens) for r in requests) / span,
        "time_to_first_token_ms": float(
            np.mean([r.first_token_ms - r.started_ms for r in requests])
        ),
        "request_latency_ms": float(np.mean([r.finished_ms - r.started_ms for r in requests])),
    }
    if new:
        values["time_between_tokens_ms"] = decoding / new
        values["per_session_throughput_tokens_s"] = 1e3 * new / decoding
        values["p99_time_between_tokens_ms"] = float(np.percentile(_gaps(requests), 99))
    return values | _round_metrics(requests) | _draft_metrics(trace)


def _gaps(requests: Sequence[RequestTrace]) -> list[float]:
    """Gap before each token; tokens emitted together share a time, so later ones wait 0."""
    gaps: list[float] = []
    for request in requests:
        for (before, _), (now, count) in zip(request.emitted, request.emitted[1:], strict=False):
            gaps += [now - before] + [0.0] * (count - 1)
    return gaps


def _round_metrics(requests: Sequence[RequestTrace]) -> dict[str, float]:
    rounds = [record for request in requests for record in request.rounds]
    tokens = sum(record.tokens for record in rounds)
    fed = sum(record.fed for record in rounds)
    steps = sum(record.steps for record in rounds)
    if not tokens or not steps:
        return {}
    return {
        "tokens_per_round": tokens / len(rounds),
        "tokens_per_step": tokens / steps,
        "hit_rate": 1 - len(rounds) / tokens,
        "flushes_per_100_tokens": 100 * len(rounds) / tokens,
        "wasted_node_share": 1 - sum(record.accepted for record in rounds) / fed,
    }


def _draft_metrics(trace: Trace) -> dict[str, float]:
    """Of the draft servers' turns (StarSD, section 5 and Table 1).

    Only turns that answer a pipeline count. Idle time is per turn, and counted from the first
    turn's start to the last one's end on each server.
    """
    servers: dict[int, list[Turn]] = {}
    for turn in trace.turns:
        if turn.pipeline >= 0:
            servers.setdefault(turn.draft, []).append(turn)
    turns = [turn for each in servers.values() for turn in each]
    if not turns:
        return {}
    service = sum(turn.ended_ms - turn.started_ms for turn in turns)
    span = sum(each[-1].ended_ms - each[0].started_ms for each in servers.values())
    if not span:
        return {}
    rate = 1e3 * len(turns) / (span / len(servers))
    return {
        "draft_service_ms": service / len(turns),
        "draft_wait_ms": sum(turn.started_ms - turn.arrived_ms for turn in turns) / len(turns),
        "draft_idle_ms": (span - service) / len(turns),
        "draft_rounds_s": rate,
        "target_rounds_s": rate / len({turn.pipeline for turn in turns}),
    }


def utilization(trace: Trace) -> dict[str, float]:
    """Busy share of every device between the first request's start and the last one's end."""
    start = min(request.started_ms for request in trace.requests)
    end = max(request.finished_ms for request in trace.requests)
    busy = dict.fromkeys(trace.devices, 0.0)
    for span in trace.spans:
        if span.kind in BUSY and span.device in busy:
            busy[span.device] += max(0.0, min(span.end_ms, end) - max(span.start_ms, start))
    return {device: time / (end - start) for device, time in busy.items()}


def summarize(traces: Sequence[Trace]) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Metrics and utilization over runs, each with its interval."""
    per_run = [run_metrics(trace) for trace in traces]
    metrics = {
        name: Interval.over([values[name] for values in per_run if name in values])
        for name in UNITS
        if any(name in values for values in per_run)
    }
    shares = [utilization(trace) for trace in traces if trace.requests]
    devices = traces[0].devices if shares else ()
    return metrics, {name: Interval.over([share[name] for share in shares]) for name in devices}
