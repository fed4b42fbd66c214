"""The receiving port of an emulated device: what its inbox delivers when, without a network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from treepipe.core.messages import Close
from treepipe.executor.clock import now_ms
from treepipe.executor.transport import Envelope, Inbox, header


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    context = zmq.Context()
    inbox = Inbox(context, 0, "stage1")
    yield inbox
    inbox.close()
    context.destroy(linger=0)


def test_what_comes_to_a_busy_port_is_delivered_behind_what_is_there(inbox: Inbox) -> None:
    """A message of 40 ms comes at 0, one of 5 ms at 10, one over a link without a rate at 20; all
    are there when the first is looked for, the last one first."""
    lasts = {"long": 40.0, "short": 5.0, "light": 0.0}
    comes = {"light": 20.0, "short": 10.0, "long": 0.0}
    inbox.arrives_ms = lambda envelope: lasts[envelope.sender]
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
    inbox.arrives_ms = lambda envelope: 20.0
    start = now_ms()
    for sender, due in (("far", 80.0), ("near", 25.0)):
        inbox.take([header(Envelope(sender, "stage1", start, start + due, Close(1)))])
    found = [inbox.get(start + 1000.0) for _ in range(2)]
    assert now_ms() >= start + 80.0
    assert [
        (each.envelope.sender, each.envelope.due_ms - start) for each in found if each is not None
    ] == [("near", pytest.approx(25.0)), ("far", pytest.approx(80.0))]
