"""The worker processes of a deployment, on this host and on others: started, introduced, ended.

Law of this file: whatever happens, no process and no port is left behind.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from multiprocessing.process import BaseProcess

from treepipe.core.failover import Spare, take_spare
from treepipe.core.losses import FaultKind
from treepipe.core.recovery import Committed, Journal
from treepipe.executor.clock import now_ms
from treepipe.executor.control import (
    Become,
    Connect,
    Fail,
    Lacks,
    Listen,
    Listening,
    Loaded,
    Notes,
    SetClock,
)
from treepipe.executor.copies import NeededCheckpoint
from treepipe.executor.fleet import Fleet
from treepipe.executor.lines import ControlLines
from treepipe.executor.pulse import LostWorkerError
from treepipe.executor.session import ALIVE_S
from treepipe.executor.station import RoleSettings
from treepipe.executor.transport import TOKEN_BYTES
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import SWITCH, Deployment, Placed


class Crew:
    """A process for each draft server and each stage of a deployment.

    Attributes:
        deployment: theirs; another one once it was made anew.
        lines: what they are told and answer.
        journal: what draft servers told of the open requests.
        given_up: pipelines that lost a worker.
        back_ms: of the draft servers that are away, when each is back by itself.
        replaced: losses before any run, and the spare that each of them took.
    """

    def __init__(self, roles: Sequence[RoleSettings], deployment: Deployment) -> None:
        """Args: ``roles``: one per device of the deployment."""
        self.deployment, self.roles = deployment, [*roles]
        self._fleet = Fleet(roles, deployment.faults.spare_workers)
        if deployment.queues_transfers and roles[0].emulate:
            self.roles.append(self.roles[0].as_switch())
        self._renew_secrets()
        self.journal, self.given_up = Journal(), set[int]()
        self.back_ms: dict[str, float | None] = {}
        self.replaced = dict[LostWorkerError, Spare]()
        self._spares = [*deployment.faults.all_spares]
        self._homes: dict[str, Placed] = {}  # of draft servers whose host is gone
        self.lines = ControlLines(
            roles[0].timeout_ms,
            {
                Committed: lambda _, said: self.journal.told(said),
                Lacks: lambda _, said: self._cut_off(said),
            },
        )

    @property
    def drafts(self) -> list[str]:
        """Names of the draft servers, by their number."""
        return [draft.name for draft in self.deployment.drafts]

    # --- beginning and end -----------------------------------------------------------------------

    def start(self) -> None:
        """Meet the other hosts, and start all workers. Raises what ``Fleet.meet`` raises, and the
        loss of a worker if no spare is left for it."""
        self._fleet.meet(self.deployment.key)
        self.persist(self._start_all, self._replaced)

    def persist(
        self, start: Callable[[], None], replaced: Callable[[LostWorkerError], str | None]
    ) -> None:
        """Start the workers, with a spare for each one that is lost meanwhile.

        Args:
            start: the first attempt.
            replaced: takes a spare for a lost worker and gives its address, if it has one; raises
                the loss if no spare is left.
        """
        before: LostWorkerError | None = None
        while True:
            try:
                start()
            except LostWorkerError as lost:
                if lost is before:
                    raise
                before, start = lost, partial(self.start_anew, lost, replaced(lost))
            else:
                return

    def _replaced(self, lost: LostWorkerError) -> str | None:
        """Take a spare for a worker that is lost before any run."""
        spare = take_spare(self._spares, self.waiting())
        if spare is None:
            raise lost
        self.replaced[lost] = spare
        return spare.address

    def waiting(self) -> list[Spare]:
        """What can take a lost worker's place now: workers that wait and answer, or a new process
        on its own host."""
        named = self._fleet.spares(self.lines.watch.timeout_ms)
        return [*map(Spare, named), Spare()]

    def start_anew(self, lost: LostWorkerError | None = None, spare: str | None = None) -> None:
        """End all workers at once, and start them again; sessions with other hosts go on.

        Raises the loss itself if the host of a worker that is needed does not answer, either.

        Args:
            lost: why; None: a draft server is back.
            spare: address of the worker that takes the lost one's place, and that of all others
                whose host does not answer; None: they start where they were, but for stand-ins,
                which start here if their host does not answer.
        """
        for process in self.lines.processes.values():
            process.kill()
        needed = {*self.deployment.devices} - self.deployment.plain
        stays = spare is None and (lost is None or lost.name in needed)
        # By now a host that is gone has been silent for longer, and one that lives has answered.
        patience_ms = max(2e3 * ALIVE_S, self.lines.watch.timeout_ms / 2)
        silent = {*self.lines.end(inf if stays else patience_ms)}
        if spare is not None and lost is not None:
            self._move({lost.name, *silent}, spare)
        elif missing := sorted(silent & needed):
            raise lost or LostWorkerError(missing[0], "is lost: its host does not answer")
        else:
            self._come_here(silent & self.deployment.plain)
        self._renew_secrets()
        self._start_all()

    def _move(self, names: Collection[str], spare: str) -> None:
        self._fleet.move(names, spare)
        for name in names:
            self.deployment = self.deployment.at_spare(name, spare)
        self.roles = [role.at(spare) if role.placed.name in names else role for role in self.roles]
        self.make_anew(self.deployment)

    def _come_here(self, names: Collection[str]) -> None:
        self._fleet.leave(names)
        self._homes |= {r.placed.name: r.placed for r in self.roles if r.placed.name in names}
        self.roles = [role.here if role.placed.name in names else role for role in self.roles]

    # --- draft servers that are away -------------------------------------------------------------

    def look(self) -> None:
        """See which hosts that did not answer do so again."""
        self._fleet.look()

    @property
    def unreached(self) -> set[str]:
        """The draft servers whose hosts do not answer."""
        return {d for d, home in self._homes.items() if not self._fleet.answers(home.worker)}

    def is_back(self, draft: str) -> bool:
        """Whether what a draft server was lost by is over: its host's silence, or a fault."""
        at_ms = self.back_ms.get(draft)
        over = draft in self._homes or (at_ms is not None and at_ms <= now_ms())
        return over and draft not in self.unreached

    def return_to(self, draft: str, spare: str | None) -> None:
        """A draft server is where it was (or at a spare of this address) from the next start on."""
        self.back_ms.pop(draft, None)
        if (home := self._homes.pop(draft, None)) is not None:
            assert home.worker is not None  # this host is never silent
            self._fleet.move({draft}, home.worker)
            self.roles = [
                replace(role, placed=home) if role.placed.name == draft else role
                for role in self.roles
            ]
        if spare is not None:
            self._move({draft}, spare)

    def make_anew(self, deployment: Deployment) -> None:
        """Start the roles of this deployment from the next time on."""
        self.deployment = replace(deployment, links=self.deployment.links)  # maybe a spare's
        there = {*deployment.devices, SWITCH}
        self.roles = [role.moved(deployment) for role in self.roles if role.placed.name in there]

    def give_up(self, pipeline: int) -> None:
        """End what is left of a pipeline that lost a worker."""
        self.given_up.add(pipeline)
        for stage in self.deployment.pipelines[pipeline]:
            self.lines.forget(stage.name)

    def close(self) -> None:
        """End every process; returns when all are gone."""
        self.lines.end()
        self._fleet.close()

    def _renew_secrets(self) -> None:
        """Make new ones for the ports; what was sent with others is foreign from now on."""
        token, key = secrets.token_bytes(TOKEN_BYTES), self._fleet.new_key()
        self.roles = [replace(role, token=token, key=key) for role in self.roles]

    def _start_all(self) -> None:
        for role in self.roles:
            self._fleet.start(role.placed.worker, role.placed.name, self.lines)
        for role in self.roles:
            needed = role.models if role.placed.worker is not None else ()
            copies = tuple(NeededCheckpoint.of(each.directory) for each in needed)
            self.lines.order(role.placed.name, Become(role.travelling, copies))
        self._introduce()

    def _introduce(self) -> None:
        """Collect every worker's address and tell each whom it sends to."""
        lines, fleet = self.lines, self._fleet
        addresses, places = {}, {role.placed.name: role.placed.worker for role in self.roles}
        # One after another: of two runs that want the same ports, the first one gets them all.
        for role in sorted(self.roles, key=lambda role: role.port):
            name = role.placed.name
            lines.order(name, Listen(fleet.listens_on(places[name]), *fleet.ahead(name)))
            addresses[name] = lines.answer(name, Listening).address
        for name in addresses:
            peers = self._peers(name)
            links = {peer: self.deployment.link(name, peer) for peer in peers}
            switch = addresses.get(SWITCH) if name != SWITCH else None
            ways = {
                peer: fleet.way(addresses[peer] if switch is None else switch, places[name])
                for peer in peers
            }
            lines.order(name, Connect(ways, links))
        for name in addresses:
            lines.answer(name, Loaded)
            lines.watch.serves(name)

    def _peers(self, name: str) -> list[str]:
        """Whom a worker sends to: a draft to all stages, a stage to the next and to the drafts."""
        pipelines = [[stage.name for stage in stages] for stages in self.deployment.pipelines]
        if name == SWITCH:
            return [*self.deployment.devices]
        if name in self.drafts:
            return [stage for stages in pipelines for stage in stages]
        stages = next(stages for stages in pipelines if name in stages)
        return [*stages[stages.index(name) + 1 :][:1], *self.drafts]

    # --- faults ----------------------------------------------------------------------------------

    def inject(self, name: str, kind: FaultKind, for_ms: float | None = None) -> None:
        """Let a worker fail: by a signal where its process is one of this host, else it does so
        itself when it looks up. Args: ``for_ms``: one that was stopped by a signal is to be
        resumed."""
        process = self.lines.processes[name]
        if kind == "kill":
            process.kill()
        elif kind == "stop" and isinstance(process, BaseProcess):
            assert process.pid is not None  # it was started
            os.kill(process.pid, signal.SIGSTOP)
        else:
            self.lines.order(name, Fail(kind, for_ms))

    def resume(self, name: str) -> None:
        """Let a worker go on that a signal has stopped."""
        process = self.lines.processes[name]
        if isinstance(process, BaseProcess) and process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGCONT)

    def _cut_off(self, lacks: Lacks) -> None:
        """A message is lost, so its stage is; of one that was given up already it is no news."""
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
        """Clocks and idleness count from now, which it returns."""
        begun_ms = now_ms()
        self.lines.watch.begin()
        for name, ahead_ms in self._fleet.run_begins():
            self.lines.order(name, SetClock(ahead_ms))
        return begun_ms

    def collect(self, trace: Trace, start_ms: float) -> None:
        """What the workers noted since the run's start, of those that are left."""
        clocks = self._fleet.run_ends(start_ms)
        trace.warnings += [each for each in clocks.warnings if each not in trace.warnings]
        for name in self.lines:
            notes = self.lines.ask(name, Notes)
            spans = [
                clocks.aligned(name, span).shifted(-start_ms)
                for span in notes.spans
                if span.end_ms >= start_ms
            ]
            trace.spans += [replace(s, start_ms=max(0.0, s.start_ms)) for s in spans]
            trace.turns += [
                turn.shifted(-start_ms) for turn in notes.turns if turn.started_ms >= start_ms
            ]
            for reason, count in notes.dropped.items():
                trace.warnings.append(
                    f"{count} foreign or malformed messages were dropped by {name}, each of which "
                    f"{reason}"
                )
        trace.spans.sort(key=lambda span: (span.start_ms, span.end_ms, span.device))
