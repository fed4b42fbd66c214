"""Each worker's time by activity: the sums of its spans.

Shares are of a worker's wall time, from the start of a run to the end of its last request. The
simulator and emulation have spans of the work that a profile has times for; the rest is idle time.
Other runs have spans of everything, and time outside all spans is unnamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.trace import BUSY, Trace

Shares: TypeAlias = Mapping[str, Mapping[str, float]]
"""Share of wall time by worker, then by activity; a worker's shares add up to 1."""
IDLE_NAME, UNNAMED = "idle", "unnamed"
ROUNDING = 1e-9
"""Largest share that counts as zero, a rounding error of sums."""
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
"""Activities of a worker in words, in the order of tables."""


def shares(traces: Sequence[Trace]) -> Shares:
    """Add up all runs; empty if none of their requests was served."""
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


def shares_table(shares: Shares) -> Sheet:
    """Make a table with a row per activity and a column per worker."""
    sheet = Sheet("where time goes, % of wall time", [*words(""), *figures(*shares)])
    for kind, label in NAMES.items():
        parts = [each.get(kind, 0.0) for each in shares.values()]
        if any(parts):
            sheet.add(label, *(f"{100 * part:.1f}" for part in parts))
    return sheet
