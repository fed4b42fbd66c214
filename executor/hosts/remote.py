"""The coordinator's side of other hosts: sessions with their daemons, and the hosts' clocks.

The coordinator never waits for a host in the middle of a run: what a daemon says is read when it is
there. One thread says to all daemons that the coordinator is alive, also while it computes.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeAlias

from treepipe.core.errors import RunError, UserError
from treepipe.executor.hosts.processes import Processes
from treepipe.executor.wire import records
from treepipe.executor.wire.addresses import is_loopback, tcp
from treepipe.executor.wire.clock import Offset, Reading, now_ms
from treepipe.executor.wire.codec import BrokenRecordError
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.line import SECRET_BYTES, BrokenLineError, Rules
from treepipe.executor.wire.processor import Versions
from treepipe.executor.wire.transport import Channel, Transport, ZeroMQ, ready
from treepipe.scenario.schema import endpoint

CONNECT_S = 10.0
"""Limit of a host's first answer."""
ASK_S = 5.0
"""Limit of the same before anything is loaded."""
LOOK_S, REFUSALS = 0.4, 3
"""Time between two tests whether a silent host refuses connections, and the limit of refusals."""
ALIVE_S = 0.5
"""Time between two signs of life of the coordinator."""
FIRST_READINGS = 9
"""Readings of a host's clock, one after another, when its session begins."""
LEAVE_MS = 1_000
"""Limit of sending what was said last to a host that is given up."""
AGAIN_MS = 2_000.0
"""Time between two attempts to open a session with a host that is silent or has another one."""


class SilentHostError(RunError):
    """A host does not answer."""


class RemoteHost:
    """A session with one daemon; ``Processes`` says what both kinds of hosts do.

    Attributes:
        address: the host's address in the scenario; ``host`` is its first part.
        session: random bytes that name the session.
        clock: offset of the host's clock to ours.
        welcomed: whether there has been a session.
        heard_ms: time of its last sign of life.
        refusal: the daemon's reason for ending the session, or for opening none.
        starved: workers there that wait for a processor, since the last look.
    """

    welcomed = False
    refusal: str | None = None

    def __init__(self, transport: Transport, address: str) -> None:
        """Ask for a session. Raises ``UserError`` if there can be no such host."""
        self.address, (self.host, _) = address, endpoint(address)
        self.session, self.clock = secrets.token_bytes(SECRET_BYTES), Offset()
        self.heard_ms, self._greeted_ms = now_ms(), -math.inf
        self.starved = set[str]()
        self._rules = Rules("coordinator", "apart")
        self.channel = connection(transport, address)
        self._running, self._over = set[str](), list[tuple[str, int | None]]()
        self.read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._running)

    @property
    def is_open(self) -> bool:
        """Whether there is a session, and the host's clock has been read."""
        return self._rules.state == "session" and len(self.clock) >= FIRST_READINGS

    @property
    def why(self) -> str:
        return f"worker {self.address} ended the session, since {self.refusal}"

    @property
    def watched(self) -> list[Channel | int]:
        return [self.channel]

    def pid(self, name: str) -> int | None:
        """No process there has a number on this host."""
        return None

    def start(self, post: records.Post) -> None:
        self._running.add(post.name)
        self._say(records.Start(post))

    def kill(self, name: str) -> None:
        if name in self._running:
            self._say(records.EndProcess(name))

    def ended(self) -> list[tuple[str, int | None]]:
        """Names of the processes that ended since the last call, and their exit codes (None:
        unknown, for the reason ``why``)."""
        self.read()
        over, self._over = self._over, []
        return over

    def answers(self, within_ms: float) -> bool:
        """Whether the session is open and the host sent a record within this time."""
        return self._rules.state == "session" and now_ms() - self.heard_ms < within_ms

    def leave(self) -> None:
        """End the session, upon which the daemon ends its processes."""
        self._say(records.Leave())

    def close(self) -> None:
        """Free the connection of a session that was left."""
        self.channel.close(LEAVE_MS)

    # --- what the daemon says --------------------------------------------------------------------

    def read(self) -> None:
        """Read what has come, and ask again for a session if there never was one."""
        while (frames := self.channel.receive()) is not None:
            with suppress(BrokenRecordError, BrokenLineError):  # of no daemon of this version
                record, rule = self._rules.decoded(frames[0])
                if self._rules.admits(record, rule):
                    self.heard_ms = now_ms()
                    self._take(record)
        if not self.welcomed and now_ms() - self._greeted_ms > AGAIN_MS:
            self._greeted_ms = now_ms()
            hello = records.Hello(Versions.here(), self.session)
            self.channel.send(records.CODEC.encoded(hello))

    def _take(self, record: object) -> None:
        match record:
            case records.Welcome():
                self.welcomed, self.refusal = True, None
                self._say(records.Alive(self.session, now_ms()))
            case records.TimeIs():
                note_time(self, record)
                if len(self.clock) < FIRST_READINGS:
                    self._say(records.Alive(self.session, now_ms()))
            case records.Declined(sentence):
                self.refusal = sentence
                self._over += [(name, None) for name in self._running]
                self._running.clear()
            case records.Ended(name, exit_code) if name in self._running:
                self._running.remove(name)
                self._over.append((name, exit_code))
            case records.Starved(names):
                self.starved.update(names)

    def _say(self, record: object) -> None:
        if self._rules.state == "session":
            self.channel.send(self._rules.encoded(record, "daemon"))


