"""What every worker process has: its name, inbox, outboxes, clock, and record of spans.

With emulation a span is a piece of the device's time, noted by ``work``. Without, the worker's
ledger says what it is at, and that is all of its time.

The roles themselves are in ``stage_worker.py`` and ``draft_worker.py``; starting and ending
processes is in ``controller.py``.
"""

from __future__ import annotations

import itertools
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import zmq
from torch import nn

from treepipe.core.messages import Beat, Close, Flight, Message, MessageLimits, Through, Verified
from treepipe.core.requests import numbered
from treepipe.executor.checkpoint import CheckpointSource
from treepipe.executor.clock import DeviceClock, now_ms
from treepipe.executor.computing import DTYPES
from treepipe.executor.frames import Frames
from treepipe.executor.keys import KeyPair, Porter
from treepipe.executor.ledger import Ledger
from treepipe.executor.packed import pack
from treepipe.executor.sources import SourceSettings
from treepipe.executor.transport import Envelope, Gate, Inbox, Outbox, Ping, Received
from treepipe.physics.timing import IdleFactor, LinkTimes
from treepipe.physics.transfers import Port, Wire
from treepipe.results.trace import Kind, Span
from treepipe.scenario.computing import ONE_CORE
from treepipe.scenario.deployment import SWITCH, Deployment, Placed
from treepipe.scenario.faults import DEFAULT_TIMEOUT_MS

