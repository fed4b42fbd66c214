"""Time in the executor: one monotonic clock for all processes of a host, and exact waiting."""

from __future__ import annotations

import time

SPIN_S = 2e-4
"""A sleep overshoots by about 0.1 ms, so the last part of a wait is spun."""


def now_ms() -> float:
    """Milliseconds of the host's monotonic clock (the same in every process)."""
    return time.monotonic() * 1e3


def wait_until(deadline_ms: float) -> None:
    """Return as soon after ``deadline_ms`` as the machine allows."""
    deadline = deadline_ms / 1e3
    left = deadline - time.monotonic()
    if left > SPIN_S:
        time.sleep(left - SPIN_S)
    while time.monotonic() < deadline:
        pass
