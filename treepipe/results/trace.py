"""Records of a run in either world: spans of work, and the requests' results.

Both worlds write these records; ``metrics.py`` reads nothing else. Times are milliseconds from the
start of the run.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import harmonic_mean
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from treepipe.core.draft_work import Turn
from treepipe.core.failover import Fault
from treepipe.core.messages import record
from treepipe.core.requests import Objectives, RequestTrace
from treepipe.files.outputs import write_file
from treepipe.results.critical_path import PathPart
from treepipe.scenario.deployment import Machine
from treepipe.scenario.scale import Estimated

Record = TypeVar("Record")
Floats: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = npt.NDArray[np.int_]
Figures: TypeAlias = tuple[dict[str, float], dict[str, float]]
"""Metrics and utilization, by name."""
Kind: TypeAlias = Literal[
    "compute",
    "draft",
    "evaluate",
    "decide",
    "prune",
    "mask",
    "receive",
    "send",
    "desk",
    "control",
    "wake",
    "gauge",
    "wait",
    "transfer",
]
"""Activities of a device, or (``transfer``) of a link. Profiles have no times for those from
``mask`` to ``wait``; workers note these in a run without emulation, whose spans cover all of their
time."""
BUSY: frozenset[str] = frozenset({"compute", "draft", "evaluate", "decide", "prune", "mask"})
"""Kinds of work with the models, the purpose of a device."""


@record
class Span:
    """One activity of a device (or of a link, "a->b") from ``start_ms`` to ``end_ms``.

    ``tokens`` counts the rows worked on; it is 0 where it does not apply.
    """

    device: str
    kind: Kind
    start_ms: float
    end_ms: float
    session: int
    tokens: int = 0

    @property
    def length_ms(self) -> float:
        return self.end_ms - self.start_ms

    def shifted(self, by_ms: float) -> Span:
        """Return the span with another origin of time."""
        return replace(self, start_ms=self.start_ms + by_ms, end_ms=self.end_ms + by_ms)


class SpanColumns:
    """What spans are, in columns; simulations in lanes differ in their times alone.

    Args:
        what: device, kind, session and tokens of each.
    """

    def __init__(self, what: Iterable[tuple[str, Kind, int, int]]) -> None:
        columns = list(zip(*what, strict=True)) or [()] * 4
        self.devices, self.kinds, self.sessions, self.tokens = columns

    @cached_property
    def busy(self) -> tuple[Numbers, Numbers, list[str]]:
        """Places of the spans of work with the models, the number of each one's device, and the
        devices."""
        places = [place for place, kind in enumerate(self.kinds) if kind in BUSY]
        of = [self.devices[place] for place in places]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(of))}
        return np.array(places, int), np.array([numbers[name] for name in of], int), [*numbers]

    @cached_property
    def sizes(self) -> dict[tuple[str, Kind], tuple[int, int]]:
        """Fewest and most tokens of the spans with any, by device and kind."""
        found: dict[tuple[str, Kind], tuple[int, int]] = {}
        for device, kind, tokens in {*zip(self.devices, self.kinds, self.tokens, strict=True)}:
            if tokens:
                least, most = found.get((device, kind), (tokens, tokens))
                found[device, kind] = min(least, tokens), max(most, tokens)
        return found


class Deferred(Sequence[Record]):
    """Records that are made when they are first read."""

    def __init__(self, make: Callable[[], Iterable[Record]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> list[Record]:
        return list(self._make())

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, place: Any) -> Any:
        return self._made[place]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._made)


class Spans(Deferred[Span]):
    """Spans whose times are an array: [2, spans] starts and ends (ms)."""

    def __init__(self, of: SpanColumns, times: Floats) -> None:
        self.columns, self.times = of, times
        also = of.sessions, of.tokens
        super().__init__(lambda: map(Span, of.devices, of.kinds, *times.tolist(), *also))

    def __len__(self) -> int:
        return len(self.columns.kinds)

    @classmethod
    def of(cls, spans: Sequence[Span]) -> Spans:
        """Return spans in columns."""
        if isinstance(spans, Spans):
            return spans
        times = np.array([(each.start_ms, each.end_ms) for each in spans], float).reshape(-1, 2).T
        what = ((each.device, each.kind, each.session, each.tokens) for each in spans)
        return cls(SpanColumns(what), times)


@dataclass(slots=True)
class Trace:
    """One run: devices in the order of display, spans, requests, turns, warnings.

    ``devices`` are roles; ``machines`` are their machines, where known. A run that failed is not
    ``complete``: it holds requests with the text they had, no spans. Requests of a ``paged`` run
    could be preempted; ``slo`` holds the limits promised to each. ``paths`` are parts of the
    requests' critical paths, where they were requested. ``redrawn`` is the number of texts that its
    acceptance was drawn as, over the number of recorded texts behind them; 0 without recorded
    texts. Every run is the same where it is ``exact``: nothing in it was drawn at random.
    ``faults`` of its workers are in the order of time. ``company`` is how many processors' worth of
    work other programs did beside a run, on its coordinator's host; None if unknown.
    ``estimates`` is the relative uncertainty of the inputs that are estimates. ``figures`` returns
    all metrics and the utilization of the run, if its simulation had to compute those of many
    lanes; a changed copy has none.
    """

    devices: tuple[str, ...]
    spans: Sequence[Span] = field(default_factory=list)
    requests: list[RequestTrace] = field(default_factory=list)
    turns: Sequence[Turn] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    machines: tuple[Machine, ...] = ()
    complete: bool = True
    paths: list[PathPart] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    paged: bool = False
    slo: Objectives | None = None
    redrawn: float = 0.0
    exact: bool = False
    company: float | None = None
    estimates: Mapping[Estimated, float] = field(default_factory=dict)
    figures: Callable[[], Figures | None] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def gauge_ms(self) -> float | None:
        """Harmonic mean of the times of the workers' fixed piece of work; None where none was
        timed.

        It measures the machine's speed over a run: the work is timed now and then, so that a slow
        period counts by its duration.
        """
        times = gauges_ms(self.spans)
        return harmonic_mean(times) if times else None


def gauges_ms(spans: Iterable[Span]) -> list[float]:
    """Return the times of the workers' fixed piece of work, without warm-up (no tokens)."""
    return [span.length_ms for span in spans if span.kind == "gauge" and span.tokens]


