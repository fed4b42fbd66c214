"""How a worker is lost: the kinds of faults, when one is noticed, and what is noted of it.

Law of this file: both worlds notice alike. What becomes of the run then is the decision of
``failover.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

FaultKind: TypeAlias = Literal["kill", "stop", "cut"]
"""A worker ends, stands still, or is cut off: its links are cut, or its host loses power."""
BEATS = 10
"""So often a worker shows itself within the time after which it counts as silent, at least."""
MOST_BEAT_MS, LEAST_BEAT_MS = 500.0, 100.0
"""Between two signs of life."""


def beat_ms(timeout_ms: float) -> float:
    """Time between two signs of a worker's life, and between two looks for them."""
    return max(LEAST_BEAT_MS, min(MOST_BEAT_MS, timeout_ms / BEATS))


def noticed_after_ms(kind: FaultKind, timeout_ms: float) -> float:
    """What passes on average until a fault is noticed: nothing if the worker's end is heard. Else
    it is named two looks before its time is up; its last sign came half a beat before the fault,
    and was seen half a look after that. Who is cut off shows itself once more."""
    if kind == "kill":
        return 0.0
    return timeout_ms - (1 if kind == "cut" else 2) * beat_ms(timeout_ms)


@dataclass(frozen=True, slots=True)
class Fault:
    """A worker failed; times from the run's start, in ms.

    Attributes:
        at_ms: None where nobody knows.
        detected_ms: when it was noticed; None if it was over before.
        recovered_ms: when all open requests were handed over again; None if they were not.
        plain_from_ms: since when those of a draft server were decoded plainly; None: they were not.
        plain_until_ms: when it drafted again; None: it did not.
    """

    worker: str
    kind: FaultKind
    at_ms: float | None
    detected_ms: float | None
    recovered_ms: float | None = None
    plain_from_ms: float | None = None
    plain_until_ms: float | None = None


def drafts_again(faults: list[Fault], draft: str, at_ms: float) -> None:
    """Note in a run's faults that a draft server drafts from now on.

    >>> faults = [Fault("draft0", "stop", 1.0, 2.0, 3.0, plain_from_ms=3.0)]
    >>> drafts_again(faults, "draft0", 9.0)
    >>> faults[0].plain_until_ms
    9.0
    """
    for place, fault in enumerate(faults):
        is_away = fault.plain_from_ms is not None and fault.plain_until_ms is None
        if fault.worker == draft and is_away:
            faults[place] = replace(fault, plain_until_ms=at_ms)
