"""The common part of worker processes: settings, inbox, outboxes, clock, and record of spans.

With emulation ``work`` records spans of the device's time; without, the activity log covers all of
the worker's time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import torch
from torch import nn

from treepipe.core.messages import Message
from treepipe.core.requests import numbered
from treepipe.executor.models.packed import pack, warm_up
from treepipe.executor.models.static_pass import capture
from treepipe.executor.run.activity import ActivityLog
from treepipe.executor.wire.clock import DeviceClock, now_ms
from treepipe.executor.wire.dialled import DialledLine
from treepipe.executor.wire.envelope import Envelope, Ping, gate_of
from treepipe.executor.wire.mailbox import Inbox, Outbox, Received
from treepipe.executor.wire.role import RoleSettings
from treepipe.physics.timing import IdleFactor, LinkTimes, PortLoad
from treepipe.physics.transfers import NO_LOAD, Port, Wire
from treepipe.results.trace import Kind, Span

GAUGE_ROWS, GAUGE_LAYERS, GAUGE_STATES = 8, 8, (1024, 512)
"""The gauge's fixed work: rows, number of linear layers, and their inputs and outputs."""
STRANGER = "came from a peer without the run's key"
MOST_WARM = 64
"""Rows of the largest pass that a worker tries before a run; larger ones take much longer than
making their kernels."""


