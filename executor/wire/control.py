"""The records that the controller and a worker exchange on the worker's control line.

The controller sends a worker its role, then orders to listen, connect and serve; the worker answers
each order with a record of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from treepipe.core.draft_work import Turn
from treepipe.core.failover import FaultKind
from treepipe.core.recovery import Committed, OpenRequestState
from treepipe.core.requests import RequestTrace
from treepipe.executor.models.copies import NeededCheckpoint
from treepipe.executor.wire.codec import Codec
from treepipe.executor.wire.role import RoleSettings
from treepipe.executor.wire.transport import KeyPair
from treepipe.physics.timing import LinkTimes
from treepipe.results.recording import RecordedRequest
from treepipe.results.trace import Span
from treepipe.scenario.deployment import NewSchedule, RequestSpec

# --- answers of a worker -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listening:
    """The worker's port is open."""

    address: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The worker has its part of the models in memory, and serves from now on."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request is over, or (in ``OpenTexts``) its state so far."""

    trace: RequestTrace
    recorded: RecordedRequest


@dataclass(frozen=True, slots=True)
class OpenTexts:
    """The committed texts of a draft server's open requests."""

    requests: list[Finished]


@dataclass(frozen=True, slots=True)
class Notes:
    """A worker's spans, turns, and counts of dropped messages by reason, since the last record."""

    spans: list[Span]
    turns: list[Turn]
    dropped: dict[str, int]


@dataclass(frozen=True, slots=True)
class Holdings:
    """The worker's peak memory, and the number of requests whose state it holds."""

    peak_memory_bytes: int
    sessions: int


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """One end's measurements of a link: milliseconds of each exchange by kind and size
    (``measure/link.py``), total seconds, and its host's name and software."""

    samples: tuple[tuple[Literal["trip", "burst", "train"], int, list[float]], ...]
    seconds: float
    node: str
    versions: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker has failed and ends; ``by_user``: the user's input is the cause."""

    sentence: str
    by_user: bool


# --- orders of the controller --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Become:
    """The worker's role; ``models`` lists its checkpoints if it is on another host."""

    role: RoleSettings
    models: tuple[NeededCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """The worker has no role but is one end of a measured link (``measure/link.py``).

    ``peer`` names the other end, whose messages alone it admits; both hold ``token`` and ``key``.
    """

    name: str
    peer: str
    port: int
    timeout_ms: float
    token: bytes = field(repr=False)
    key: KeyPair | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """Time round trips to the other end of a link.

    Attributes:
        link: its name in errors.
        seconds: limit of the time.
    """

    link: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Listen:
    """Open the port at this address; the host's clock is ``ahead_ms`` ahead of the controller's."""

    host: str
    ahead_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SetClock:
    """A run begins; the host's clock is ``ahead_ms`` ahead of the controller's."""

    ahead_ms: float


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to these workers: each one's first address on the way, and the link's times."""

    addresses: Mapping[str, str]
    links: Mapping[str, LinkTimes]


@dataclass(frozen=True, slots=True)
class Open:
    """Queue a request (an order for a draft server); the controller sent it at ``now_ms``."""

    held: OpenRequestState
    new_schedule: NewSchedule
    spec: RequestSpec
    now_ms: float


@dataclass(frozen=True, slots=True)
class Lose:
    """Go on without a pipeline that lost this worker (an order for a draft server)."""

    pipeline: int
    worker: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Answer with a record of this kind."""

    kind: Literal["OpenTexts", "Notes", "Holdings"]


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail in this way, for a time or (None) forever; fault injection."""

    kind: FaultKind
    for_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Lacks:
    """A link is broken: message ``number`` did not arrive, though later ones did."""

    sender: str
    receiver: str
    number: int


Order: TypeAlias = (
    Become | Listen | Connect | SetClock | Open | Lose | Ask | Fail | LinkEnd | Measure
)
ORDERS = Codec(get_args(Order))
ANSWERS = Codec(
    (Listening, Loaded, Committed, Finished, OpenTexts, Notes, Holdings, Lacks, RoundTrips, Failed)
)
