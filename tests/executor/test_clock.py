"""A worker's time: that of an emulated device is its profile's, and late where the host is; a port
delivers one message after another; an activity log leaves no gap."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treepipe.core.messages import Close
from treepipe.executor.run.activity import ActivityLog
from treepipe.executor.wire.clock import LAG_MS, DeviceClock, now_ms, wait_until
from treepipe.executor.wire.envelope import Envelope, header
from treepipe.executor.wire.mailbox import Inbox
from treepipe.executor.wire.transport import ZeroMQ
from treepipe.physics.timing import PortLoad

# --- the clock of an emulated device -------------------------------------------------------------

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
    later = clock.spend(end, 20.0)
    late = now_ms() - LAG_MS  # if the host has been away meanwhile
    assert end + 20.0 <= later <= max(end + 20.0, late), "made up for where the device is slower"


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


# --- its receiving port, without a network -------------------------------------------------------


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    transport = ZeroMQ()
    yield Inbox(transport, 0, "stage1")
    transport.close()


def test_what_comes_to_a_busy_port_is_delivered_behind_what_is_there(inbox: Inbox) -> None:
    """A message of 40 ms comes at 0, one of 5 ms at 10, one over a link without a rate at 20; all
    are there when the first is looked for, the last one first."""
    lasts = {"long": 40.0, "short": 5.0, "light": 0.0}
    comes = {"light": 20.0, "short": 10.0, "long": 0.0}
    inbox.arrives = lambda envelope: PortLoad(lasts[envelope.sender])
    start = now_ms() - 1000.0
    for sender, at in comes.items():
        due = start + at + lasts[sender]
        inbox.take([header(Envelope(sender, "stage1", start, due, Close(1)))])
    found = []
    while (received := inbox.get_due(now_ms())) is not None:
        found.append((received.envelope.sender, received.envelope.due_ms - start))
    assert found == [
        ("light", pytest.approx(20.0)),
        ("long", pytest.approx(40.0)),
        ("short", pytest.approx(45.0)),
    ]


def test_a_port_is_not_taken_before_the_message_is_there(inbox: Inbox) -> None:
    """What comes in 60 ms is announced first; a message that is there before it does not wait."""
    inbox.arrives = lambda envelope: PortLoad(20.0)
    start = now_ms()
    for sender, due in (("far", 80.0), ("near", 25.0)):
        inbox.take([header(Envelope(sender, "stage1", start, start + due, Close(1)))])
    found = [inbox.get(start + 1000.0) for _ in range(2)]
    assert now_ms() >= start + 80.0
    assert [
        (each.envelope.sender, each.envelope.due_ms - start) for each in found if each is not None
    ] == [("near", pytest.approx(25.0)), ("far", pytest.approx(80.0))]


def test_what_comes_together_waits_for_tokens_of_the_port(inbox: Inbox) -> None:
    """Each message takes 2 ms at the peak and draws 10 ms' tokens from a bucket of 15."""
    inbox.arrives = lambda envelope: PortLoad(2.0, 10.0, 15.0)
    start = now_ms() - 1000.0
    for sender in "abc":
        inbox.take([header(Envelope(sender, "stage1", start, start + 2.0, Close(1)))])
    found = [inbox.get_due(now_ms()) for _ in range(3)]
    due = [each.envelope.due_ms - start for each in found if each is not None]
    assert due == pytest.approx([2.0, 5.0, 15.0])


# --- what a worker is at -------------------------------------------------------------------------

turns = st.sampled_from(["desk", "wait", "receive", "mask", "compute", "send", "woken", "take"])


@given(st.lists(turns, max_size=30), st.floats(-5, 5))
def test_entries_leave_no_gap_and_do_not_overlap(turned: list[str], sent_before_ms: float) -> None:
    start = now_ms()
    ledger, spans = ActivityLog(), []
    for turn in turned:
        if turn == "take":
            spans += ledger.take("a")
        elif turn == "woken":
            ledger.woken(now_ms() - sent_before_ms)
        else:
            ledger.enter(turn, session=int(turn == "compute"), tokens=3)  # type: ignore[arg-type]
    spans += ledger.take("a")
    assert start <= spans[0].start_ms
    assert all(one.end_ms == other.start_ms for one, other in pairwise(spans))
    assert spans[-1].end_ms <= now_ms()
    assert all(span.tokens == 3 for span in spans if span.kind == "compute")


def test_the_end_of_a_wait_is_waking_up_from_when_the_message_was_sent() -> None:
    ledger = ActivityLog()
    ledger.enter("wait")
    waiting = now_ms()
    while now_ms() == waiting:
        pass
    sent = now_ms()
    while now_ms() == sent:
        pass
    ledger.enter("receive")
    ledger.woken(sent)
    spans = {span.kind: span for span in ledger.take("a")}
    assert spans["wait"].end_ms == spans["wake"].start_ms == sent
    assert spans["wake"].end_ms == spans["receive"].start_ms
