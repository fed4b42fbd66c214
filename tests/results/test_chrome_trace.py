"""The trace file for viewers: nothing overlaps partly and no time is lost."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from treepipe.results.trace import Span, Trace, write_chrome_trace

DEVICES = ("draft0", "pipeline0.stage1", "pipeline0.stage2")
LINKS = ("pipeline0.stage2->draft0", "draft0->pipeline0.stage1")
Event = dict[str, Any]


@st.composite
def _spans(draw: st.DrawFn) -> Span:
    """Work of a device or messages on a link; times as they come out of sums of floats."""
    device = draw(st.sampled_from(DEVICES + LINKS))
    start = draw(st.integers(0, 40)) * 0.1 + draw(st.floats(0, 1e6))
    length = draw(st.sampled_from((0.0, 1e-7, 0.1, 0.3)) | st.floats(0, 5))
    kind = "transfer" if "->" in device else draw(st.sampled_from(("compute", "draft", "prune")))
    return Span(device, kind, start, start + length, draw(st.integers(1, 2)), draw(st.integers(0)))


def _write(path: Path, *traces: tuple[str, Trace]) -> list[Event]:
    write_chrome_trace(traces, path)
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    return events


def _nanoseconds(us: float) -> int:
    """As viewers read it, some of which round and some of which cut off."""
    assert int(us * 1000.0) == round(us * 1000.0)
    return int(us * 1000.0)


def _names(events: list[Event], what: str) -> dict[int, str]:
    named = [e for e in events if e["ph"] == "M" and e["name"] == what]
    key = "pid" if what.startswith("process") else "tid"
    return {e[key]: next(iter(e["args"].values())) for e in named}


def _slices(events: list[Event]) -> list[Event]:
    return [event for event in events if event["ph"] == "X"]


@given(spans=st.lists(_spans(), max_size=60))
def test_no_slices_of_a_track_overlap_and_every_span_is_found_again(
    spans: list[Span], tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "property.json"
    events = _write(path, ("run", Trace(DEVICES, spans)))
    tracks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    found = []
    names = _names(events, "thread_name")
    for event in _slices(events):
        start, length = _nanoseconds(event["ts"]), _nanoseconds(event["dur"])
        tracks[event["tid"]].append((start, start + length))
        device = names[event["tid"]].partition(" (")[0]
        found.append((device, event["name"], start, start + length, *event["args"].values()))
    for slices in tracks.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(slices)))
    assert sorted(found) == sorted(
        (s.device, s.kind, round(s.start_ms * 1e6), round(s.end_ms * 1e6), s.session, s.tokens)
        for s in spans
    )


def test_work_one_after_another_stays_on_one_track(tmp_path: Path) -> None:
    """Where time and duration were rounded apart, 1 or 2 ns overlapped."""
    times = [0.0]
    while len(times) < 2000:
        times.append(times[-1] + 1.0000007 / 3)
    spans = [Span("draft0", "draft", a, b, 1) for a, b in pairwise(times)]
    slices = _slices(_write(tmp_path / "t.json", ("run", Trace(("draft0",), spans))))
    assert len({event["tid"] for event in slices}) == 1


def test_processes_and_tracks_are_named_and_in_order(tmp_path: Path) -> None:
    """Draft first, stages in order, links below, a track more for a message that overlaps."""
    spans = [
        Span(LINKS[0], "transfer", 5.0, 6.0, 1, 1),
        Span(LINKS[1], "transfer", 1.0, 3.0, 1, 4),
        Span(LINKS[1], "transfer", 2.0, 4.0, 1, 4),
        Span(DEVICES[2], "compute", 4.0, 5.0, 1, 4),
    ]
    trace = Trace(DEVICES, spans)
    events = _write(tmp_path / "t.json", ("simulated", trace), ("executed", trace))
    assert list(_names(events, "process_name").values()) == ["simulated", "executed"]
    shown = [*DEVICES, LINKS[1], f"{LINKS[1]} (2)", LINKS[0]]
    names, order = _names(events, "thread_name"), _names(events, "thread_sort_index")
    assert list(names.values()) == shown * 2
    assert sorted(order, key=lambda tid: order[tid]) == list(names)
    processes = _names(events, "process_sort_index")
    assert sorted(processes, key=lambda pid: processes[pid]) == list(processes)
    ids = [event[key] for event in events for key in ("pid", "tid")]
    assert all(type(number) is int for number in ids)
    assert not set(processes) & set(names)  # a thread with its process's id is its main thread
