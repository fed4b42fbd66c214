"""A message between workers: its header in bytes, and the gate that admits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import msgspec
import torch

from treepipe.core.messages import (
    Beat,
    Close,
    Flight,
    Message,
    MessageLimits,
    Text,
    Through,
    Verified,
)
from treepipe.executor.models.computing import DTYPES
from treepipe.executor.wire.role import RoleSettings

TOKEN_BYTES = 16
HEADER_BYTES = 2**20
"""Limit of a header without rows: names, times, and words that keep thousands of nodes."""
ROW_HEADER_BYTES = 64
"""Limit of a row's entries in a header: its token, position and parent."""
MOST_TOGETHER = 256
"""Upper bound on the requests in a message, unless a deployment has more."""


@dataclass(frozen=True, slots=True)
class Ping:
    """A message between the two ends of a measured link; never part of a run.

    The receiver answers "answer" with the same ping and hidden states; it does not answer "nothing"
    (within a burst).
    """

    asks: Literal["nothing", "answer"]


Body: TypeAlias = Message | Ping


@dataclass(frozen=True, slots=True)
class Envelope:
    """The header of a message.

    Attributes:
        sender, receiver: names of the workers at the two ends of its link.
        sent_ms, due_ms: start of its transfer, and delivery by its link (monotonic clock).
        rows, width: shape of the hidden states in the second frame, 0 without any; the workers of
            a run know their type.
        number: index of the message on its link, from 0.
    """

    sender: str
    receiver: str
    sent_ms: float
    due_ms: float
    body: Body
    rows: int = 0
    width: int = 0
    number: int = 0


KINDS: tuple[type[Body], ...] = (*get_args(Message), Ping)
"""Kinds of bodies; a header is the index of its kind here in a byte, then MessagePack."""
_MARKS = {kind: bytes([place]) for place, kind in enumerate(KINDS)}
_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = [
    msgspec.msgpack.Decoder(tuple[str, str, float, float, kind, int, int, int]).decode  # type: ignore[valid-type]
    for kind in KINDS
]
"""Decoders of an envelope's values, in the order of ``KINDS``."""


def header(envelope: Envelope) -> bytes:
    e = envelope
    values = (e.sender, e.receiver, e.sent_ms, e.due_ms, e.body, e.rows, e.width, e.number)
    return _MARKS[type(e.body)] + _ENCODE(values)


def read_header(data: memoryview) -> Envelope | None:
    """Decode an envelope, or return None."""
    if not len(data) or data[0] >= len(KINDS):
        return None
    try:
        return Envelope(*_DECODE[data[0]](data[1:]))
    except Exception:  # strange bytes may make the decoder or a message's checks raise anything
        return None


@dataclass(frozen=True, slots=True)
class Gate:
    """The messages that a worker's inbox admits during a run.

    Attributes:
        token: the run's secret, the first bytes of every message.
        senders, receivers: allowed names (a switch also receives messages for others).
        kinds: allowed bodies.
        width, dtype: width and type of the target's hidden states.
        states: states of each row that has any, by sender; 1 if it is not named, and in reports.
        most_rows: limit of the rows of one message.
        bare: senders whose flights hold no hidden states, since the first stage embeds.
        limits: limits of the numbers in a message.
        waits: whether a message is held until it is due, by its sender's clock.
    """

    token: bytes
    senders: frozenset[str]
    receivers: frozenset[str]
    kinds: tuple[type, ...]
    width: int
    most_rows: int
    bare: frozenset[str] = frozenset()
    dtype: torch.dtype = torch.float32
    limits: MessageLimits | None = None
    waits: bool = True
    states: Mapping[str, int] = field(default_factory=dict)

    @property
    def most_bytes(self) -> int:
        """Limit of a frame."""
        row: int = self.dtype.itemsize * self.width * max(self.states.values(), default=1)
        return HEADER_BYTES + self.most_rows * max(row, ROW_HEADER_BYTES)

    def fault(self, envelope: Envelope) -> str | None:
        """Return the reason to drop the message, or None."""
        if envelope.sender not in self.senders or envelope.receiver not in self.receivers:
            return "names other ends"
        body = envelope.body
        if not isinstance(body, self.kinds):
            return "is of a kind that this worker never gets"
        if isinstance(body, Ping):
            rows = envelope.rows  # any number that its frame holds
        elif self.limits is not None and not body.within(self.limits):
            return "holds numbers beyond the limits of this run"
        else:
            embedded = isinstance(body, Flight) and envelope.sender in self.bare
            rows = 0 if embedded else body.state_rows
        bare = isinstance(body, Through)
        width = self.width * (1 if bare else self.states.get(envelope.sender, 1))
        if envelope.rows != rows or envelope.width != (width if rows else 0):
            return "does not hold the hidden states of its rows"
        return None


def gate_of(settings: RoleSettings) -> Gate:
    """Make the gate of a worker with this role."""
    deployment, name = settings.deployment, settings.placed.name
    drafts = frozenset(draft.name for draft in deployment.roles.drafts)
    receivers = frozenset([name])
    senders = frozenset(each for each, to in deployment.roles.connections if to == name)
    kinds: tuple[type, ...] = (Flight, Beat, Close)
    bare = drafts if deployment.roles.ends == "pipeline" else frozenset[str]()
    if settings.kind == "switch":
        senders = receivers = frozenset(deployment.roles.devices)
        kinds = (Flight, Verified, Beat, Through, Close, Text)
    elif settings.kind == "draft":
        kinds = (Flight if deployment.roles.ends == "draft" else Verified, Through)
        kinds += (Text,) if deployment.roles.beside(name) else ()
    elif settings.kind == "level":
        kinds = (Text, Close)
    together = max(MOST_TOGETHER, len(deployment.requests))
    most_rows, dtype = settings.capacity * together, DTYPES[deployment.roles.dtype]
    width = deployment.roles.width
    bounds = deployment.service.bounds
    entries = settings.capacity + bounds.tree_tokens + bounds.scratch_tokens
    counts = len(deployment.roles.drafts), len(deployment.roles.pipelines)
    limits = MessageLimits(settings.vocabulary, entries, most_rows, *counts)
    ends = senders, receivers, kinds
    states = {sender: deployment.roles.sent_states(sender) for sender in senders}
    return Gate(
        settings.token, *ends, width, most_rows, bare, dtype, limits, settings.delays, states
    )
