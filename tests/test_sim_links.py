"""Links of the simulated world: bandwidth, latency, jitter, and never another order."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pytest

from treepipe.sim.clock import Clock
from treepipe.sim.link import Link
from treepipe.timing import LinkTimes


def arrivals(
    link_times: LinkTimes, sends: Sequence[float], sizes: Sequence[int], seed: int = 0
) -> list[tuple[int, float]]:
    """(number, time) of every arrival of messages sent at these times."""
    env = Clock()
    found: list[tuple[int, float]] = []
    link: Link[int] = Link(
        env, link_times, lambda item: found.append((item, env.now)), np.random.default_rng(seed)
    )

    def sender() -> Generator[Any, Any, None]:
        for number, (time, size) in enumerate(zip(sends, sizes, strict=True)):
            yield env.timeout(time - env.now)
            link.send(number, size)

    env.process(sender())
    env.run()
    return found


def test_bandwidth_keeps_the_link_busy_and_latency_does_not() -> None:
    # 125,000 bytes take 1 ms at 1 Gbit/s. The third message finds the link free.
    found = arrivals(LinkTimes(5.0, 1000.0), [0.0, 0.0, 9.0], [125_000, 250_000, 125_000])
    assert [number for number, _ in found] == [0, 1, 2]
    assert [time for _, time in found] == pytest.approx([6.0, 8.0, 15.0])


@pytest.mark.parametrize("seed", range(25))
def test_jitter_never_reorders(seed: int) -> None:
    # Held-up messages become due together; rounding of their delays must not swap them.
    sends = np.cumsum(np.random.default_rng(1000 + seed).exponential(0.7, 500)).tolist()
    found = arrivals(LinkTimes(1.0, None, 5.0), sends, [64] * 500, seed)
    assert [number for number, _ in found] == list(range(500))


def test_jitter_is_half_normal() -> None:
    sends = [1000.0 * i for i in range(4000)]
    found = arrivals(LinkTimes(1.0, None, 5.0), sends, [64] * 4000)
    extra = np.array([time for _, time in found]) - np.array(sends) - 1.0
    assert extra.min() >= 0
    assert extra.mean() == pytest.approx(5.0 * np.sqrt(2 / np.pi), rel=0.05)
