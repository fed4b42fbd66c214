"""The records that a coordinator and a daemon on another host exchange.

A daemon has one session at a time, with the coordinator that opened it, until the coordinator
leaves or is silent. The two compare their versions first.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
from dataclasses import dataclass, field
from typing import TypeAlias, get_args

from treepipe.executor.wire.codec import Codec
from treepipe.executor.wire.processor import Processor

PROTOCOL = 11
"""Version of the records here and in ``control.py``, increased with any change of them."""
ALIVE_S = 0.5
"""Time between two signs of life of a coordinator."""
SILENT_S = 5.0
"""Silence of a coordinator after which the daemon ends its session."""
MOST_ROLES = 64
"""Limit of the processes of one session on one host."""
MOST_ORDER_BYTES, MOST_ANSWER_BYTES = 2**26, 2**30
"""Limits of one message to a daemon, and from one (all spans of a long run)."""
MOST_ORDERS = 16
"""Limit of one connection's unread messages in a daemon's memory."""
AT_WORK, IDLE = b"w", b"i"
"""Signs of life: of a worker at work, and of one that waits for a message."""
NAME = re.compile(r"[a-z0-9.]{1,40}")
"""Pattern of the names of roles."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Installed versions; the hosts of a run must agree on the first two."""

    treepipe: str
    protocol: int
    torch: str
    python: str

    @classmethod
    def here(cls) -> Versions:
        ours, torch = (importlib.metadata.version(name) for name in ("treepipe", "torch"))
        return cls(ours, PROTOCOL, torch, platform.python_version())

    @property
    def described(self) -> str:
        return (
            f"treepipe {self.treepipe} (protocol {self.protocol}), torch {self.torch}, Python "
            f"{self.python}"
        )

    def fault(self, other: Versions) -> str | None:
        """Return the reason why the two cannot work together, or None."""
        if (self.treepipe, self.protocol) == (other.treepipe, other.protocol):
            return None
        return (
            f"it has treepipe {other.treepipe} (protocol {other.protocol}), this coordinator "
            f"{self.treepipe} (protocol {self.protocol})"
        )


# --- records of a coordinator --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Open a session."""

    versions: Versions


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class ForwardOrder:
    """An order for a process, encoded by ``control.py``."""

    name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End a process: its line is closed, or (``now``) it is killed."""

    name: str
    now: bool


@dataclass(frozen=True, slots=True)
class Alive:
    """The coordinator is alive; the daemon answers with its time."""

    sent_ms: float


@dataclass(frozen=True, slots=True)
class Leave:
    """End the session."""


@dataclass(frozen=True, slots=True)
class HowAreYou:
    """Answer with a ``Status``; this needs no session."""


# --- records of a daemon -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """The session is open."""

    versions: Versions


@dataclass(frozen=True, slots=True)
class Declined:
    """There is no session, or it has ended; the sentence gives the reason."""

    sentence: str


@dataclass(frozen=True, slots=True)
class ForwardAnswer:
    """An answer of a process, encoded by ``control.py``."""

    name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Beats:
    """A process's signs of life since the last record (``pulse.py``)."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """A process has ended."""

    name: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class TimeIs:
    """The answer to ``Alive``: the time of that record, and the time of the daemon's host."""

    sent_ms: float
    here_ms: float


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a daemon.

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


FromCoordinator: TypeAlias = Hello | Start | ForwardOrder | EndProcess | Alive | Leave | HowAreYou
FROM_COORDINATOR = Codec(get_args(FromCoordinator))
FromDaemon: TypeAlias = Welcome | Declined | ForwardAnswer | Beats | Ended | TimeIs | Status
FROM_DAEMON = Codec(get_args(FromDaemon))