Host: TypeAlias = Processes | RemoteHost
"""What starts workers: this host's processes, or another one's."""


class Attendance:
    """The thread that says to the daemons of all sessions that the coordinator is alive, and reads
    their clocks."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self._hosts = transport, dict[RemoteHost, Channel]()
        self._removed = list[Channel]()
        self._over, self._end = os.pipe()  # closing the one end wakes the thread
        self._thread = threading.Thread(target=self._attend, name="attendance", daemon=True)
        self._thread.start()

    def add(self, host: RemoteHost) -> None:
        """Attend to a host from the next round on; the channel is the thread's from then on."""
        self._hosts[host] = connection(self._transport, host.address)

    def remove(self, host: RemoteHost) -> None:
        """Attend to a host no more; the thread closes the channel, which is its own."""
        if (channel := self._hosts.pop(host, None)) is not None:
            self._removed.append(channel)

    def close(self) -> None:
        os.close(self._end)
        self._thread.join()
        os.close(self._over)

    def _attend(self) -> None:
        next_ms = now_ms()
        while True:
            while self._removed:
                self._removed.pop().close()
            channels = self._hosts.copy()
            if now_ms() >= next_ms:
                next_ms = now_ms() + 1e3 * ALIVE_S
                for host, channel in channels.items():
                    alive = records.Alive(host.session, now_ms())
                    channel.send(records.CODEC.encoded(alive))
            left_ms = max(1, math.ceil(next_ms - now_ms()))
            if self._over in ready(left_ms, [self._over, *channels.values()]):
                return
            for host, channel in channels.items():
                while (frames := channel.receive()) is not None:
                    with suppress(BrokenRecordError):
                        note_time(host, records.CODEC.decoded(frames[0]))


def note_time(host: RemoteHost, record: object) -> None:
    """Note what a host's clock said."""
    if isinstance(record, records.TimeIs):
        host.heard_ms = now_ms()
        host.clock.note(Reading(record.sent_ms, record.here_ms, host.heard_ms))


def connection(transport: Transport, address: str) -> Channel:
    """Connect to a daemon. Raises ``UserError`` if there can be no such host."""
    try:
        return transport.connect(tcp(*endpoint(address)), records.TEXT, asks=True)
    except OSError as error:
        raise UserError(f"worker {address}: {error.strerror}") from None


# --- waiting for hosts ----------------------------------------------------------------------------


