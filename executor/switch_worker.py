"""The process that all messages go through where transfers are scheduled centrally (PipeDec).

It stands for no device: it holds a message back until the two ends of its transfer are free, and
hands it on with the time at which the emulated link then delivers it.
"""

from __future__ import annotations

import heapq

from treepipe.executor.station import Station
from treepipe.executor.transport import Received
from treepipe.plan import message_bytes
from treepipe.transfers import Ends, TransferQueue


class SwitchWorker:
    """Starts transfers in the order of the emulated devices' time."""

    open_sessions = 0

    def __init__(self, station: Station) -> None:
        self._station = station
        self._queue: TransferQueue[Received] = TransferQueue()
        self._ends: list[tuple[float, Ends]] = []

    def serve(self) -> None:
        """Serve until the controller calls."""
        station = self._station
        while not station.control.poll():
            until = self._ends[0][0] if self._ends else None
            received = station.inbox.get(until)
            if received is not None:
                station.clock.wake(received.envelope.due_ms)
                envelope = received.envelope
                ends = envelope.sender, envelope.receiver
                self._begin(self._queue.ask(ends, received))
            elif self._ends and station.clock.reached(self._ends[0][0]):
                end_ms, ends = heapq.heappop(self._ends)
                station.clock.wake(end_ms)
                self._begin(self._queue.end(ends))

    def _begin(self, transfers: list[tuple[Ends, Received]]) -> None:
        plan, now = self._station.settings.plan, self._station.clock.now_ms()
        for ends, received in transfers:
            link = plan.link(*ends)
            size = message_bytes(received.envelope.body, plan.row_bytes)
            due = now + link.latency_ms + link.occupied_ms(size)
            heapq.heappush(self._ends, (due, ends))
            self._station.outboxes[ends[1]].hand_on(received, due)