class Station:
    """A worker's messages, clock and spans.

    Attributes:
        fresh: whether the next work samples the factor of the device's idle time anew.
    """

    def __init__(self, settings: RoleSettings, line: DialledLine, host: str) -> None:
        """Listen on this host address."""
        self.settings, self.line = settings, line
        self.clock, self.transport = DeviceClock(bool(settings.emulate)), line.transport
        name, gate = settings.placed.name, gate_of(settings)
        self.inbox = Inbox(self.transport, settings.port, name, host, gate=gate)
        self.inbox.watch(line.channel)
        self.inbox.enter = self.enter
        if settings.delays and settings.kind != "switch":
            self.inbox.arrives = self._arrives
        self.outboxes: dict[str, Outbox] = {}
        self.spans: list[Span] = []
        self.activity, self.fresh, self._factor = ActivityLog(), True, 1.0
        self._ended_ms = self._next_gauge_ms = -inf

    def connect(self, addresses: Mapping[str, str], links: Mapping[str, LinkTimes]) -> None:
        """Open an outbox to each named worker."""
        seed = np.random.SeedSequence(
            [self.settings.deployment.seed, *self.settings.placed.name.encode()]
        )
        deployment, own, sending = self.settings.deployment, self.settings.placed.name, Port()
        # Where transfers queue, the switch delays the messages.
        delayed = self.settings.delays and not deployment.wiring.queues_transfers
        for (name, address), child in zip(
            addresses.items(), seed.spawn(len(addresses)), strict=True
        ):
            wire, ends = None, (own, name)
            if delayed:
                port = None if deployment.roles.is_local(*ends) else sending
                wire = Wire(links[name], np.random.default_rng(child), port)
            self.outboxes[name] = Outbox(self.transport, address, ends, wire, self.settings.token)

    def cut(self) -> None:
        """Close all links to other workers, with the messages on them."""
        for outbox in self.outboxes.values():
            outbox.close()
        self.inbox.close()

    # --- messages --------------------------------------------------------------------------------

    def send(self, receiver: str, message: Message, hidden: torch.Tensor | None = None) -> None:
        self.enter("send")
        size = self.settings.deployment.roles.size_bytes(self.settings.placed.name, message)
        self.outboxes[receiver].send(message, self.clock.now_ms(), size, hidden)
        self.enter("desk")

    def _arrives(self, envelope: Envelope) -> PortLoad:
        deployment, ends = self.settings.deployment, (envelope.sender, envelope.receiver)
        if deployment.roles.is_local(*ends) or isinstance(envelope.body, Ping):
            return NO_LOAD
        size = deployment.roles.size_bytes(envelope.sender, envelope.body)
        unscheduled = deployment.wiring.unscheduled(envelope.body)
        return deployment.link_for(*ends, unscheduled=unscheduled).load(size)

    def wait(self, until_ms: float | None = None) -> Received | None:
        """Wait for the next due message; None at ``until_ms`` or at an order."""
        self._gauge()
        self.enter("receive")
        received = self.inbox.get(until_ms)
        if received is not None:
            # What the network itself delivers is there when it is read.
            self.clock.wake(received.envelope.due_ms if self.settings.delays else now_ms())
            self.activity.woken(received.envelope.sent_ms)
            self._note_transfer(received)
        self.enter("desk")
        return received

    @property
    def called(self) -> bool:
        """Whether the coordinator has sent an order."""
        return self.line.called

    def woken(self, at_ms: float | None) -> bool:
        """Whether this time has come while the worker was idle."""
        if at_ms is None or not self.clock.reached(at_ms):
            return False
        self.clock.wake(at_ms)
        return True

    def due(self) -> Received | None:
        self.enter("receive")
        received = self.inbox.get_due(self.clock.now_ms())
        if received is not None:
            self._note_transfer(received)
        self.enter("desk")
        return received

    def _note_transfer(self, received: Received) -> None:
        """Record the link's span when the message is delivered."""
        envelope, message = received.envelope, received.message
        rows = message.rows
        device = f"{envelope.sender}->{self.settings.placed.name}"
        # Another host's clock is known only roughly, but no message arrives before it was sent.
        now = max(envelope.sent_ms, self.clock.now_ms())
        due = envelope.due_ms if self.settings.delays else now
        _, number = numbered(message.session)
        self.spans.append(Span(device, "transfer", envelope.sent_ms, due, number, rows))

    def warm_up(self) -> None:
        """Make the kernels and graphs of passes of all sizes that a schedule sends, which emulation
        hides."""
        deployment, pipeline = self.settings.deployment, self.settings.pipeline
        if not self.settings.emulate:
            service, pipelines = deployment.service, range(len(deployment.roles.pipelines))
            rows = min(MOST_WARM, service.bounds.segment_tokens * service.pass_requests)
            warm_up(rows)
            if self.settings.placed.compute.kind == "cuda":  # a CPU has nothing to capture
                opened = [*map(deployment.most_open, pipelines)]
                drafting = -(-sum(opened) // len(deployment.roles.heads))
                capture(drafting if pipeline is None else opened[pipeline], rows)

    # --- work ------------------------------------------------------------------------------------

    @cached_property
    def _idle(self) -> IdleFactor:
        settings = self.settings
        return IdleFactor(settings.deployment.roles.machine(settings.placed.name).idle_factor)

    def enter(self, kind: Kind, session: int = 0, tokens: int = 0) -> None:
        """Log the start of an activity."""
        if not self.settings.emulate:
            self.activity.enter(kind, session and numbered(session)[1], tokens)

    @contextmanager
    def work(
        self, kind: Kind, session: int, tokens: int, emulated_ms: float | Callable[[], float]
    ) -> Iterator[float]:
        """Record a span around the body; with emulation it lasts at least ``emulated_ms`` (computed
        after the body), times a factor after an idle gap if the device's profile has one, which the
        body is given."""
        start = self.clock.now_ms()
        if self.fresh:
            self._factor = self._idle(start - self._ended_ms)
            self.fresh = self.settings.kind == "stage"  # each pass of a stage is a turn of its own
        self.enter(kind, session, tokens)
        yield self._factor
        if not isinstance(emulated_ms, float | int):
            emulated_ms = emulated_ms()
        self._ended_ms = end = self.clock.spend(start, emulated_ms * self._factor)
        if self.settings.emulate:
            name, (_, number) = self.settings.placed.name, numbered(session)
            self.spans.append(Span(name, kind, start, end, number, tokens))
        self.enter("desk")

    def _gauge(self) -> None:
        """Time a fixed piece of work after a warm-up, in a 300th of the worker's time, since a
        machine's speed drifts."""
        if self.settings.emulate or now_ms() < self._next_gauge_ms:
            return
        parts, rows = self._gauged, torch.ones(GAUGE_ROWS, GAUGE_STATES[0])
        start = now_ms()
        for counted, part in enumerate((next(parts), next(parts))):
            self.enter("gauge", tokens=counted)
            part(rows)
            self.enter("desk")
        self._next_gauge_ms = start + 300 * (now_ms() - start)

    @cached_property
    def _gauged(self) -> Iterator[Any]:
        """Linear layers of float32 in turn, too large for a core's own cache: a small pass has
        about the same shares of arithmetic and memory, whose speeds drift apart."""
        layers = nn.Sequential(*(nn.Linear(*GAUGE_STATES, bias=False) for _ in range(GAUGE_LAYERS)))
        pack(layers.requires_grad_(False))
        return itertools.cycle(layers)

    def take_dropped(self) -> dict[str, int]:
        """Return the counts of messages dropped since the last call, by reason."""
        dropped = dict(self.inbox.dropped)
        self.inbox.dropped.clear()
        if self.transport.refused:
            dropped[STRANGER], self.transport.refused = self.transport.refused, 0
        return dropped

    def take_spans(self) -> list[Span]:
        """Return the worker's and its links' spans since the last call."""
        spans, self.spans = self.spans, []
        own = [] if self.settings.emulate else self.activity.take(self.settings.placed.name)
        return spans + own
