"""The transport where processors are taken: messages that arrive while a role computes."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from treepipe.executor.wire.addresses import LOOPBACK
from treepipe.executor.wire.transport import ZeroMQ


def arrives_while_computing() -> bool:
    """Send a message to this thread, which computes at a real-time priority on one processor."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    network = ZeroMQ()
    inbox = network.listen(LOOPBACK, 0, 10, -1)
    outbox = network.connect(inbox.address)
    outbox.send(b"first")
    inbox.poll(5_000)
    assert inbox.receive() is not None  # both ends are connected
    outbox.send(b"second")
    until = time.perf_counter() + 0.02  # less than a turn of the scheduler
    while time.perf_counter() < until:
        pass
    arrived = inbox.receive() is not None
    network.close()
    return arrived


@pytest.mark.skipif(sys.platform != "linux", reason="real-time classes are Linux'")
def test_messages_arrive_at_a_computing_real_time_process() -> None:
    """The I/O thread has the processor at once; with equal priorities it would wait for a turn."""
    with ThreadPoolExecutor(1) as threads:  # a thread has its own class and processors
        try:
            assert threads.submit(arrives_while_computing).result()
        except PermissionError:
            pytest.skip("no right to a real-time class")
