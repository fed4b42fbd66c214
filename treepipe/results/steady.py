"""The steady part of a run: while every pipeline is at work.

A closed loop begins with prefills and ends with some pipelines idle, which is not typical of a
shared draft server. Both worlds are cut alike, and ``metrics.py`` measures the rest.
"""

from __future__ import annotations

from dataclasses import replace

from treepipe.core.requests import RequestTrace
from treepipe.results.trace import Trace


def steady(trace: Trace) -> Trace:
    """Return the part in which every pipeline has emitted a token and has a request left.

    Rounds stay whole; requests without an emission in between are left out. Raises ``ValueError``
    if the run has no such part.
    """
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for request in trace.requests:
        if request.emitted:
            key = request.pipeline
            first[key] = min(first.get(key, request.first_token_ms), request.first_token_ms)
            last[key] = max(last.get(key, request.finished_ms), request.finished_ms)
    if not first:
        raise ValueError("no request has a token")
    start, end = max(first.values()), min(last.values())
    if start >= end:
        raise ValueError("the pipelines are never all at work: more requests are needed")
    parts = [_part(request, start, end) for request in trace.requests]
    return replace(
        trace,
        spans=[s for s in trace.spans if s.end_ms > start and s.start_ms < end],
        requests=[part for part in parts if part is not None],
        turns=[t for t in trace.turns if start <= t.started_ms and t.ended_ms <= end],
    )


def _part(request: RequestTrace, start: float, end: float) -> RequestTrace | None:
    """Return the request with its emissions in [start, end], and their tokens."""
    before = sum(count for time, count in request.emitted if time < start)
    inside = tuple((time, count) for time, count in request.emitted if start <= time <= end)
    if not inside:
        return None
    tokens = request.tokens[before : before + sum(count for _, count in inside)]
    return replace(
        request,
        started_ms=max(request.started_ms, start),
        finished_ms=min(request.finished_ms, end),
        emitted=inside,
        tokens=tokens,
    )