WorkerKind: TypeAlias = Literal["draft", "stage", "switch"]
GAUGE_ROWS, GAUGE_LAYERS, GAUGE_STATES = 8, 8, (1024, 512)
"""Of the fixed piece of work: linear layers in turn, states that go into one and come out."""
STRANGER = "came from who does not hold the run's key"
MOST_TOGETHER = 256
"""A message holds rows of at most so many requests, or of all that there are."""


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """What a worker process is started with.

    Attributes:
        placed: its name, layers and (for emulation) service times.
        kind: what it works as; a switch lets transfers wait for each other.
        number: of the draft server from 0, or of the stage from 1 along its pipeline.
        pipeline: the stage's pipeline, None for the other kinds.
        deployment: what all workers share: groups of stages, queues, sampling.
        target: the target's checkpoint.
        source: what a draft server drafts with, unless it is a stand-in's place (``drafts_with``).
        capacity: cache entries per session.
        port: to listen on, 0 for any free one.
        emulate: pad work and delay messages to the profiles.
        check_causality: assert what every row attends to.
        timeout_ms: how long a worker may be silent.
        vocabulary: of the target; no token's id is beyond it.
        token: the run's secret; only its workers know it.
        key: the run's, where other hosts can reach its ports; None on the loopback.
    """

    placed: Placed
    kind: WorkerKind
    number: int
    pipeline: int | None
    deployment: Deployment
    target: CheckpointSource
    source: SourceSettings
    capacity: int
    port: int = 0
    emulate: bool = False
    check_causality: bool = False
    timeout_ms: float = DEFAULT_TIMEOUT_MS
    vocabulary: int = 2**31
    token: bytes = field(default=b"", repr=False)
    key: KeyPair | None = field(default=None, repr=False)

    @property
    def travelling(self) -> RoleSettings:
        """The same without what no worker asks: prompts (a draft server is told each with its
        request), what hosts cost, and how sure anything is."""
        deployment = self.deployment
        requests = tuple(replace(request, prompt=()) for request in deployment.requests)
        machines = tuple(replace(machine, costs=None) for machine in deployment.machines)
        kept = replace(deployment, requests=requests, machines=machines, estimates={}, warnings=())
        return replace(self, deployment=replace(kept, redeal=None, stand_in=None))

    def moved(self, deployment: Deployment) -> RoleSettings:
        """The same role in a deployment that was made anew without a worker, or with a draft."""
        more = deployment.bounds.tree_tokens - self.deployment.bounds.tree_tokens
        moved = replace(self, deployment=deployment, capacity=self.capacity + max(0, more))
        if self.pipeline is None:
            return moved
        stages = deployment.pipelines[self.pipeline]
        number = [stage.name for stage in stages].index(self.placed.name)
        placed = replace(stages[number], worker=self.placed.worker)  # maybe a spare's
        return replace(moved, placed=placed, number=number + 1)

    def at(self, worker: str) -> RoleSettings:
        """The same role at the worker of this address."""
        return replace(self, placed=replace(self.placed, worker=worker))

    @property
    def here(self) -> RoleSettings:
        """The same role on the coordinator's own host, which may lack the other one's devices."""
        return replace(self, placed=replace(self.placed, worker=None, compute=ONE_CORE))

    @property
    def drafts_with(self) -> SourceSettings:
        """What a draft server has to draft with now."""
        plain = self.placed.name in self.deployment.plain
        return self.source.of_stand_in if plain else self.source

    @property
    def reads_target(self) -> bool:
        """Whether it reads weights of the target."""
        if self.kind == "draft":
            return self.deployment.ends == "draft" or self.drafts_with.section.drafter.borrows
        return self.kind == "stage"

    @property
    def models(self) -> tuple[CheckpointSource, ...]:
        """The checkpoints that it reads: the target's, and a draft's own."""
        own = self.drafts_with.model if self.kind == "draft" else None
        read = self.target if self.reads_target else None
        return tuple(each for each in (read, own) if each is not None)

    def with_copies(self, folders: Sequence[Path]) -> RoleSettings:
        """The same that reads ``models`` from these folders, in the same order."""
        found: dict[CheckpointSource | None, CheckpointSource] = {
            source: CheckpointSource(folder)
            for source, folder in zip(self.models, folders, strict=True)
        }
        source = replace(self.source, model=found.get(self.source.model, self.source.model))
        return replace(self, target=found.get(self.target, self.target), source=source)

    def as_switch(self) -> RoleSettings:
        """The settings of a switch beside workers like this one."""
        placed = Placed(SWITCH, self.placed.times)
        return replace(self, placed=placed, kind="switch", number=0, pipeline=None, port=0)

    def gate(self) -> Gate:
        """What may come in here."""
        deployment, name = self.deployment, self.placed.name
        drafts = frozenset(draft.name for draft in deployment.drafts)
        receivers = frozenset([name])
        kinds: tuple[type, ...] = (Flight, Verified, Beat, Through, Close)
        bare = drafts if deployment.ends == "pipeline" else frozenset[str]()
        if self.kind == "switch":
            senders = receivers = frozenset(deployment.devices)
        elif self.kind == "draft":
            senders = frozenset(deployment.layers)
            kinds = (Flight if deployment.ends == "draft" else Verified, Through)
        else:
            assert self.pipeline is not None  # as every stage's
            kinds = (Flight, Beat, Close)
            before = deployment.pipelines[self.pipeline][: self.number - 1][-1:]
            senders = drafts.union(stage.name for stage in before)
        together = max(MOST_TOGETHER, len(deployment.requests))
        most_rows, dtype = self.capacity * together, DTYPES[deployment.dtype]
        width = deployment.width
        entries = self.capacity + deployment.bounds.tree_tokens + deployment.bounds.scratch_tokens
        counts = len(deployment.drafts), len(deployment.pipelines)
        limits = MessageLimits(self.vocabulary, entries, most_rows, *counts)
        ends = senders, receivers, kinds
        return Gate(self.token, *ends, width, most_rows, bare, dtype, limits, self.emulate)


