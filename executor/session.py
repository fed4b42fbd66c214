"""What a coordinator and a worker's daemon on another host say to each other, and the first words.

Law of this file: a daemon has one session at a time, of the coordinator who opened it, until that
one leaves or is silent; who else asks hears that it is busy. Both compare who they are before any
work is given.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
from dataclasses import dataclass, field
from typing import TypeAlias

from treepipe.executor.codec import Codec
from treepipe.executor.processor import Processor

PROTOCOL = 6
"""Of these records and of those in ``control.py``; changed with any of them."""
ALIVE_S = 0.5
"""Between two signs of life of a coordinator."""
SILENT_S = 5.0
"""A coordinator that shows none for so long is gone, and its session is ended."""
MOST_ROLES = 64
"""Processes of one session on one host."""
MOST_ORDER_BYTES, MOST_ANSWER_BYTES = 2**26, 2**30
"""Of one message to a daemon, and from one (all spans of a long run); a connection that announces
more is cut."""
MOST_ORDERS = 16
"""Messages of one connection that wait in a daemon's memory; more stay with the coordinator."""
NAME = re.compile(r"[a-z0-9.]{1,40}")
"""Of a role."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What is installed; two hosts of a run must agree on the first two."""

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
        """All of them, in a sentence's words."""
        return (
            f"treepipe {self.treepipe} (protocol {self.protocol}), torch {self.torch}, Python "
            f"{self.python}"
        )

    def fault(self, other: Versions) -> str | None:
        """Why the two cannot work together, naming both sides; None if they can."""
        if (self.treepipe, self.protocol) == (other.treepipe, other.protocol):
            return None
        return (
            f"it has treepipe {other.treepipe} (protocol {other.protocol}), this coordinator "
            f"{self.treepipe} (protocol {self.protocol})"
        )


# --- what a coordinator says ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Asks for a session."""

    versions: Versions


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Told:
    """An order for a process, as ``control.py`` writes it."""

    name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End a process: its line is closed, or (``now``) it is killed."""

    name: str
    now: bool


@dataclass(frozen=True, slots=True)
class Alive:
    """The coordinator lives; the daemon answers with its time."""

    sent_ms: float


@dataclass(frozen=True, slots=True)
class Leave:
    """The session is over."""


@dataclass(frozen=True, slots=True)
class HowAreYou:
    """Asks for a ``Status``; needs no session."""


# --- what a daemon says --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """The session is open."""

    versions: Versions


@dataclass(frozen=True, slots=True)
class Declined:
    """There is no session, or none any more; the sentence says why."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a process answers, as ``control.py`` writes it."""

    name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Beats:
    """A process's signs of life since the last ones (``pulse.py``)."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """A process is over."""

    name: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class TimeIs:
    """The answer to ``Alive``: its own time, and that of the daemon's host."""

    sent_ms: float
    here_ms: float


@dataclass(frozen=True, slots=True)
class Status:
    """What a daemon is at.

    Attributes:
        processor: of its host.
        up_s: how long it has been up.
        sessions: how many it has had, the present one included.
        roles: names of its processes; none where it waits for a coordinator.
        refused: strangers turned away, since they hold another key or none.
        dropped: messages that were none, or of nobody's session.
    """

    versions: Versions
    processor: Processor
    up_s: float
    sessions: int
    roles: tuple[str, ...]
    refused: int
    dropped: int


FromCoordinator: TypeAlias = Hello | Start | Told | EndProcess | Alive | Leave | HowAreYou
FROM_COORDINATOR = Codec((Hello, Start, Told, EndProcess, Alive, Leave, HowAreYou))
FromDaemon: TypeAlias = Welcome | Declined | Said | Beats | Ended | TimeIs | Status
FROM_DAEMON = Codec((Welcome, Declined, Said, Beats, Ended, TimeIs, Status))
