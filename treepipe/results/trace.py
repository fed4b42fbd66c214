"""Records of a run in either world: spans of work, and the requests' results.

Both worlds write these records; ``metrics.py`` reads nothing else. Times are milliseconds from the
start of the run.
"""

from __future__ import annotations

import itertools
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import harmonic_mean
from typing import Any, Literal, TypeAlias

from treepipe.core.draft_work import Turn
from treepipe.core.losses import Fault
from treepipe.core.records import record
from treepipe.core.requests import Objectives, RequestTrace
from treepipe.files.outputs import write_file
from treepipe.results.critical_path import PathPart
from treepipe.scenario.machines import Machine

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


@dataclass(slots=True)
class Trace:
    """One run: devices in the order of display, spans, requests, turns, warnings.

    ``devices`` are roles; ``machines`` are their machines, where known. A run that failed is not
    ``complete``: it holds requests with the text they had, no spans. Requests of a ``paged`` run
    could be preempted; ``slo`` holds the limits promised to each. ``paths`` are parts of the
    requests' critical paths, where they were requested. ``redrawn`` is the number of texts that its
    acceptance was drawn as, over the number of recorded texts behind them; 0 without recorded
    texts. ``faults`` of its workers are in the order of time.
    """

    devices: tuple[str, ...]
    spans: list[Span] = field(default_factory=list)
    requests: list[RequestTrace] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    machines: tuple[Machine, ...] = ()
    complete: bool = True
    paths: list[PathPart] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    paged: bool = False
    slo: Objectives | None = None
    redrawn: float = 0.0

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


@dataclass(frozen=True, slots=True)
class _Slice:
    """A span in whole nanoseconds, and its track (thread) in the drawing."""

    span: Span
    start: int
    end: int
    pid: int
    tid: int

    def event(self) -> dict[str, Any]:
        args = {"session": self.span.session, "tokens": self.span.tokens}
        return {
            **self._at("X", self.span.kind, self.span.kind, self.start),
            "dur": _microseconds(self.end - self.start),
            "args": args,
        }

    def flow(self, phase: Literal["s", "f"], number: int) -> dict[str, Any]:
        """Return an arrow's tail or head; viewers bind it to the slice that encloses its time."""
        at = self.end - 1 if phase == "s" else self.start
        return {**self._at(phase, "segment", "flow", at), "id": number, "bp": "e"}

    def _at(self, phase: str, name: str, category: str, ns: int) -> dict[str, Any]:
        place = {"pid": self.pid, "tid": self.tid, "ts": _microseconds(ns)}
        return {"name": name, "cat": category, "ph": phase, **place}


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
    slices = list[_Slice]()
    for name, spans in _by_track(trace).items():
        for lane, members in enumerate(_lanes(spans) or [[]], start=1):
            tid = next(numbers)
            shown = name if lane == 1 else f"{name} ({lane})"
            events.append(_metadata("thread_name", pid, tid, name=shown))
            events.append(_metadata("thread_sort_index", pid, tid, sort_index=tid))
            slices += [_Slice(span, start, end, pid, tid) for start, end, span in members]
    slices.sort(key=lambda each: each.start)
    flows = [
        event
        for number, (sent, taken) in enumerate(_hops(slices), start=1)
        for event in (sent.flow("s", pid << 32 | number), taken.flow("f", pid << 32 | number))
    ]
    # A viewer that reads in this order knows a slice before the arrows that are bound to it.
    return events + sorted([each.event() for each in slices] + flows, key=lambda e: e["ts"])


def write_chrome_trace(traces: Iterable[tuple[str, Trace]], path: Path, option: str = "") -> None:
    """Write named traces into one file for Perfetto and chrome://tracing. Raises ``WriteError``;
    ``option`` names the option that asked for the file."""
    numbers = itertools.count(1)
    events = [event for name, trace in traces for event in chrome_events(trace, name, numbers)]
    content = {"traceEvents": events, "displayTimeUnit": "ns"}
    write_file(path, json.dumps(content, indent=None), option)


