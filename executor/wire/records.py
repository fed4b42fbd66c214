"""Every record that coordinator, workers and hosts' daemons exchange, and the one table of them.

A *line* joins the coordinator and one worker, or the coordinator and one host's daemon. A record of
the table may come in its row's states of the line, and leads to its row's next state; what comes
in another state is refused (the line's other end is at fault) or ignored (it came late or twice).
``docs/protocol.md`` is printed from the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from treepipe.core.draft_work import Turn
from treepipe.core.failover import FaultKind
from treepipe.core.recovery import Committed, OpenRequestState
from treepipe.core.requests import RequestTrace
from treepipe.executor.models.copies import NeededCheckpoint
from treepipe.executor.wire.codec import Codec
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.processor import Processor, Versions
from treepipe.executor.wire.role import RoleSettings
from treepipe.physics.timing import LinkTimes
from treepipe.results.recording import RecordedRequest
from treepipe.results.trace import Span
from treepipe.scenario.deployment import NewSchedule, RequestSpec

NAME = re.compile(r"[a-z0-9.]{1,40}")
"""Pattern of the names of workers."""

# --- of a worker ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Here:
    """A started worker has dialled: its name, and its host's versions."""

    name: str
    versions: Versions


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life; ``idle``: the worker waits for a message with no work left. It has sent and
    taken so many records."""

    idle: bool
    sent: int
    taken: int


@dataclass(frozen=True, slots=True)
class Listening:
    """The worker's port for other workers' messages is open."""

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
class Lacks:
    """A link is broken: message ``number`` did not arrive, though later ones did. Without a sender
    it is the line: a record of the coordinator."""

    sender: str
    receiver: str
    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker has failed and ends; ``by_user``: the user's input is the cause."""

    sentence: str
    by_user: bool


