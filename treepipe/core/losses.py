"""The loss of a worker, alike in both worlds: kinds of faults, time of notice, and the record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

FaultKind: TypeAlias = Literal["kill", "stop", "cut"]
"""A worker ends, stands still, or is cut off (by its links, or a power loss of its host)."""
BEATS = 10
"""Minimum number of signs of life within the time after which a worker counts as silent."""
MOST_BEAT_MS, LEAST_BEAT_MS = 500.0, 100.0
"""Bounds of the time between two signs of life."""


def beat_ms(timeout_ms: float) -> float:
    """Return the time between two signs of a worker's life, and between two checks for them."""
    return max(LEAST_BEAT_MS, min(MOST_BEAT_MS, timeout_ms / BEATS))


def noticed_after_ms(kind: FaultKind, timeout_ms: float) -> float:
    """Return the mean time until a fault is noticed.

    It is 0 if the worker's end itself is noticed. Else the worker is reported two checks before its
    time is up; its last sign came half a beat before the fault, and was seen half a check after
    that. A worker that is cut off shows itself once more.
    """
    if kind == "kill":
        return 0.0
    return timeout_ms - (1 if kind == "cut" else 2) * beat_ms(timeout_ms)


@dataclass(frozen=True, slots=True)
class Fault:
    """A worker failed; times from the run's start, in ms.

    Attributes:
        at_ms: time of the fault; None if unknown.
        detected_ms: time of notice; None if the run was over before.
        recovered_ms: time at which all open requests were handed over again; None if they were not.
    """

    worker: str
    kind: FaultKind
    at_ms: float | None
    detected_ms: float | None
    recovered_ms: float | None = None
