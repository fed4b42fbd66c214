"""The worker processes of a deployment, on this host and others: starting, connecting, ending.

Invariant: no process and no port is left behind.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import TypeVar

from treepipe.core.failover import FaultKind, Spare, take_spare
from treepipe.core.recovery import Committed, Journal
from treepipe.executor.hosts.remote import ALIVE_S
from treepipe.executor.models.copies import NeededCheckpoint
from treepipe.executor.run.fleet import Fleet
from treepipe.executor.run.lines import Lines
from treepipe.executor.run.pulse import LostWorkerError
from treepipe.executor.wire import records
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.envelope import TOKEN_BYTES
from treepipe.executor.wire.processor import OtherWork, Versions
from treepipe.executor.wire.role import RoleSettings
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import SWITCH, Deployment

Started = TypeVar("Started", bound="Crew")


class Crew:
    """A context manager of a deployment's draft servers and stages, a process each.

    Attributes:
        deployment: the present one; recovery replaces it.
        lines: the lines to the workers.
        journal: the committed texts of the open requests, as draft servers report them.
        given_up: pipelines that lost a worker.
        replaced: losses before any run, with their spares.
    """

    def __init__(self, roles: Sequence[RoleSettings], deployment: Deployment) -> None:
        self.deployment, self.roles = deployment, [*roles]
        self._fleet = Fleet(self._places.values(), deployment.faults.spare_workers)
        if deployment.wiring.queues_transfers and roles[0].delays:
            self.roles.append(self.roles[0].as_switch())
        self._renew_token()
        self.journal, self.given_up = Journal(), set[int]()
        self.replaced = dict[LostWorkerError, Spare]()
        self._spares = [*deployment.faults.all_spares]
        self.lines = Lines(
            roles[0].timeout_ms,
            {
                Committed: lambda _, said: self.journal.committed(said),
                records.Lacks: lambda _, said: self._cut_off(said),
            },
            self._fleet.look,
        )

    @property
    def _places(self) -> dict[str, str]:
        """Addresses of the workers on other hosts, by name."""
        places = {role.placed.name: role.placed.worker for role in self.roles}
        return {name: address for name, address in places.items() if address is not None}

    @property
    def drafts(self) -> list[str]:
        """Names of the draft servers of requests, by number."""
        return [draft.name for draft in self.deployment.roles.heads]

    # --- beginning and end -----------------------------------------------------------------------

    def __enter__(self: Started) -> Started:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Connect to the other hosts and start all workers. Raises as ``Fleet.meet``, and the loss
        of a worker without a spare."""
        self._fleet.meet(self.deployment.wiring.key)
        for lost, _, spare in self.persist(self._start_all, self._spares):
            self.replaced[lost] = spare

    def persist(
        self, start: Callable[[], None], spares: list[Spare]
    ) -> list[tuple[LostWorkerError, float, Spare]]:
        """Start the workers, with a spare for each worker lost meanwhile.

        Returns the losses, the times when they were noticed, and the spares. Raises the loss of a
        worker without a spare, or whose spare fails in the same way.
        """
        found = list[tuple[LostWorkerError, float, Spare]]()
        while True:
            try:
                start()
            except LostWorkerError as lost:
                again = bool(found) and lost is found[-1][0]
                spare = None if again else take_spare(spares, self.waiting())
                if spare is None:
                    raise
                found.append((lost, now_ms(), spare))
                start = partial(self.start_anew, lost, spare.address)
            else:
                return found

    def waiting(self) -> list[Spare]:
        """Spares that are available now: idle workers, or a new process on the lost one's host."""
        named = self._fleet.spares(self.lines.watch.timeout_ms, self._places.values())
        return [*map(Spare, named), Spare()]

    def start_anew(self, lost: LostWorkerError, spare: str | None) -> None:
        """End all workers at once and start them again; sessions with other hosts go on.

        Raises the loss if the host of another worker is silent, too.

        Args:
            spare: address of the worker that replaces the lost one and all others on silent hosts;
                None: all start where they were.
        """
        for name, host in self.lines.hosts.items():
            host.kill(name)
        # By now a host that is gone has been silent for longer, and any other has answered.
        patience_ms = max(2e3 * ALIVE_S, self.lines.watch.timeout_ms / 2)
        silent = self.lines.end(inf if spare is None else patience_ms)
        if spare is not None:
            self._move({lost.name, *silent}, spare)
        elif silent:
            raise lost
        self._renew_token()
        self._start_all()

    def _move(self, names: Collection[str], spare: str) -> None:
        self._fleet.take(spare)
        for name in names:
            self.deployment = self.deployment.at_spare(name, spare)
        moved = [role.at(spare) if role.placed.name in names else role for role in self.roles]
        self.roles = [replace(role, deployment=self.deployment) for role in moved]

    def give_up(self, pipeline: int) -> None:
        """End the other stages of a pipeline that lost a worker."""
        self.given_up.add(pipeline)
        for stage in self.deployment.roles.pipelines[pipeline]:
            self.lines.forget(stage.name)

    def close(self) -> None:
        """End every process, and wait until all are gone."""
        self.lines.end()
        self._fleet.close()

    def _renew_token(self) -> None:
        """Make a new token, so that messages with the old one are foreign."""
        token = secrets.token_bytes(TOKEN_BYTES)
        self.roles = [replace(role, token=token) for role in self.roles]

    def _start_all(self) -> None:
        """Start all workers, with a new key, so that records with the old one are foreign."""
        fleet, base = self._fleet, self.roles[0].port
        port = max(role.port for role in self.roles) + 1 if base and self._places else 0
        self.lines.open(fleet.listens_on(None), port, fleet.new_key())
        for role in self.roles:
            name, address = role.placed.name, role.placed.worker
            way = fleet.way(self.lines.address, address)
            self.lines.start(name, fleet.host(address), way)
        for role in self.roles:
            needed = role.models if role.placed.worker is not None else ()
            copies = tuple(NeededCheckpoint.of(each) for each in needed)
            self.lines.order(role.placed.name, records.Become(role.travelling, copies))
        self._introduce()

    def _introduce(self) -> None:
        """Collect every worker's address and connect each worker to its peers."""
        lines, fleet = self.lines, self._fleet
        addresses, places = {}, self._places
        # This order lets the first of two runs that want the same ports have them all.
        for role in sorted(self.roles, key=lambda role: role.port):
            name = role.placed.name
            host = fleet.listens_on(places.get(name))
            lines.order(name, records.Listen(host, fleet.ahead_ms(places.get(name))))
            addresses[name] = lines.answer(name, records.Listening).address
        for name in addresses:
            peers = self._peers(name)
            links = {peer: self.deployment.link(name, peer) for peer in peers}
            switch = addresses.get(SWITCH) if name != SWITCH else None
            ways = {
                peer: fleet.way(addresses[peer] if switch is None else switch, places.get(name))
                for peer in peers
            }
            lines.order(name, records.Connect(ways, links))
        for name in addresses:
            lines.answer(name, records.Loaded)
            lines.watch.serves(name)

    def _peers(self, name: str) -> list[str]:
        """Names of the workers that this worker sends to."""
        roles = self.deployment.roles
        if name == SWITCH:
            return [*roles.devices]
        return [receiver for sender, receiver in roles.connections if sender == name]

    # --- faults ----------------------------------------------------------------------------------

    def inject(self, name: str, kind: FaultKind, for_ms: float | None = None) -> None:
        """Make a worker fail: kill it, stop it by a signal on this host (which ``resume`` ends), or
        send it an order to fail."""
        host = self.lines.hosts[name]
        pid = host.pid(name)
        if kind == "kill":
            host.kill(name)
        elif kind == "stop" and pid is not None:
            os.kill(pid, signal.SIGSTOP)
        else:
            self.lines.order(name, records.Fail(kind, for_ms))

    def resume(self, name: str) -> None:
        """Resume a worker that a signal has stopped."""
        host = self.lines.hosts.get(name)
        if host is not None and (pid := host.pid(name)) is not None:
            os.kill(pid, signal.SIGCONT)

    def _cut_off(self, lacks: records.Lacks) -> None:
        """Raise the loss of a lost message's stage, unless its pipeline was given up."""
        ends = lacks.receiver, lacks.sender
        name = next(each for each in ends if self.deployment.pipeline_of(each) is not None)
        if name in self.lines:
            raise LostWorkerError(
                name,
                f"is cut off: message {lacks.number} from {lacks.sender} to {lacks.receiver} did "
                f"not arrive, though later ones did",
                "cut",
            )

    # --- a run's time ----------------------------------------------------------------------------

    def run_begins(self) -> float:
        """Start to measure clocks and idleness; return the time."""
        begun_ms = now_ms()
        self.lines.watch.begin()
        pids = [host.pid(name) for name, host in self.lines.hosts.items()]
        self._beside = OtherWork(pid for pid in pids if pid is not None)
        ahead_ms, places = self._fleet.run_begins(), self._places
        for name in self.lines:
            if name in places:
                self.lines.order(name, records.SetClock(ahead_ms[places[name]]))
        return begun_ms

    def _other_torches(self) -> Iterator[str]:
        ours, seen = Versions.here().torch, set[str]()
        for name, address in sorted(self._places.items(), key=lambda place: place[1]):
            theirs = self.lines.torches[name]
            if theirs != ours and address not in seen:
                seen.add(address)
                yield (
                    f"worker {address} has torch {theirs}, this host {ours}; sums may differ "
                    f"in the last bits, and a text where two tokens are almost as likely"
                )

    def collect(self, trace: Trace, start_ms: float) -> None:
        """Add the remaining workers' spans and turns to the trace, and other programs' work."""
        trace.company = self._beside.processors()
        clocks = self._fleet.run_ends(start_ms, self._places)
        warnings = [*self._other_torches(), *clocks.warnings]
        trace.warnings += [each for each in warnings if each not in trace.warnings]
        spans, turns = [*trace.spans], [*trace.turns]
        for name in self.lines:
            notes = self.lines.ask(name, records.Notes)
            own = [
                clocks.aligned(name, span).shifted(-start_ms)
                for span in notes.spans
                if span.end_ms >= start_ms
            ]
            spans += [replace(span, start_ms=max(0.0, span.start_ms)) for span in own]
            turns += [
                turn.shifted(-start_ms) for turn in notes.turns if turn.started_ms >= start_ms
            ]
            for reason, count in notes.dropped.items():
                trace.warnings.append(
                    f"{count} foreign or malformed messages were dropped by {name}, each of which "
                    f"{reason}"
                )
        if self.lines.dropped:
            dropped, self.lines.dropped = self.lines.dropped, 0
            trace.warnings.append(f"{dropped} foreign messages were dropped by the coordinator")
        spans.sort(key=lambda span: (span.start_ms, span.end_ms, span.device))
        trace.spans, trace.turns = spans, turns
