"""Every record that coordinator, workers and hosts' daemons exchange, and the one table of them.

A *line* joins the coordinator and one worker, or one host's daemon. A record may come in its row's
states of the line, and leads to its row's next state; what comes in another state is refused (the
other end is at fault) or ignored (it came late or twice). ``docs/protocol.md`` is printed from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

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
    """A sign of life, with counts of records; ``idle``: it waits with no work left."""

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
    """Message ``number`` did not arrive, though later ones did; without a sender: a record."""

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
    """The worker has no role but is one end of a measured link (``measure/link.py``); it admits
    messages of ``peer`` alone, the other end, and both hold ``token``."""

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
    """A run begins; the host's clock is ``ahead_ms`` ahead of ours."""

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
    """Time round trips to the other end of a link, which errors name so, for at most so long."""

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
    """What a started worker needs to dial, and the longest silence that it is allowed."""

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
    """A daemon's state: the time since its start, numbers of sessions (with the present one), of
    refused connections and of dropped messages, and the names of its processes."""

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
"""States of a worker's line, in their order, then those of a daemon's."""
ENDS: Mapping[str, End] = {"c": "coordinator", "w": "worker", "d": "daemon"}
WORKING: tuple[State, ...] = ("here", "becoming", "opening", "listening", "loading", "serving")
ANY: tuple[State, ...] = ("started", *WORKING)
BOTH: tuple[State, ...] = ("apart", "session")
SMALL, TEXT, ORDER, SPANS = 2**12, 2**20, 2**26, 2**30
"""Bounds in bytes: of a few names and numbers, of a sentence or a request's new tokens, of a role
or a prompt, and of all spans of a long run."""


@dataclass(frozen=True, slots=True)
class RecordRule:
    """A row of the table.

    Attributes:
        way: sender and receiver, as in "c>w".
        states, then: the line's, in which the record may come, and behind it (None: as before).
        most_bytes: its bound, head excluded.
        answers: the record that it answers, if it answers one.
        otherwise: what its receiver does with it in another state.
    """

    kind: type
    way: str
    states: tuple[State, ...]
    then: State | None = None
    most_bytes: int = SMALL
    answers: type | None = None
    otherwise: Literal["refused", "ignored"] = "refused"

    @property
    def sender(self) -> End:
        return ENDS[self.way[0]]

    @property
    def receiver(self) -> End:
        return ENDS[self.way[2]]


TABLE = (
    RecordRule(Here, "w>c", ("started",), "here", answers=Start),
    RecordRule(Become, "c>w", ("here",), "becoming", ORDER),
    RecordRule(LinkEnd, "c>w", ("here",), "becoming"),
    RecordRule(Listen, "c>w", ("becoming",), "opening"),
    RecordRule(Listening, "w>c", ("opening",), "listening", answers=Listen),
    RecordRule(Connect, "c>w", ("listening",), "loading", ORDER),
    RecordRule(Loaded, "w>c", ("loading",), "serving", answers=Connect),
    RecordRule(SetClock, "c>w", ("serving",)),
    RecordRule(Open, "c>w", ("serving",), most_bytes=ORDER),
    RecordRule(Committed, "w>c", ("serving",), most_bytes=TEXT),
    RecordRule(Finished, "w>c", ("serving",), most_bytes=SPANS, answers=Open),
    RecordRule(Lose, "c>w", ("serving",)),
    RecordRule(Ask, "c>w", ("serving",)),
    RecordRule(OpenTexts, "w>c", ("serving",), most_bytes=SPANS, answers=Ask),
    RecordRule(Notes, "w>c", ("serving",), most_bytes=SPANS, answers=Ask),
    RecordRule(Holdings, "w>c", ("serving",), answers=Ask),
    RecordRule(Measure, "c>w", ("serving",)),
    RecordRule(RoundTrips, "w>c", ("serving",), most_bytes=ORDER, answers=Measure),
    RecordRule(Fail, "c>w", ("serving",)),
    RecordRule(Lacks, "w>c", WORKING, otherwise="ignored"),
    RecordRule(Heartbeat, "w>c", ANY, otherwise="ignored"),
    RecordRule(Failed, "w>c", ANY, "over", TEXT),
    RecordRule(Leave, "c>w", ANY, "over", otherwise="ignored"),
    RecordRule(HowAreYou, "c>d", ("apart", "session")),
    RecordRule(Status, "d>c", BOTH, most_bytes=TEXT, answers=HowAreYou),
    RecordRule(Hello, "c>d", BOTH, "session"),
    RecordRule(Welcome, "d>c", BOTH, "session", answers=Hello),
    RecordRule(Start, "c>d", ("session",), otherwise="ignored"),
    RecordRule(EndProcess, "c>d", ("session",), otherwise="ignored"),
    RecordRule(Alive, "c>d", ("session",), otherwise="ignored"),
    RecordRule(TimeIs, "d>c", ("session",), answers=Alive, otherwise="ignored"),
    RecordRule(Starved, "d>c", ("session",), otherwise="ignored"),
    RecordRule(Ended, "d>c", ("session",), answers=EndProcess, otherwise="ignored"),
    RecordRule(Declined, "d>c", BOTH, "apart", TEXT),
    RecordRule(Leave, "c>d", ("session",), "apart", otherwise="ignored"),
)
RULES = {(rule.kind, rule.receiver): rule for rule in TABLE}
CODEC = Codec([*dict.fromkeys(rule.kind for rule in TABLE)])
