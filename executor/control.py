"""What the controller and a worker tell each other on the worker's control line: records only.

A worker is told what it is, to listen, to connect, and then to serve; it answers each with a
record of its own. Records travel as ``codec.py`` writes them, to another host as to this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from treepipe.core.draft_work import Turn
from treepipe.core.losses import FaultKind
from treepipe.core.recovery import Committed, Held
from treepipe.core.requests import RequestTrace
from treepipe.executor.codec import Codec
from treepipe.executor.copies import NeededCheckpoint
from treepipe.executor.keys import KeyPair
from treepipe.executor.station import RoleSettings
from treepipe.physics.timing import LinkTimes
from treepipe.results.recording import RecordedRequest
from treepipe.results.trace import Span
from treepipe.scenario.deployment import NewSchedule, RequestSpec

# --- what a worker says --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listening:
    """The worker's port is open."""

    address: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The worker's part of the models is in memory; it serves from now on."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request is over (or, if asked for ``OpenTexts``, has come so far)."""

    trace: RequestTrace
    recorded: RecordedRequest


@dataclass(frozen=True, slots=True)
class OpenTexts:
    """What a draft server has committed of its open requests."""

    requests: list[Finished]


@dataclass(frozen=True, slots=True)
class Notes:
    """What a worker noted since the last time; ``dropped``: messages not let in, by the reason."""

    spans: list[Span]
    turns: list[Turn]
    dropped: dict[str, int]


@dataclass(frozen=True, slots=True)
class Holdings:
    """The most memory that the worker has held, and how many requests it holds state of."""

    peak_memory_bytes: int
    sessions: int


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """What one end of a link has timed, and what it was.

    Attributes:
        samples: milliseconds of each exchange, by its kind and size (``measure/link.py``).
        seconds: that it took in all.
        node: its host's own name.
        versions: of the software there.
    """

    samples: tuple[tuple[Literal["trip", "burst"], int, list[float]], ...]
    seconds: float
    node: str
    versions: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker ends; ``by_user``: because of something that the user gave."""

    sentence: str
    by_user: bool


# --- what a worker is told -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Become:
    """What the worker is; ``models``: the checkpoints it reads, if it is on another host."""

    role: RoleSettings
    models: tuple[NeededCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """The worker is no role, but one end of a link that is measured (``measure/peer.py``).

    Attributes:
        name, peer: its own name, and that of the other end, the only one it listens to.
        port: to listen on; 0 is any.
        timeout_ms: within which it shows that it lives.
        token, key: that both ends hold, as the workers of a run do.
    """

    name: str
    peer: str
    port: int
    timeout_ms: float
    token: bytes = field(repr=False)
    key: KeyPair | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """One end of a link is to time round trips to the other one.

    Attributes:
        link: what it is called where nobody answers.
        seconds: to spend at most.
        precision: of medians, at which it is over earlier; 0: it takes all the time.
    """

    link: str
    seconds: float
    precision: float


@dataclass(frozen=True, slots=True)
class Listen:
    """The worker is to open its port.

    Attributes:
        host: the address to listen on.
        ahead_ms: its host's clock is so far ahead of the controller's.
    """

    host: str
    ahead_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SetClock:
    """A run begins; the worker's host's clock is so far ahead of the controller's."""

    ahead_ms: float


@dataclass(frozen=True, slots=True)
class Connect:
    """The worker is to send to these, by name: where a message goes first, and over which link."""

    addresses: Mapping[str, str]
    links: Mapping[str, LinkTimes]


@dataclass(frozen=True, slots=True)
class Open:
    """A draft server is to take a request into its queue; it was handed over at ``now_ms``."""

    held: Held
    new_schedule: NewSchedule
    spec: RequestSpec
    now_ms: float


@dataclass(frozen=True, slots=True)
class Lose:
    """A draft server is to go on without a pipeline that lost this worker."""

    pipeline: int
    worker: str


@dataclass(frozen=True, slots=True)
class Ask:
    """The worker is to answer with a record of this kind."""

    kind: Literal["OpenTexts", "Notes", "Holdings"]


@dataclass(frozen=True, slots=True)
class Fail:
    """The worker is to fail so, for ever or for so long (fault injection)."""

    kind: FaultKind
    for_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Lacks:
    """A message that was sent to the worker stays away, though later ones came: its link is
    broken. ``number`` were sent on that link before it."""

    sender: str
    receiver: str
    number: int


Order: TypeAlias = (
    Become | Listen | Connect | SetClock | Open | Lose | Ask | Fail | LinkEnd | Measure
)
ORDERS = Codec((Become, Listen, Connect, SetClock, Open, Lose, Ask, Fail, LinkEnd, Measure))
ANSWERS = Codec(
    (
        Listening,
        Loaded,
        Committed,
        Finished,
        OpenTexts,
        Notes,
        Holdings,
        Lacks,
        RoundTrips,
        Failed,
    )
)
