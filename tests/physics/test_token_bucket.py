"""Links with a burst: the token bucket of a port, against forms by hand and one that counts tokens
packet by packet, as a switch does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treepipe.physics.timing import LinkTimes
from treepipe.physics.transfers import Port, Wire
from treepipe.profiles.schema import Link

MS = 125_000
"""Bytes of a millisecond at 1 Gbit/s."""
LATENCY_MS = 5.0
PACKET = 500
"""Bytes of the reference's packets: 0.004 ms at 1 Gbit/s."""
sent = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.integers(1, 900).map(lambda n: n * PACKET)),
    min_size=1,
    max_size=12,
)
"""Pauses (ms) before messages of so many bytes."""


def wire(burst_ms: float, peak_mbit_s: float | None = None, message_ms: float = 0.0) -> Wire:
    """Of 1 Gbit/s, with a bucket of so many milliseconds' bytes."""
    times = LinkTimes(
        LATENCY_MS,
        1000.0,
        message_ms=message_ms,
        burst_bytes=burst_ms * MS,
        peak_mbit_s=peak_mbit_s,
    )
    return Wire(times, np.random.default_rng(0))


def delivered(link: Wire, sends: list[tuple[float, float]]) -> list[float]:
    """Deliveries of messages sent as (time, milliseconds' bytes), less the latency."""
    return [link.transfer(at, round(of * MS))[2] - LATENCY_MS for at, of in sends]


def test_a_train_leaves_at_once_while_there_are_tokens_and_then_at_the_rate() -> None:
    """The k-th of n messages of 1 ms behind a bucket of 2.5: max(0, k - 2.5)."""
    found = delivered(wire(2.5), [(0.0, 1.0)] * 5)
    assert found == pytest.approx([0.0, 0.0, 0.5, 1.5, 2.5])


def test_a_burst_leaves_at_the_peak() -> None:
    """At four times the rate: the k-th has left at max(k / 4, k - 2)."""
    found = delivered(wire(2.0, 4000.0), [(0.0, 1.0)] * 5)
    assert found == pytest.approx([0.25, 0.5, 1.0, 2.0, 3.0])


def test_one_long_message_is_a_train() -> None:
    assert delivered(wire(2.0, 4000.0), [(0.0, 5.0)]) == pytest.approx([3.0])
    assert delivered(wire(2.0, 4000.0), [(0.0, 2.0)]) == pytest.approx([0.5])
    assert delivered(wire(2.0, 4000.0, message_ms=0.75), [(0.0, 2.0)]) == pytest.approx([1.25])


def test_an_idle_port_refills_its_bucket_and_no_more() -> None:
    """Empty at 3 ms; after one more there are tokens for one message, after ten for two."""
    link = wire(2.0)
    assert delivered(link, [(0.0, 1.0)] * 5)[-1] == pytest.approx(3.0)
    assert delivered(link, [(4.0, 1.0), (4.0, 1.0)]) == pytest.approx([4.0, 5.0])
    assert delivered(link, [(15.0, 1.0)] * 3) == pytest.approx([15.0, 15.0, 16.0])


def test_a_repetition_draws_tokens_once_more() -> None:
    times = LinkTimes(0.0, 1000.0, loss=0.9, retransmit_ms=9.0, burst_bytes=2 * MS)
    link, rng = Wire(times, np.random.default_rng(3)), np.random.default_rng(3)
    again = int(rng.geometric(0.1)) - 1
    assert again, "or the test tries nothing"
    lasts = max(0.0, (1 + again) * 1.5 - 2)
    assert link.transfer(0.0, round(1.5 * MS))[2] == pytest.approx(lasts + 9.0 * again)


def packet_by_packet(
    sends: list[tuple[float, int]], burst: float, rate: float, peak: float
) -> list[float]:
    """Ends of messages: a packet leaves at the peak (bytes/ms) when the bucket holds its bytes."""
    now, tokens, filled, ends, at = 0.0, burst, 0.0, list[float](), 0.0
    for after, size in sends:
        at += after
        now = max(now, at)
        for _ in range(size // PACKET):
            tokens, filled = min(burst, tokens + (now - filled) * rate), now
            wait = max(0.0, (PACKET - tokens) / rate)
            now += wait + PACKET / peak
            tokens += wait * rate - PACKET
            filled += wait
        ends.append(now)
    return ends


@given(sent, st.sampled_from([0.02, 0.5, 2.0]), st.sampled_from([1.5, 4.0, 1000.0]))
def test_packets_of_a_switch_agree(
    sent: list[tuple[float, int]], burst_ms: float, faster: float
) -> None:
    expected = packet_by_packet(sent, burst_ms * MS, MS, faster * MS)
    link, at, found = wire(burst_ms, faster * 1000.0), 0.0, list[float]()
    for after, size in sent:
        at += after
        found.append(link.transfer(at, size)[2] - LATENCY_MS)
    assert found == pytest.approx(expected, abs=2.1 * PACKET / MS)


@given(sent, st.sampled_from([0.0, 0.3]))
def test_no_burst_is_the_limit_of_a_small_one(
    sent: list[tuple[float, int]], message_ms: float
) -> None:
    """And 0 is none: a message costs its whole time."""
    none, small = wire(0.0, message_ms=message_ms), wire(1e-9, 1000.0, message_ms)
    at = free = 0.0
    for after, size in sent:
        at += after
        free = max(free, at) + message_ms + size / MS
        assert none.transfer(at, size)[2] == pytest.approx(free + LATENCY_MS)
        assert small.transfer(at, size)[2] == pytest.approx(free + LATENCY_MS)


@given(sent, st.sampled_from([0.5, 2.0]), st.sampled_from([None, 3000.0]))
def test_a_receiver_lets_pass_what_its_only_sender_let_pass(
    sent: list[tuple[float, int]], burst_ms: float, peak_mbit_s: float | None
) -> None:
    link, port, at = wire(burst_ms, peak_mbit_s, 0.1), Port(), 0.0
    for after, size in sent:
        at += after
        due, load = link.transfer(at, size)[2], link.load(size)
        port.take(due - load.lasts_ms, load)
        assert port.free_ms == pytest.approx(due)


def test_a_message_of_a_link_without_a_burst_draws_no_tokens() -> None:
    port = Port()
    with_burst = LinkTimes(0.0, 1000.0, burst_bytes=2 * MS).load(2 * MS)
    port.take(0.0, LinkTimes(0.0, 1000.0).load(MS))
    port.take(0.0, with_burst)
    assert port.free_ms == 1.0
    port.take(1.0, with_burst)
    assert port.free_ms == 3.0


# --- its keys ------------------------------------------------------------------------------------


def test_keys_of_a_link_make_its_bucket() -> None:
    """A factor on rates is one on the peak, too, and not on the bucket's depth."""
    given = Link(bandwidth_mbit_s=8, burst_kib=125, peak_mbit_s=80)
    assert given.times.load(256_000) == pytest.approx((128.0, 256.0, 128.0))
    assert given.times.scaled(1.0, 2.0).load(256_000) == pytest.approx((64.0, 128.0, 64.0))