def silent_hosts(
    channels: Mapping[str, Channel],
    answered: Callable[[], Collection[str]],
    within_s: Callable[[str], float],
) -> dict[str, RunError]:
    """Wait until every host has answered or counts as silent; return the silent ones' errors.

    Args:
        channels: by address.
        answered: callback that reads what has come, and returns the addresses that answered.
        within_s: limit of a host's answer. One that refuses connections counts as silent at once.
    """
    begun_ms, refused, silent = now_ms(), Counter[str](), dict[str, RunError]()
    probes = dict[str, socket.socket]()
    while waiting := channels.keys() - {*answered()} - silent.keys():
        until_ms = now_ms() + 1e3 * LOOK_S
        while (left_ms := until_ms - now_ms()) > 0 and waiting - {*answered()}:
            ready(math.ceil(left_ms), [channels[each] for each in waiting])
        for each in waiting - {*answered()}:
            refused[each] += each in probes and _refused(probes.pop(each))
            if refused[each] == REFUSALS:
                silent[each] = SilentHostError(
                    f"worker {each} does not answer: its host refuses connections to that port, "
                    f"so no treepipe worker listens there"
                )
            elif now_ms() - begun_ms > 1e3 * within_s(each):
                silent[each] = SilentHostError(
                    f"worker {each} does not answer within {within_s(each):g} s: it is not there, "
                    f"or holds another key"
                )
            else:
                probes[each] = _probe(*endpoint(each))
    for probe in probes.values():
        probe.close()
    return silent


def _probe(host: str, port: int) -> socket.socket:
    """Begin a connection that the host may refuse, which a channel does not report."""
    probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    probe.setblocking(False)
    with suppress(OSError):  # any other fault shows as silence
        probe.connect_ex((host, port))
    return probe


def _refused(probe: socket.socket) -> bool:
    with closing(probe):
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


def statuses(
    addresses: Collection[str], key: KeyPair | None, within_s: float
) -> tuple[dict[str, records.Status], dict[str, RunError]]:
    """Return the states of the daemons that answer, and the errors of the others."""
    found, faults = dict[str, records.Status](), dict[str, RunError]()
    with closing(ZeroMQ(key)) as transport:
        channels = {each: connection(transport, each) for each in addresses}
        for channel in channels.values():
            channel.send(records.CODEC.encoded(records.HowAreYou()))

        def answered() -> Collection[str]:
            for address, channel in channels.items():
                while (frames := channel.receive()) is not None:
                    try:
                        record = records.CODEC.decoded(frames[0])
                    except BrokenRecordError:
                        record = None
                    if isinstance(record, records.Status):
                        found[address] = record
                    else:
                        fault = f"worker {address} answers as no treepipe worker does"
                        faults[address] = RunError(fault)
            return found.keys() | faults.keys()

        silent = silent_hosts(channels, answered, lambda address: within_s)
    return found, silent | faults


def status(address: str, key: KeyPair | None, within_s: float = CONNECT_S) -> records.Status:
    """Return a daemon's state. Raises ``RunError`` if it does not answer."""
    found, faults = statuses([address], key, within_s)
    if faults:
        raise faults[address]
    return found[address]


def others_reach(addresses: Collection[str]) -> bool:
    """Whether workers at these addresses are on other hosts than ours.

    Raises ``UserError`` if one is on a loopback that another cannot reach.
    """
    inner = next((each for each in addresses if is_loopback(endpoint(each)[0])), None)
    outer = next((each for each in addresses if not is_loopback(endpoint(each)[0])), None)
    if inner is not None and outer is not None:
        raise UserError(
            f"worker {inner!r} is on this host's loopback, which worker {outer!r} cannot "
            f"reach; give the first one's address on their network"
        )
    return outer is not None


def key_for(addresses: Collection[str], key_file: Path | None) -> KeyPair | None:
    """Return the key of workers at these addresses; None if only this host can reach them.

    Raises ``UserError`` if a key is missing or cannot be read.
    """
    if others_reach(addresses) and key_file is None:
        raise UserError(
            f"worker {min(addresses)!r} needs key run.key, the file of the key that the "
            f"worker holds (treepipe worker --make-key)"
        )
    return None if key_file is None or not addresses else KeyPair.load(key_file)


def ask_all(addresses: Collection[str], key_file: Path | None) -> None:
    """Ask whether a worker is at each address, all at once and before anything is loaded.

    Raises:
        UserError: as ``others_reach`` and ``key_for``.
        RunError: one does not answer, or is none of ours.
    """
    if not addresses:
        return
    _, faults = statuses(sorted(addresses), key_for(addresses, key_file), ASK_S)
    if faults:
        first, *more = sorted(faults)
        raise RunError(f"{faults[first]}; nor does {', '.join(more)}") if more else faults[first]