# --- Chrome and Perfetto trace events ---------------------------------------------------------


def chrome_events(trace: Trace, process: str, numbers: Iterator[int]) -> list[dict[str, Any]]:
    """Return the trace as Chrome/Perfetto trace events (microseconds): one process, a thread per
    device in the order of ``trace.devices``, the links' threads below.

    Viewers drop slices that overlap another one of their thread partly, so simultaneous spans of a
    device or link get further threads, "a->b (2)" and so on. ``numbers`` gives the ids of the
    process and its threads, ascending.
    """
    pid = next(numbers)
    events = [
        _metadata("process_name", pid, 0, name=process),
        _metadata("process_sort_index", pid, 0, sort_index=pid),
    ]
    slices = list[dict[str, Any]]()
    for name, spans in _by_track(trace).items():
        for lane, members in enumerate(_lanes(spans) or [[]], start=1):
            tid = next(numbers)
            shown = name if lane == 1 else f"{name} ({lane})"
            events.append(_metadata("thread_name", pid, tid, name=shown))
            events.append(_metadata("thread_sort_index", pid, tid, sort_index=tid))
            slices += [_slice(pid, tid, *member) for member in members]
    return events + sorted(slices, key=lambda each: float(each["ts"]))


def write_chrome_trace(traces: Iterable[tuple[str, Trace]], path: Path, option: str = "") -> None:
    """Write named traces into one file for Perfetto and chrome://tracing. Raises ``WriteError``;
    ``option`` names the option that asked for the file."""
    numbers = itertools.count(1)
    events = [event for name, trace in traces for event in chrome_events(trace, name, numbers)]
    content = {"traceEvents": events, "displayTimeUnit": "ns"}
    write_file(path, json.dumps(content, indent=None), option)


def _metadata(what: str, pid: int, tid: int, **args: object) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _slice(pid: int, tid: int, start_ns: int, end_ns: int, span: Span) -> dict[str, Any]:
    times = {"ts": _microseconds(start_ns), "dur": _microseconds(end_ns - start_ns)}
    args = {"session": span.session, "tokens": span.tokens}
    kind = {"name": span.kind, "cat": span.kind, "ph": "X"}
    return {**kind, "pid": pid, "tid": tid, **times, "args": args}


def _microseconds(ns: int) -> float:
    """Return microseconds that give these nanoseconds when multiplied by 1,000, whether the product
    is rounded or truncated (as in Perfetto)."""
    us = ns / 1e3
    return us if int(us * 1e3) == ns else math.nextafter(us, math.copysign(math.inf, ns))


def _by_track(trace: Trace) -> dict[str, list[Span]]:
    """Group spans by device, then by link in the order of senders and receivers."""
    order = {name: place for place, name in enumerate(trace.devices)}
    found: dict[str, list[Span]] = {name: [] for name in trace.devices}
    others: dict[str, list[Span]] = {}
    for span in trace.spans:
        (found if span.device in order else others).setdefault(span.device, []).append(span)
    ends = {name: [order.get(end, len(order)) for end in name.split("->")] for name in others}
    return found | {name: others[name] for name in sorted(others, key=lambda n: (ends[n], n))}


def _lanes(spans: Iterable[Span]) -> list[list[tuple[int, int, Span]]]:
    """Split spans into the fewest lists without overlaps, as (start, end, span) in nanoseconds."""
    timed = [(round(s.start_ms * 1e6), round(s.end_ms * 1e6), s) for s in spans]
    lanes: list[list[tuple[int, int, Span]]] = []
    for each in sorted(timed, key=lambda t: t[:2]):
        free = next((lane for lane in lanes if lane[-1][1] <= each[0]), None)
        if free is None:
            lanes.append([each])
        else:
            free.append(each)
    return lanes


def steady(trace: Trace) -> Trace:
    """Return the part in which every pipeline has emitted a token and has a request left.

    A closed loop begins with prefills and ends with some pipelines idle, which is not typical of a
    shared draft server; both worlds are cut alike. Rounds stay whole; requests without an emission
    in between are left out. Raises ``ValueError`` if the run has no such part.
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
    parts = [_steady_part(request, start, end) for request in trace.requests]
    return replace(
        trace,
        spans=[s for s in trace.spans if s.end_ms > start and s.start_ms < end],
        requests=[part for part in parts if part is not None],
        turns=[t for t in trace.turns if start <= t.started_ms and t.ended_ms <= end],
    )


def _steady_part(request: RequestTrace, start: float, end: float) -> RequestTrace | None:
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