# --- of the coordinator, for a worker ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Become:
    """The worker's role; ``models`` lists its checkpoints if it is on another host."""

    role: RoleSettings
    models: tuple[NeededCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """The worker has no role but is one end of a measured link (``measure/link.py``).

    ``peer`` names the other end, whose messages alone it admits; both hold ``token``.
    """

    name: str
    peer: str
    port: int
    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Listen:
    """Open the port at this address; the host's clock is ``ahead_ms`` ahead of ours."""

    host: str
    ahead_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to these workers: each one's first address on the way, and the link's times."""

    addresses: Mapping[str, str]
    links: Mapping[str, LinkTimes]


@dataclass(frozen=True, slots=True)
class SetClock:
    """A run begins; the host's clock is ``ahead_ms`` ahead of the coordinator's."""

    ahead_ms: float


@dataclass(frozen=True, slots=True)
class Open:
    """Queue a request (for a draft server); the coordinator sent it at ``now_ms``."""

    held: OpenRequestState
    new_schedule: NewSchedule
    spec: RequestSpec
    now_ms: float


@dataclass(frozen=True, slots=True)
class Lose:
    """Go on without a pipeline that lost this worker (for a draft server)."""

    pipeline: int
    worker: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Answer with a record of this kind."""

    kind: Literal["OpenTexts", "Notes", "Holdings"]


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
class Fail:
    """Fail in this way, for a time or (None) forever; fault injection."""

    kind: FaultKind
    for_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """The line is over: a worker ends, a daemon ends the session and its processes."""


# --- of the coordinator, for a host's daemon -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Open a session, which ``session`` (random bytes) names."""

    versions: Versions
    session: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class HowAreYou:
    """Answer with a ``Status``; this needs no session."""


@dataclass(frozen=True, slots=True)
class Post:
    """What a started worker needs to dial: its name, the coordinator's address and key, a secret of
    both, and the longest silence that the coordinator allows it."""

    name: str
    address: str
    timeout_ms: float
    secret: bytes = field(repr=False)
    key: KeyPair | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker's process."""

    post: Post


@dataclass(frozen=True, slots=True)
class EndProcess:
    """Kill a worker's process."""

    name: str


@dataclass(frozen=True, slots=True)
class Alive:
    """The coordinator of this session is alive; the daemon answers with its time."""

    session: bytes = field(repr=False)
    sent_ms: float


# --- of a host's daemon --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """The session is open."""


@dataclass(frozen=True, slots=True)
class Declined:
    """There is no session, or it has ended; the sentence gives the reason."""

    sentence: str


@dataclass(frozen=True, slots=True)
class TimeIs:
    """The host's clock, in answer to ``Alive``."""

    sent_ms: float
    here_ms: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker's process has ended."""

    name: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Starved:
    """These workers' processes are ready to run, so that their silence is no fault of theirs."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """A daemon's state.

    Attributes:
        up_s: time since its start.
        sessions: number of sessions, including the present one.
        roles: names of its processes.
        refused: number of connections without the key.
        dropped: number of messages that were unreadable or belong to no session.
    """

    versions: Versions
    processor: Processor
    up_s: float
    sessions: int
    roles: tuple[str, ...]
    refused: int
    dropped: int


# --- the table -----------------------------------------------------------------------------------

End: TypeAlias = Literal["coordinator", "worker", "daemon"]
State: TypeAlias = Literal[
    "started", "here", "becoming", "opening", "listening", "loading", "serving", "over",
    "apart", "session",
]  # fmt: skip
"""States of a worker's line, in their order but for ``over``, then those of a daemon's."""
WORKING: tuple[State, ...] = ("here", "becoming", "opening", "listening", "loading", "serving")
ANY: tuple[State, ...] = ("started", *WORKING)
SMALL, TEXT, ORDER, SPANS = 2**12, 2**20, 2**26, 2**30
"""Bounds in bytes: of a few names and numbers, of a sentence or a request's new tokens, of a role
or a prompt, and of all spans of a long run."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        states: those of the line in which the record may come.
        then: the line's state behind it; None: as before.
        most_bytes: its bound, head excluded.
        answers: the record that it answers, if it answers one.
        otherwise: what its receiver does with it in another state.
    """

    kind: type
    sender: End
    receiver: End
    states: tuple[State, ...]
    then: State | None = None
    most_bytes: int = SMALL
    answers: type | None = None
    otherwise: Literal["refuse", "ignore"] = "refuse"


def _row(kind: type, ends: str, states: tuple[State, ...], *more: Any, **options: Any) -> Row:
    names: dict[str, End] = {"c": "coordinator", "w": "worker", "d": "daemon"}
    return Row(kind, names[ends[0]], names[ends[1]], states, *more, **options)


TABLE = (
    _row(Here, "wc", ("started",), "here", answers=Start),
    _row(Become, "cw", ("here",), "becoming", ORDER),
    _row(LinkEnd, "cw", ("here",), "becoming"),
    _row(Listen, "cw", ("becoming",), "opening"),
    _row(Listening, "wc", ("opening",), "listening", answers=Listen),
    _row(Connect, "cw", ("listening",), "loading", ORDER),
    _row(Loaded, "wc", ("loading",), "serving", answers=Connect),
    _row(SetClock, "cw", ("serving",)),
    _row(Open, "cw", ("serving",), most_bytes=ORDER),
    _row(Committed, "wc", ("serving",), most_bytes=TEXT),
    _row(Finished, "wc", ("serving",), most_bytes=SPANS, answers=Open),
    _row(Lose, "cw", ("serving",)),
    _row(Ask, "cw", ("serving",)),
    _row(OpenTexts, "wc", ("serving",), most_bytes=SPANS, answers=Ask),
    _row(Notes, "wc", ("serving",), most_bytes=SPANS, answers=Ask),
    _row(Holdings, "wc", ("serving",), answers=Ask),
    _row(Measure, "cw", ("serving",)),
    _row(RoundTrips, "wc", ("serving",), most_bytes=ORDER, answers=Measure),
    _row(Fail, "cw", ("serving",)),
    _row(Lacks, "wc", WORKING, otherwise="ignore"),
    _row(Heartbeat, "wc", ANY, otherwise="ignore"),
    _row(Failed, "wc", ANY, "over", TEXT),
    _row(Leave, "cw", ANY, "over", otherwise="ignore"),
    _row(HowAreYou, "cd", ("apart", "session")),
    _row(Status, "dc", ("apart", "session"), most_bytes=TEXT, answers=HowAreYou),
    _row(Hello, "cd", ("apart", "session"), "session"),
    _row(Welcome, "dc", ("apart", "session"), "session", answers=Hello),
    _row(Start, "cd", ("session",), otherwise="ignore"),
    _row(EndProcess, "cd", ("session",), otherwise="ignore"),
    _row(Alive, "cd", ("session",), otherwise="ignore"),
    _row(TimeIs, "dc", ("session",), answers=Alive, otherwise="ignore"),
    _row(Starved, "dc", ("session",), otherwise="ignore"),
    _row(Ended, "dc", ("session",), answers=EndProcess, otherwise="ignore"),
    _row(Declined, "dc", ("apart", "session"), "apart", TEXT),
    _row(Leave, "cd", ("session",), "apart", otherwise="ignore"),
)
RULES = {(rule.kind, rule.receiver): rule for rule in TABLE}
CODEC = Codec([*dict.fromkeys(rule.kind for rule in TABLE)])