@dataclass
class Station:
    """A worker's place: where messages come in and go out, and where spans are noted."""

    settings: RoleSettings
    control: Frames
    inbox: Inbox
    context: Any
    clock: DeviceClock
    porter: Porter | None = None
    outboxes: dict[str, Outbox] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    fresh: bool = True
    """Whether the next work feels how long the device was idle; else it goes on as before."""
    _factor: float = 1.0
    _ended_ms: float = -inf
    _next_gauge_ms: float = -inf

    @classmethod
    def open(cls, settings: RoleSettings, control: Frames, host: str) -> Station:
        """Args: ``host``: the address to listen on."""
        context, name, key = zmq.Context(), settings.placed.name, settings.key
        porter = None if key is None else Porter(context, key)
        inbox = Inbox(context, settings.port, name, host, gate=settings.gate(), key=key)
        inbox.watch(control.fileno())
        station = cls(settings, control, inbox, context, DeviceClock(settings.emulate), porter)
        inbox.turn_to = station.turn_to
        if settings.emulate and settings.kind != "switch":
            inbox.arrives_ms = station._arrives_ms
        return station

    def connect(self, addresses: Mapping[str, str], links: Mapping[str, LinkTimes]) -> None:
        """Open an outbox to each named worker."""
        seed = np.random.SeedSequence(
            [self.settings.deployment.seed, *self.settings.placed.name.encode()]
        )
        deployment, own, sending = self.settings.deployment, self.settings.placed.name, Port()
        # Where transfers wait for each other, the switch lets messages take their time.
        delayed = self.settings.emulate and not deployment.queues_transfers
        for (name, address), child in zip(
            addresses.items(), seed.spawn(len(addresses)), strict=True
        ):
            wire, ends = None, (own, name)
            if delayed:
                port = None if deployment.is_local(*ends) else sending
                wire = Wire(links[name], np.random.default_rng(child), port)
            token, key = self.settings.token, self.settings.key
            self.outboxes[name] = Outbox(self.context, address, ends, wire, token, key)

    def cut(self) -> None:
        """Close all links to other workers, with what is on them."""
        for outbox in self.outboxes.values():
            outbox.close()
        self.inbox.close()

    def close(self) -> None:
        for outbox in self.outboxes.values():
            outbox.close()
        self.inbox.close()
        if self.porter is not None:
            self.porter.close()
        self.context.destroy(linger=0)

    # --- messages --------------------------------------------------------------------------------

    def send(self, receiver: str, message: Message, hidden: torch.Tensor | None = None) -> None:
        """Send now; the emulated link counts it with the deployment's bytes."""
        self.turn_to("send")
        size = message.size_bytes(self._row_bytes)
        self.outboxes[receiver].send(message, self.clock.now_ms(), size, hidden)
        self.turn_to("desk")

    def _arrives_ms(self, envelope: Envelope) -> float:
        """How long a message keeps this device's port busy."""
        deployment, ends = self.settings.deployment, (envelope.sender, envelope.receiver)
        if deployment.is_local(*ends) or isinstance(envelope.body, Ping):
            return 0.0
        size = envelope.body.size_bytes(deployment.sent_row_bytes(envelope.sender))
        unscheduled = deployment.unscheduled(envelope.body)
        return deployment.link_for(*ends, unscheduled=unscheduled).occupied_ms(size)

    def wait(self, until_ms: float | None = None) -> Received | None:
        """The next message, when it is due; None if the controller calls, or if there is none by
        ``until_ms``."""
        self._gauge()
        self.turn_to("receive")
        received = self.inbox.get(until_ms)
        if received is not None:
            self.clock.wake(received.envelope.due_ms)
            self.ledger.woken(received.envelope.sent_ms)
            self._note_transfer(received)
        self.turn_to("desk")
        return received

    @property
    def called(self) -> bool:
        """Whether the controller has something to say."""
        return bool(self._call.poll(0))

    def woken(self, at_ms: float | None) -> bool:
        """Whether this time has come while nothing was to do."""
        if at_ms is None or not self.clock.reached(at_ms):
            return False
        self.clock.wake(at_ms)
        return True

    def due(self) -> Received | None:
        """The next message if it is due already, else None."""
        self.turn_to("receive")
        received = self.inbox.get_due(self.clock.now_ms())
        if received is not None:
            self._note_transfer(received)
        self.turn_to("desk")
        return received

    def _note_transfer(self, received: Received) -> None:
        """The link's span, noted by the receiver when the message is delivered."""
        envelope, message = received.envelope, received.message
        rows = message.rows
        device = f"{envelope.sender}->{self.settings.placed.name}"
        # Another host's clock is not known exactly, and nothing arrives before it was sent.
        now = max(envelope.sent_ms, self.clock.now_ms())
        due = envelope.due_ms if self.settings.emulate else now
        _, number = numbered(message.session)
        self.spans.append(Span(device, "transfer", envelope.sent_ms, due, number, rows))

    # --- work ------------------------------------------------------------------------------------

    @cached_property
    def _call(self) -> Any:
        """One for all times: a connection's own ``poll`` makes another at every call."""
        poll = select.poll()
        poll.register(self.control.fileno(), select.POLLIN)
        return poll

    @cached_property
    def _row_bytes(self) -> int:
        return self.settings.deployment.sent_row_bytes(self.settings.placed.name)

    @cached_property
    def _idle(self) -> IdleFactor:
        settings = self.settings
        return IdleFactor(settings.deployment.machine(settings.placed.name).idle_factor)

    def turn_to(self, kind: Kind, session: int = 0, tokens: int = 0) -> None:
        """The worker is at this from now on."""
        if not self.settings.emulate:
            self.ledger.turn_to(kind, session and numbered(session)[1], tokens)

    @contextmanager
    def work(self, kind: Kind, session: int, tokens: int, emulated_ms: float) -> Iterator[None]:
        """Note a span around the body; with emulation it lasts at least ``emulated_ms``, longer
        after an idle gap where the device's profile says so."""
        start = self.clock.now_ms()
        if self.fresh:
            self._factor = self._idle(start - self._ended_ms)
            self.fresh = self.settings.kind == "stage"  # its passes stand alone
        self.turn_to(kind, session, tokens)
        yield
        self._ended_ms = end = self.clock.spend(start, emulated_ms * self._factor)
        if self.settings.emulate:
            name, (_, number) = self.settings.placed.name, numbered(session)
            self.spans.append(Span(name, kind, start, end, number, tokens))
        self.turn_to("desk")

    def _gauge(self) -> None:
        """Time a fixed piece of work, for at most a hundredth of the time: the machine's own speed
        drifts. A piece before it warms up, as how long the worker was idle is another matter."""
        if self.settings.emulate or now_ms() < self._next_gauge_ms:
            return
        parts, rows = self._gauged, torch.ones(GAUGE_ROWS, GAUGE_STATES[0])
        start = now_ms()
        for counted, part in enumerate((next(parts), next(parts))):
            self.turn_to("gauge", tokens=counted)
            part(rows)
            self.turn_to("desk")
        self._next_gauge_ms = start + 100 * (now_ms() - start)

    @cached_property
    def _gauged(self) -> Iterator[Any]:
        """Linear layers of float32, one after another, so that none is in a core's own cache when
        its turn comes: a few rows against one are what a small pass is, arithmetic and memory in
        about the same shares (on shared processors these drift apart)."""
        layers = nn.Sequential(*(nn.Linear(*GAUGE_STATES, bias=False) for _ in range(GAUGE_LAYERS)))
        pack(layers.requires_grad_(False))
        return itertools.cycle(layers)

    def take_dropped(self) -> dict[str, int]:
        """How many messages were not let in since the last time, by the reason."""
        dropped = dict(self.inbox.dropped)
        self.inbox.dropped.clear()
        if self.porter is not None and (refused := self.porter.take_refused()):
            dropped[STRANGER] = refused
        return dropped

    def take_spans(self) -> list[Span]:
        """All spans since the last time, links' and one's own."""
        spans, self.spans = self.spans, []
        return (
            spans if self.settings.emulate else spans + self.ledger.take(self.settings.placed.name)
        )
