"""The other hosts of a run: sessions with their daemons, their addresses, and their clocks.

Without other hosts every worker listens on the loopback.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from treepipe.core.errors import RunError
from treepipe.executor.hosts.processes import Processes
from treepipe.executor.hosts.remote import (
    CONNECT_S,
    Attendance,
    Host,
    RemoteHost,
    key_for,
    others_reach,
    silent_hosts,
)
from treepipe.executor.wire.addresses import ANY_HOST, LOOPBACK, route, tcp
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.transport import ZeroMQ
from treepipe.results.trace import Span

SPARE_S = 2.0
"""Limit of a spare's first answer."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a run's hosts, by which its spans are aligned.

    Attributes:
        start_ms, end_ms: the run's interval.
        drifts_ms: per worker, the advance of its host's clock against ours within the run, if it
            exceeds the uncertainty.
        warnings: precision of the alignment of other hosts' spans, and other remarks on hosts.
    """

    start_ms: float
    end_ms: float
    drifts_ms: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def aligned(self, worker: str, span: Span) -> Span:
        drift = self.drifts_ms.get(worker)
        if drift is None:
            return span
        rate = drift / max(1.0, self.end_ms - self.start_ms)

        def ours(at_ms: float) -> float:
            return at_ms - rate * (at_ms - self.start_ms)

        return replace(span, start_ms=ours(span.start_ms), end_ms=ours(span.end_ms))


class Fleet:
    """This host, and the sessions with the hosts of a run's roles and spares, by the addresses of
    their workers.

    The crew knows which role is where: ``used`` are the addresses of its roles' workers.
    """

    def __init__(self, needed: Collection[str], spares: Sequence[str] = ()) -> None:
        """Take the addresses of the workers that must answer, and those of idle ones.

        Raises:
            UserError: one is a loopback that another cannot reach.
        """
        self._spares, self._needed = [*spares], {*needed}
        self._addresses = sorted({*self._needed, *spares})
        self._open = others_reach(self._addresses)
        self._here, self._hosts = Processes(), dict[str, RemoteHost]()
        self._sought = dict[str, RemoteHost]()
        self._ahead: dict[str, tuple[float, float]] = {}
        self._transport: ZeroMQ | None = None

    def new_key(self) -> KeyPair | None:
        """Make a key for a run; None if only this host can reach its ports."""
        return KeyPair.new() if self._open else None

    def meet(self, key_file: Path | None) -> None:
        """Open a session with every host, and search for silent spares.

        Raises:
            UserError: a needed key is missing, or it cannot be read.
            RunError: a needed host does not answer, or any host refuses.
        """
        if not self._addresses:
            return
        self._transport = ZeroMQ(key_for(self._addresses, key_file))
        self._attendance = Attendance(self._transport)
        self._sought = {each: RemoteHost(self._transport, each) for each in self._addresses}
        hosts = self._sought.copy()
        silent = silent_hosts(
            {address: host.channel for address, host in hosts.items()},
            self._answered,
            lambda address: CONNECT_S if address in self._needed else SPARE_S,
        )
        for address, host in hosts.items():
            if host.refusal is not None:
                raise RunError(f"worker {address} refuses: {host.refusal}")
        for address in sorted(silent.keys() & self._needed):
            raise silent[address]

    def _answered(self) -> list[str]:
        """Addresses of the hosts that have opened a session, or refused one."""
        self.look()
        refusing = [a for a, host in self._sought.items() if host.refusal is not None]
        return [*self._hosts, *refusing]

    def host(self, address: str | None) -> Host:
        """The host at this address (None: this one)."""
        return self._here if address is None else self._hosts[address]

    def spares(self, within_ms: float, used: Collection[str]) -> list[str]:
        """Addresses of idle workers that answered within this time; searches for the others."""
        self.look()
        there = {each for each in self._hosts if self._hosts[each].answers(within_ms)}
        self.seek(self._hosts.keys() & {*self._spares} - there - {*used})
        return [each for each in self._spares if each in there]

    def take(self, address: str) -> None:
        """Count a worker no longer as a spare, if it is one."""
        if address in self._spares:
            self._spares.remove(address)

    # --- hosts that do not answer ----------------------------------------------------------------

    def seek(self, addresses: Collection[str]) -> None:
        """End the sessions with silent hosts, and search for them."""
        for address in addresses:
            if (host := self._hosts.pop(address, None)) is not None:
                host.leave()
                host.close()
                self._attendance.remove(host)
            assert self._transport is not None  # there are hosts
            self._sought[address] = RemoteHost(self._transport, address)

    def look(self) -> None:
        """Add the sessions with hosts that were found."""
        for address, host in [*self._sought.items()]:
            host.read()
            if host.is_open:
                self._attendance.add(host)
                del self._sought[address]
                self._hosts[address], self._ahead[address] = host, host.clock.at(now_ms())

    # --- addresses -------------------------------------------------------------------------------

    def listens_on(self, address: str | None) -> str:
        """Address that a worker at ``address`` (None: on this host) binds to."""
        if address is not None:
            return self._hosts[address].host
        return ANY_HOST if self._open else LOOPBACK

    def way(self, bound: str, sender: str | None) -> str:
        """Address by which a sender (None: on this host) reaches a bound port."""
        wildcard, _, port = bound.rpartition(":")
        if wildcard != f"tcp://{ANY_HOST}":
            return bound
        return tcp(LOOPBACK if sender is None else route(self._hosts[sender].host), port)

    # --- clocks ----------------------------------------------------------------------------------

    def ahead_ms(self, address: str | None) -> float:
        """Advance of a host's clock (None: this host's) against ours."""
        return 0.0 if address is None else self._hosts[address].clock.at(now_ms())[0]

    def run_begins(self) -> dict[str, float]:
        """Fix the clock advance of each host for the run, and return them by address."""
        self._ahead = {a: host.clock.at(now_ms()) for a, host in self._hosts.items()}
        return {address: ahead_ms for address, (ahead_ms, _) in self._ahead.items()}

    def run_ends(self, start_ms: float, places: Mapping[str, str]) -> Clocks:
        """Compute the clocks of the run that began with ``run_begins``.

        ``places`` are the addresses of all workers on other hosts, by name.
        """
        end_ms, drifts, used = now_ms(), dict[str, float](), sorted({*places.values()})
        warnings = [
            *(
                f"worker {address} does not answer; it is a spare as soon as it does"
                for address in dict.fromkeys(self._spares)
                if address not in self._hosts
            ),
        ]
        for address in used:
            before, unsure = self._ahead[address]
            after, unsure_after = self._hosts[address].clock.at(end_ms)
            drift, worst = after - before, max(unsure, unsure_after)
            if abs(drift) > unsure + unsure_after:
                drifts |= {name: drift for name, at in places.items() if at == address}
            warnings.append(
                f"times of worker {address} are aligned with this host's to within {worst:.2g} ms"
            )
        return Clocks(start_ms, end_ms, drifts, tuple(warnings))

    def close(self) -> None:
        """End all sessions."""
        if self._transport is not None:
            for host in (*self._hosts.values(), *self._sought.values()):
                host.leave()
            self._attendance.close()
            self._transport.close(linger_ms=500)
            self._transport = None
        self._hosts.clear()
        self._sought.clear()