def _metadata(what: str, pid: int, tid: int, **args: object) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


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


def _hops(slices: Sequence[_Slice]) -> Iterator[tuple[_Slice, _Slice]]:
    """Pair work with the transfer of its result, and each transfer with the work on its segment.

    Spans do not say which segment they concern, so this follows from the order, which links and
    stages keep. A pair is omitted where no work fits, or where it is too short to hold an arrow.
    The slices are in the order of their starts.
    """
    work: dict[tuple[str, int], list[_Slice]] = {}
    sent: dict[tuple[str, int], list[_Slice]] = {}
    arrived: dict[tuple[str, int], list[_Slice]] = {}
    for each in slices:
        span = each.span
        if span.kind != "transfer":
            work.setdefault((span.device, span.session), []).append(each)
        elif span.tokens:  # the others are words and empty segments
            sender, _, receiver = span.device.partition("->")
            sent.setdefault((sender, span.session), []).append(each)
            arrived.setdefault((receiver, span.session), []).append(each)
    pairs = [pair for key, each in sent.items() for pair in _senders(work.get(key, []), each)]
    pairs += [pair for key, each in arrived.items() for pair in _takers(each, work.get(key, []))]
    for tail, head in pairs:
        if tail.end > tail.start and head.end > head.start:
            yield tail, head


def _senders(work: Sequence[_Slice], sent: Sequence[_Slice]) -> Iterator[tuple[_Slice, _Slice]]:
    """Pair work with its transfer: a stage sends each result in order; a draft server sends after
    its newest work."""
    computed = [each for each in work if each.span.kind == "compute"]
    if computed:
        pairs = zip(computed, sent, strict=False)
        yield from ((tail, head) for tail, head in pairs if tail.end <= head.start + 1)
        return
    ends = [each.end for each in work]
    for head in sent:
        if before := bisect_right(ends, head.start + 1):
            yield work[before - 1], head


def _takers(arrived: Sequence[_Slice], work: Sequence[_Slice]) -> Iterator[tuple[_Slice, _Slice]]:
    """Pair arrivals with passes. Each pass takes one segment, in order, but segments whose rows
    were all pruned while they waited are never computed. A pair is
    kept only if the earliest and the latest assignment agree on it."""
    arrived = sorted(arrived, key=lambda each: each.end)
    passes = [each for each in work if each.span.kind in ("compute", "evaluate")]
    ends = [each.end for each in arrived]
    sure = [_arrival(ends, head.start) for head in passes]
    first = _in_order(arrived, passes, sure, 1)
    last = _in_order(arrived, passes, sure, -1)
    for head, tail, other in zip(passes, first, last, strict=True):
        if tail is not None and tail == other:
            yield arrived[tail], head


def _arrival(ends: Sequence[int], start: int) -> int | None:
    """Return the one arrival at a pass's start; None if there is none or there are several."""
    low, high = bisect_left(ends, start - 1), bisect_right(ends, start + 1)
    return low if high - low == 1 else None


def _in_order(
    arrived: Sequence[_Slice], passes: Sequence[_Slice], sure: Sequence[int | None], step: int
) -> list[int | None]:
    """Assign to each pass the next possible segment's index; ``step`` -1: from the end."""
    taken: list[int | None] = []
    place = 0 if step > 0 else len(arrived) - 1
    for head, begun_with in list(zip(passes, sure, strict=True))[::step]:
        if begun_with is not None and _fits(arrived[begun_with], head):
            place = begun_with
        while 0 <= place < len(arrived) and not _fits(arrived[place], head):
            if step > 0 and arrived[place].end > head.start + 1:
                break  # so are all after it, which later passes may take
            place += step
        found = 0 <= place < len(arrived) and _fits(arrived[place], head)
        taken.append(place if found else None)
        place += step if found else 0
    return taken[::step]


def _fits(arrived: _Slice, head: _Slice) -> bool:
    """Return whether a pass fits an arrival (rows pruned, times rounded by a nanosecond)."""
    return arrived.end <= head.start + 1 and arrived.span.tokens >= head.span.tokens
