"""The process that forwards all messages if transfers wait for each other.

(PipeDec's central scheduler, half duplex, shared media.) It holds a message until its transfer can
begin, and forwards it with the emulated link's delivery time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np

from treepipe.executor.run.station import Station
from treepipe.executor.wire.mailbox import Received
from treepipe.physics.transfers import Port, Resources, TransferQueue, Wire


class SwitchWorker:
    """A server of transfers in the order of the emulated devices' time."""

    open_sessions = 0

    def __init__(self, station: Station) -> None:
        self._station = station
        self._queue: TransferQueue[Received] = TransferQueue()
        self._ends: list[tuple[float, Resources]] = []
        self._wires: dict[tuple[str, str, bool], Wire] = {}
        self._sending: defaultdict[str, Port] = defaultdict(Port)

    def serve(self) -> None:
        """Serve until the controller sends an order."""
        station = self._station
        while not station.called:
            until = self._ends[0][0] if self._ends else None
            received = station.inbox.get(until)
            if received is not None:
                station.clock.wake(received.envelope.due_ms)
                envelope = received.envelope
                deployment, ends = station.settings.deployment, (envelope.sender, envelope.receiver)
                unscheduled = deployment.wiring.unscheduled(received.message)
                held = deployment.held(*ends, unscheduled=unscheduled)
                self._begin(self._queue.ask(held, received))
            elif self._ends and station.clock.reached(self._ends[0][0]):
                end_ms, held = heapq.heappop(self._ends)
                station.clock.wake(end_ms)
                self._begin(self._queue.end(held))

    def _begin(self, transfers: list[tuple[Resources, Received]]) -> None:
        deployment, now = self._station.settings.deployment, self._station.clock.now_ms()
        for held, received in transfers:
            envelope = received.envelope
            size = deployment.roles.size_bytes(envelope.sender, received.message)
            unscheduled = deployment.wiring.unscheduled(received.message)
            wire = self._wire(envelope.sender, envelope.receiver, unscheduled=unscheduled)
            begin, free, due = wire.transfer(now, size)
            scheduled = deployment.wiring.central_transfers and not unscheduled
            heapq.heappush(self._ends, (due if scheduled else free, held))
            self._station.outboxes[envelope.receiver].hand_on(received, begin, due)

    def _wire(self, sender: str, receiver: str, *, unscheduled: bool) -> Wire:
        wire = self._wires.get((sender, receiver, unscheduled))
        if wire is None:
            deployment = self._station.settings.deployment
            seed = [deployment.seed, *f"{sender}->{receiver}".encode()]
            port = None if deployment.roles.is_local(sender, receiver) else self._sending[sender]
            link = deployment.link_for(sender, receiver, unscheduled=unscheduled)
            wire = Wire(link, np.random.default_rng(seed), port)
            self._wires[sender, receiver, unscheduled] = wire
        return wire
