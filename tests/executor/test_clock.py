"""An emulated device's time: its profile's, never ahead of the host's, late where it must be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treepipe.executor.clock import LAG_MS, DeviceClock, now_ms, wait_until

steps = st.lists(st.tuples(st.floats(0, 2), st.floats(0, 3)), min_size=1, max_size=5)


@given(steps)
def test_device_time_is_the_profiles_if_the_host_keeps_up(steps: list[tuple[float, float]]) -> None:
    """Idle until a message is due, then work: no time of the host's own is counted."""
    clock = DeviceClock(emulate=True)
    clock.wake(now_ms() + 1.0)
    for idle, work in steps:
        due = clock.now_ms() + idle
        wait_until(due)
        clock.wake(due)
        start = clock.now_ms()
        end = clock.spend(start, work)
        assert end == clock.now_ms() <= now_ms(), "waiting keeps it from running ahead"
        assert end >= start + work, "work takes what the profile says"
        assert end <= max(start + work, now_ms() - LAG_MS), "and no longer, unless the host does"


def test_a_slow_host_makes_the_device_late_beyond_the_lag() -> None:
    clock = DeviceClock(emulate=True)
    start = now_ms()
    clock.wake(start)
    wait_until(start + LAG_MS + 8.0)  # the host's own work, which the device does in 2 ms
    end = clock.spend(start, 2.0)
    assert end >= start + 8.0
    wait_until(end + LAG_MS + 2.0)
    assert clock.spend(end, 20.0) == end + 20.0, "made up for where the device is slower"


def test_an_earlier_message_does_not_turn_time_back() -> None:
    clock = DeviceClock(emulate=True)
    clock.wake(50.0)
    clock.wake(40.0)
    assert clock.now_ms() == 50.0


def test_without_emulation_time_is_the_hosts() -> None:
    clock = DeviceClock(emulate=False)
    clock.wake(now_ms() + 1e6)
    before = now_ms()
    assert before <= clock.now_ms() <= now_ms()
    assert clock.spend(before, 1e6) <= now_ms()
