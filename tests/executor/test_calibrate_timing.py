"""How ``treepipe calibrate`` times: turns, quartiles, clocks, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from treepipe.executor.measure.device import Measurements
from treepipe.executor.measure.device_file import call_overhead_ms, idle_factors
from treepipe.executor.measure.timing import Effort, HostClock, Probe, Sampler, measured

pytestmark = pytest.mark.processes


class CountingClock:
    """Runs the work; the time is whatever the work returns."""

    withheld = 0.0

    def time_ms(self, work: Callable[[], object]) -> float:
        found = work()
        assert isinstance(found, float)
        return found


def test_points_are_visited_in_turns_until_all_are_known() -> None:
    visits: list[str] = []

    def probe(name: str, time_ms: float) -> Probe[str]:
        def work() -> float:
            visits.append(name)
            return time_ms

        return Probe(name, work, warm=False)

    sampler = Sampler[str](CountingClock())
    sampler.measure([probe("a", 5.0), probe("b", 7.0)], Effort(60.0, turns=4), lambda _: None)
    assert visits == ["a", "b"] * 5  # the warm-up, and four turns
    found = measured(sampler.samples)
    assert (found["a"].median, found["b"].median, found["b"].passes) == (5.0, 7.0, 4)


def test_a_median_stands_beside_its_quartiles() -> None:
    found = measured({"few": [1.0, 2.0], "odd": [4.0, 1.0, 2.0, 3.0, 100.0]})
    assert list(found) == ["odd"]
    assert (found["odd"].low, found["odd"].median, found["odd"].high) == (2.0, 3.0, 4.0)
    assert found["odd"].spread == pytest.approx(2 / 3)


def test_waiting_for_a_processor_is_not_counted() -> None:
    clock = HostClock()
    work_ms = clock.time_ms(lambda: sum(range(200_000)))
    assert 0 < work_ms <= clock.timed_ms
    assert work_ms == pytest.approx(clock.timed_ms - clock.withheld_ms)
    assert 0 <= clock.withheld < 1


def test_overhead_is_what_one_layer_takes_more() -> None:
    """A call of n layers takes 0.3 + 2 n ms."""
    found = Measurements()
    for tokens in (1, 2, 4):
        found.passes["block", tokens, 0] = [8.3] * 3
        found.passes["single", tokens, 0] = [2.3] * 3
    assert call_overhead_ms(found, 4) == pytest.approx(0.3)
    assert call_overhead_ms(Measurements(), 4) == 0.0


def test_idle_factors_are_relative_to_no_gap() -> None:
    found = Measurements(idle={0.0: [2.0] * 3, 10.0: [3.0] * 3, 100.0: [4.0] * 2})
    assert idle_factors(found) == {0.0: 1.0, 10.0: 1.5}
    assert idle_factors(Measurements()) is None
