"""Where each worker's time went: its spans, added up by what it was at.

Law of this file: a worker's shares are of its wall time, from the start of a run to the end of its
last request, and what no span names is said to be so. The simulator, and emulation, have spans of
what a profile has times for; the rest is time in which the device had nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from treepipe.results.trace import BUSY, Trace

Shares: TypeAlias = Mapping[str, Mapping[str, float]]
"""By worker, then by what it was at: share of its wall time. They add up to 1."""
IDLE_NAME, UNNAMED = "idle", "unnamed"
ROUNDING = 1e-9
"""A smaller share is what adding up leaves of none."""
NAMES: Mapping[str, str] = {
    "compute": "compute",
    "draft": "draft",
    "evaluate": "evaluate",
    "decide": "decide",
    "prune": "prune the cache",
    "mask": "masks and caches",
    "receive": "receive and decode",
    "send": "encode and send",
    "desk": "rules: what comes next",
    "control": "answer the controller",
    "wake": "wake up",
    "gauge": "gauge the machine's speed",
    "wait": "wait",
    IDLE_NAME: "idle",
    UNNAMED: "unnamed",
}
"""What a worker can be at, in words, in the order of tables and pictures."""


def shares(traces: Sequence[Trace]) -> Shares:
    """Add up all runs; empty if no request of theirs was served."""
    walls = [max([r.finished_ms for r in trace.requests], default=0.0) for trace in traces]
    whole, found = sum(walls), dict[str, dict[str, float]]()
    if not whole:
        return found
    for device in traces[0].devices:
        found[device] = dict.fromkeys(NAMES, 0.0)
    for trace, wall in zip(traces, walls, strict=True):
        for span in trace.spans:
            if span.device in found:
                inside = min(span.end_ms, wall) - max(span.start_ms, 0.0)
                found[span.device][span.kind] += max(0.0, inside) / whole
    for parts in found.values():
        rest = UNNAMED if any(parts[kind] for kind in NAMES if kind not in BUSY) else IDLE_NAME
        parts[rest] = 1.0 - sum(parts.values())
    return {
        device: {kind: part for kind, part in parts.items() if part > ROUNDING}
        for device, parts in found.items()
    }


def picture_beside(plot: Path) -> Path:
    """Name the file of the stacked bars if a run's timeline goes to ``plot``.

    >>> picture_beside(Path("out/run.png")).name
    'run-where-time-goes.png'
    """
    return plot.with_name(f"{plot.stem}-where-time-goes{plot.suffix}")
