"""The other hosts of a run: met before it begins, told apart by address, and their clocks compared.

A controller asks here where a worker listens, by which address another one reaches it, and how far
its clock is ahead. Without other hosts all of it is the loopback.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from treepipe.core.errors import RunError, UserError
from treepipe.executor.clock import now_ms
from treepipe.executor.fork_server import fork_server, start_worker
from treepipe.executor.keys import ANY_HOST, KeyPair, is_loopback, tcp
from treepipe.executor.lines import ControlLines
from treepipe.executor.remote import CONNECT_S, RemoteHost, SilentHostError
from treepipe.executor.seeker import Seeker
from treepipe.executor.session import Versions
from treepipe.executor.station import RoleSettings
from treepipe.executor.transport import LOOPBACK
from treepipe.executor.worker import worker_main
from treepipe.results.trace import Span
from treepipe.scenario.schema import endpoint

SPARE_S = 2.0
"""How long a run waits for the first answer of a spare before it begins without it."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the spans of a run are aligned by.

    Attributes:
        start_ms, end_ms: of the run.
        drifts_ms: by how much the clock of a worker's host got ahead of ours within it, where that
            is more than is uncertain of it.
        warnings: how well spans of other hosts are aligned.
    """

    start_ms: float
    end_ms: float
    drifts_ms: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def aligned(self, worker: str, span: Span) -> Span:
        """A span of that worker in our time."""
        drift = self.drifts_ms.get(worker)
        if drift is None:
            return span
        rate = drift / max(1.0, self.end_ms - self.start_ms)

        def ours(at_ms: float) -> float:
            return at_ms - rate * (at_ms - self.start_ms)

        return replace(span, start_ms=ours(span.start_ms), end_ms=ours(span.end_ms))


class Fleet:
    """The hosts that a deployment's roles name, and those that wait to take a lost one's place."""

    def __init__(
        self,
        roles: Sequence[RoleSettings],
        spares: Sequence[str] = (),
        others: Sequence[str] = (),
    ) -> None:
        """Raises ``UserError`` if one of them is on a loopback that another one cannot reach.

        Args:
            spares: addresses of workers that wait.
            others: those of further workers that must be there.
        """
        self._places = {
            role.placed.name: role.placed.worker for role in roles if role.placed.worker is not None
        }
        self._spares = [*spares]
        self._needed = {*self._places.values(), *others}
        self._addresses = sorted({*self._needed, *spares})
        hosts = {address: endpoint(address)[0] for address in self._addresses}
        self._open = any(not is_loopback(host) for host in hosts.values())
        inner = next((a for a, host in hosts.items() if is_loopback(host)), None)
        if self._open and inner is not None:
            outer = next(a for a, host in hosts.items() if not is_loopback(host))
            raise UserError(
                f"worker {inner!r} is on this host's loopback, which worker {outer!r} cannot "
                f"reach; give the first one's address on their network"
            )
        self._hosts: dict[str, RemoteHost] = {}
        self._key: KeyPair | None = None
        self._sought: dict[str, Seeker] = {}
        self._gone_spares = list[str]()
        self._ahead: dict[str, tuple[float, float]] = {}

    def new_key(self) -> KeyPair | None:
        """A run's own; None where nobody but this host can reach its ports."""
        return KeyPair.new() if self._open else None

    def meet(self, key_file: Path | None) -> None:
        """Open a session with every host; a spare that does not answer is looked for.

        Raises:
            UserError: there is no key where one is needed, or it cannot be read.
            RunError: a host that is needed does not answer, or any refuses.
        """
        if self._open and key_file is None:
            raise UserError(
                f"worker {self._addresses[0]!r} needs key run.key, the file of the key that the "
                f"worker holds (treepipe worker --make-key)"
            )
        self._key = None if key_file is None or not self._addresses else KeyPair.load(key_file)
        for address in self._addresses:
            needed = address in self._needed
            try:
                within_s = CONNECT_S if needed else SPARE_S
                self._hosts[address] = RemoteHost(address, self._key, within_s)
            except SilentHostError:
                if needed:
                    raise
                self._gone_spares += [each for each in self._spares if each == address]
                self._seek(address)
        self._spares = [each for each in self._spares if each in self._hosts]

    def start(self, address: str | None, name: str, lines: ControlLines) -> None:
        """Start a worker there (None: on this host), which is told what it is by ``lines``.
        Raises ``RunError`` if it cannot be started."""
        if address is not None:
            try:
                remote, line, look = self._hosts[address].start(name)
            except OSError as error:
                raise RunError(f"{name} cannot be started: {error.strerror}") from None
            lines.add(name, remote, line)
            lines.watch.add(name, look)
            return
        started = start_worker(fork_server(), worker_main, name)
        lines.add(name, started.process, started.control)
        lines.watch.add(name, started.look, started.process.pid)

    def spares(self, within_ms: float) -> list[str]:
        """Addresses of the workers that wait; one not heard of within this time waits no more until
        it is found again."""
        self.look()
        gone = [each for each in self._spares if not self._hosts[each].answers(within_ms)]
        self._spares = [each for each in self._spares if each not in gone]
        self._gone_spares += gone
        for address in {*gone} - {*self._places.values()}:
            self._seek(address)
        return self._spares

    def move(self, names: Collection[str], address: str) -> None:
        """These roles are at the worker of this address from their next start on; if it waited, it
        waits no more."""
        self._places |= dict.fromkeys(names, address)
        if address in self._spares:
            self._spares.remove(address)

    # --- hosts that do not answer ----------------------------------------------------------------

    def leave(self, names: Collection[str]) -> None:
        """These roles are on this host from their next start on; theirs are looked for."""
        left = {self._places.pop(name) for name in names}
        for address in left - {*self._places.values()}:
            self._seek(address)

    def look(self) -> None:
        """Take in the hosts that were found."""
        for address, seeker in [*self._sought.items()]:
            if (host := seeker.take()) is not None:
                del self._sought[address]
                self._hosts[address], self._ahead[address] = host, host.clock.at(now_ms())
                self._spares += [each for each in self._gone_spares if each == address]
                self._gone_spares = [each for each in self._gone_spares if each != address]

    def answers(self, address: str | None) -> bool:
        """Whether there is a session with this host (None: it is our own)."""
        return address is None or address in self._hosts

    def _seek(self, address: str) -> None:
        if (host := self._hosts.pop(address, None)) is not None:
            host.close()
        self._sought[address] = Seeker(address, self._key)

    # --- addresses -------------------------------------------------------------------------------

    def listens_on(self, address: str | None) -> str:
        """The address to bind to, of a worker at ``address`` (None: on this host)."""
        if address is not None:
            return self._hosts[address].host
        return ANY_HOST if self._open else LOOPBACK

    def way(self, bound: str, sender: str | None) -> str:
        """How a sender (None: on this host) reaches what is bound so."""
        wildcard, _, port = bound.rpartition(":")
        if wildcard != f"tcp://{ANY_HOST}":
            return bound
        return tcp(LOOPBACK if sender is None else self._hosts[sender].route(), port)

    # --- clocks ----------------------------------------------------------------------------------

    def ahead(self, name: str) -> tuple[float]:
        """How far the clock of a worker's host is ahead of ours, in ms."""
        address = self._places.get(name)
        return (0.0,) if address is None else self._hosts[address].clock.at(now_ms())[:1]

    def run_begins(self) -> Iterator[tuple[str, float]]:
        """How far each worker's clock is ahead; it is told so, and keeps to it in the run."""
        self._ahead = {a: host.clock.at(now_ms()) for a, host in self._hosts.items()}
        return ((name, self._ahead[address][0]) for name, address in self._places.items())

    def run_ends(self, start_ms: float) -> Clocks:
        """What the spans of the run that began with ``run_begins`` are aligned by."""
        end_ms, drifts = now_ms(), dict[str, float]()
        warnings = [*self._other_torches(), *self._absent()]
        for address in sorted(set(self._places.values())):
            before, unsure = self._ahead[address]
            after, unsure_after = self._hosts[address].clock.at(end_ms)
            drift, worst = after - before, max(unsure, unsure_after)
            if abs(drift) > unsure + unsure_after:
                drifts |= {name: drift for name, at in self._places.items() if at == address}
            warnings.append(
                f"times of worker {address} are aligned with this host's to within {worst:.2g} ms"
            )
        return Clocks(start_ms, end_ms, drifts, tuple(warnings))

    def _other_torches(self) -> Iterator[str]:
        ours = Versions.here().torch
        for address in sorted(set(self._places.values())):
            theirs = self._hosts[address].versions.torch
            if theirs != ours:
                yield (
                    f"worker {address} has torch {theirs}, this host {ours}; sums may "
                    f"differ in the last bits, and a text where two tokens are almost as likely"
                )

    def _absent(self) -> Iterator[str]:
        for address in dict.fromkeys(self._gone_spares):
            yield f"worker {address} does not answer; it is a spare as soon as it does"

    def close(self) -> None:
        """End all sessions."""
        for seeker in self._sought.values():
            seeker.close()
        self._sought.clear()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()
