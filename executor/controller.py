"""Starting, watching and ending the worker processes of a deployment, on this host and on others.

Law of this file: whatever happens (an exception, Ctrl-C, a worker's death or silence), no process
and no port is left behind, an error appears once, with the worker's name, and what was committed
until then comes with it.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, TypeVar

from treepipe.core.errors import RunError, UserError
from treepipe.core.recovery import Committed, Fault, FaultKind, Held, Journal
from treepipe.core.requests import RUN_ENDED, Assignment, RequestTrace
from treepipe.executor.clock import now_ms
from treepipe.executor.codec import BrokenRecordError
from treepipe.executor.control import (
    ANSWERS,
    ORDERS,
    Ask,
    Become,
    Chunk,
    Connect,
    Equipped,
    Fail,
    Failed,
    Finished,
    Holdings,
    Lacks,
    Listen,
    Listening,
    Loaded,
    Lose,
    Notes,
    Open,
    OpenTexts,
    Order,
    SetClock,
    Wanted,
)
from treepipe.executor.fleet import Fleet
from treepipe.executor.fork_server import fork_server, start
from treepipe.executor.pulse import LostWorkerError, Watch, WorkerError
from treepipe.executor.remote import CONNECT_S, Line, RemoteProcess
from treepipe.executor.station import RoleSettings
from treepipe.executor.transport import TOKEN_BYTES
from treepipe.executor.worker import worker_main
from treepipe.results.recording import RecordedRequest, Recording
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import SWITCH, Deployment
from treepipe.scenario.faults import Planned
from treepipe.scenario.fitting import fitting
from treepipe.scenario.redeal import shares_of

Asked = TypeVar("Asked", OpenTexts, Notes, Holdings)
Said = TypeVar("Said")
END_S = 1.0
"""How long a worker gets to end by itself before it is killed."""
PIPE_TAKES_BYTES = 2**14
"""What a pipe takes at once though nobody reads it."""
SALVAGE_MS = 5000.0
"""How long draft servers get to hand over the open texts of a run that failed."""


class RunEndedError(RunError):
    """A run failed underway.

    Attributes:
        at_ms: when that was noticed, from the run's start.
        trace: its requests: the finished ones, and the open ones with what they had. No spans.
        recording: of the same requests.
    """

    def __init__(self, why: str, at_ms: float, trace: Trace, recording: Recording) -> None:
        super().__init__(f"{why}, {at_ms:.0f} ms after the run began")
        self.at_ms = at_ms
        self.trace, self.recording = trace, recording


class Controller:
    """The draft servers and the stages of a deployment, a process each; a context manager.

    >>> with Controller(roles, deployment) as controller:  # doctest: +SKIP
    ...     trace, recording = controller.run(deployment)
    """

    def __init__(self, roles: Sequence[RoleSettings], deployment: Deployment) -> None:
        """Args: ``roles``: one per device of the deployment."""
        self.deployment, self._fleet, self._roles = deployment, Fleet(roles), [*roles]
        if deployment.queues_transfers and roles[0].emulate:
            self._roles.append(self._roles[0].as_switch())
        self._renew_secrets()
        self._processes: dict[str, BaseProcess | RemoteProcess] = {}
        self._controls: dict[str, Connection | Line] = {}
        self._kept: dict[str, list[Any]] = {}
        self.journal = Journal()
        self._watch = Watch(roles[0].timeout_ms)
        self._sessions = 0
        self.given_up: set[int] = set()  # pipelines

    def __enter__(self) -> Controller:
        try:
            self._fleet.meet(self.deployment.key)
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _renew_secrets(self) -> None:
        """Make new ones for the ports; what was sent with others is foreign from now on."""
        token, key = secrets.token_bytes(TOKEN_BYTES), self._fleet.new_key()
        self._roles = [replace(role, token=token, key=key) for role in self._roles]

    def _start_all(self) -> None:
        self._kept = {role.placed.name: [] for role in self._roles}
        for role in self._roles:
            self._start(role)
        for role in self._roles:
            models = self._fleet.manifests(role)
            self.order(role.placed.name, Become(role.travelling, models))
        self._introduce()

    def start_anew(self, lost: LostWorkerError) -> None:
        """End all workers at once, and start them again; sessions with other hosts go on.

        Raises the loss itself if the host of the lost worker does not answer, either, and the
        worker is needed.
        """
        for process in self._processes.values():
            process.kill()
        if lost.name in self._end_workers() and lost.name in self.deployment.devices:
            raise lost
        self._renew_secrets()
        self._start_all()

    def deal_anew(self, deployment: Deployment) -> None:
        """Start the roles of this deployment, which lacks a stage, from the next time on."""
        self.deployment, there = deployment, {*deployment.devices, SWITCH}
        self._roles = [role.moved(deployment) for role in self._roles if role.placed.name in there]

    def _start(self, role: RoleSettings) -> None:
        name = role.placed.name
        if role.placed.worker is not None:
            started = self._fleet.start(role.placed.worker, name)
            self._processes[name], self._controls[name], look = started
            self._watch.add(name, look)
            return
        context = fork_server()
        ours, theirs = context.Pipe()
        look, beat = context.Pipe(duplex=False)
        process = context.Process(target=worker_main, args=(theirs, beat), name=name, daemon=True)
        self._processes[name], self._controls[name] = process, ours
        with theirs, beat:
            start(process)
        self._watch.add(name, look, process.pid)

    def _introduce(self) -> None:
        """Collect every worker's address and tell each whom it sends to."""
        addresses, places = {}, {role.placed.name: role.placed.worker for role in self._roles}
        for role in self._roles:
            self._answer(role.placed.name, Equipped)
        # One after another: of two runs that want the same ports, the first one gets them all.
        for role in sorted(self._roles, key=lambda role: role.port):
            name = role.placed.name
            self.order(name, Listen(self._fleet.listens_on(places[name]), *self._fleet.ahead(name)))
            addresses[name] = self._answer(name, Listening).address
        for name in addresses:
            peers = self._peers(name)
            links = {peer: self.deployment.link(name, peer) for peer in peers}
            switch = addresses.get(SWITCH) if name != SWITCH else None
            ways = {
                peer: self._fleet.way(addresses[peer] if switch is None else switch, places[name])
                for peer in peers
            }
            self.order(name, Connect(ways, links))
        for name in addresses:
            self._answer(name, Loaded)
            self._watch.serves(name)

    def _peers(self, name: str) -> list[str]:
        """Whom a worker sends to: a draft to all stages, a stage to the next or to the drafts."""
        drafts = [draft.name for draft in self.deployment.drafts]
        pipelines = [[stage.name for stage in stages] for stages in self.deployment.pipelines]
        if name == SWITCH:
            return [*self.deployment.devices]
        if name in drafts:
            return [stage for stages in pipelines for stage in stages]
        stages = next(stages for stages in pipelines if name in stages)
        return stages[stages.index(name) + 1 :][:1] or drafts

    # --- runs ------------------------------------------------------------------------------------

    def run(
        self, deployment: Deployment, progress: Callable[[], None] = lambda: None
    ) -> tuple[Trace, Recording]:
        """Decode the requests of a deployment for these workers; times count from the start.

        ``progress`` is called after each request. A pipeline that loses a worker is given up and
        the trace says so; the others go on. What a run lost the next ones lack, too.

        Raises:
            RunEndedError: a draft server or the last pipeline is lost, or a worker failed; it
                holds what was committed. The workers are of no more use then.
        """
        assert deployment.ends == self.deployment.ends  # workers are opened for one of both
        if deployment.layers != self.deployment.layers:  # a run before lost a stage
            deployment = fitting(replace(deployment, pipelines=self.deployment.pipelines))
        start, base = now_ms(), self._sessions
        self._sessions += len(deployment.requests)
        self._watch.begin()
        for name, ahead_ms in self._fleet.run_begins():
            self.order(name, SetClock(ahead_ms))
        run = _Run(self, deployment, base, start, progress)
        try:
            run.decode()
            run.end()
        except RunError as error:
            at_ms = now_ms() - start
            run.salvage(error, at_ms)
            raise RunEndedError(str(error), at_ms, run.trace, run.recording) from None
        finally:
            run.trace.requests.sort(key=lambda request: request.session)
        return run.trace, run.recording

    def collect(self, trace: Trace, start: float) -> None:
        """What the workers noted since ``start``, of those that are left."""
        clocks = self._fleet.run_ends(start)
        trace.warnings += [each for each in clocks.warnings if each not in trace.warnings]
        for name in self._controls:
            notes = self._ask(name, Notes)
            spans = [
                clocks.aligned(name, span).shifted(-start)
                for span in notes.spans
                if span.end_ms >= start
            ]
            trace.spans += [replace(s, start_ms=max(0.0, s.start_ms)) for s in spans]
            trace.turns += [
                turn.shifted(-start) for turn in notes.turns if turn.started_ms >= start
            ]
            for reason, count in notes.dropped.items():
                trace.warnings.append(
                    f"{count} foreign or malformed messages were dropped by {name}, each of which "
                    f"{reason}"
                )
        trace.spans.sort(key=lambda span: (span.start_ms, span.end_ms, span.device))

    def next_finished(
        self, drafts: Sequence[str], until_ms: float | None, *, may_rest: bool
    ) -> Finished | None:
        """Wait until then for any draft server to finish one.

        Args: ``may_rest``: nothing may be left to do before more is asked.

        Raises:
            WorkerError: a worker is lost, or failed.
            RunError: all workers wait for each other.
        """
        while True:
            for name in drafts:
                if (finished := self._take(name, Finished)) is not None:
                    return finished
            if until_ms is not None and until_ms <= now_ms():
                return None
            self._listen(until_ms)
            if not may_rest and self._watch.all_idle_ms() > self._watch.timeout_ms:
                raise RunError(
                    f"nothing happened for {self._watch.all_idle_ms():.0f} ms: requests are open, "
                    f"but every worker waits for a message"
                )

    def open_texts(self, drafts: Sequence[str]) -> list[Finished]:
        """What the draft servers that still answer have committed of their open requests, and
        what they finished that nobody took yet."""
        until_ms = now_ms() + SALVAGE_MS
        found: list[Finished] = []
        asked = [name for name in drafts if name in self._controls]
        for name in [*asked]:
            try:
                self.order(name, Ask("OpenTexts"))
            except WorkerError as lost:
                self.forget(lost.name)
        while now_ms() < until_ms and any(name in self._controls for name in asked):
            try:
                self._listen(until_ms)
            except WorkerError as lost:
                self.forget(lost.name)
            for name in [*asked]:
                if (answer := self._take(name, OpenTexts)) is not None:
                    found += answer.requests
                    asked.remove(name)
        for name in drafts:
            while (finished := self._take(name, Finished)) is not None:
                found.append(finished)
        return found

    def give_up(self, pipeline: int) -> None:
        """End what is left of a pipeline that lost a worker."""
        self.given_up.add(pipeline)
        for stage in self.deployment.pipelines[pipeline]:
            self.forget(stage.name)

    def peak_memory_bytes(self) -> dict[str, int]:
        """Highest resident memory of every worker so far."""
        workers = [name for name in self._controls if name != SWITCH]
        return {name: self._ask(name, Holdings).peak_memory_bytes for name in workers}

    def open_sessions(self) -> dict[str, int]:
        """How many requests each worker holds state of."""
        return {name: self._ask(name, Holdings).sessions for name in self._controls}

    def works(self, name: str) -> bool:
        """Whether a worker is still told what to do."""
        return name in self._controls

    def kill(self, name: str) -> None:
        """Kill one worker, as a power cut would (fault injection)."""
        self._processes[name].kill()

    def inject(self, name: str, kind: FaultKind, for_ms: float | None = None) -> None:
        """Let a worker fail: by a signal where its process is one of this host, else it does so
        itself when it looks up. Args: ``for_ms``: one that was stopped by a signal is to be
        resumed."""
        process = self._processes[name]
        if kind == "kill":
            process.kill()
        elif kind == "stop" and isinstance(process, BaseProcess):
            assert process.pid is not None  # it was started
            os.kill(process.pid, signal.SIGSTOP)
        else:
            self.order(name, Fail(kind, for_ms))

    def resume(self, name: str) -> None:
        """Let a worker go on that a signal has stopped."""
        process = self._processes[name]
        if isinstance(process, BaseProcess) and process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End every process; returns when all are gone."""
        self._end_workers()
        self._fleet.close()

    def _end_workers(self) -> list[str]:
        """Returns when all are gone; names those that hosts do not tell the end of."""
        for control in self._controls.values():
            control.close()  # a worker ends when its control pipe does
        self._watch.close()
        started = {
            name: process
            for name, process in self._processes.items()
            if isinstance(process, RemoteProcess) or process.pid is not None
        }
        _join(started.values(), END_S)
        for process in started.values():
            if process.is_alive():
                process.kill()  # all first: one on a host that is gone is waited for in vain
        _join(started.values(), CONNECT_S)
        self._processes.clear()
        self._controls.clear()
        return [name for name, process in started.items() if process.is_alive()]

    # --- talking to workers ----------------------------------------------------------------------

    def _ask(self, name: str, kind: type[Asked]) -> Asked:
        self.order(name, Ask(kind.__name__))  # type: ignore[arg-type]  # one of the three
        return self._answer(name, kind)

    def order(self, name: str, order: Order) -> None:
        """Tell a worker something. Raises ``LostWorkerError`` if it is gone or takes nothing."""
        data, control = ORDERS.encoded(order), self._controls[name]
        if len(data) < PIPE_TAKES_BYTES or isinstance(control, Line):
            self._send_bytes(name, control, data)
            return
        # The pipe holds no more than a stopped worker could leave in it: watch while it fills.
        with ThreadPoolExecutor(1) as sender:
            sending = sender.submit(self._send_bytes, name, control, data)
            while not futures.wait([sending], self._watch.look_ms / 1e3).done:
                try:
                    self._watch.look()
                except LostWorkerError as silent:
                    self._processes[silent.name].kill()  # which ends the sending
                    raise
            sending.result()

    def _send_bytes(self, name: str, control: Connection | Line, data: bytes) -> None:
        try:
            control.send_bytes(data)
        except ConnectionError:
            raise self._died(name) from None

    def _take(self, name: str, kind: type[Said]) -> Said | None:
        """The first record of that kind that a worker has sent, None if there is none."""
        kept = self._kept[name]
        place = next((i for i, said in enumerate(kept) if isinstance(said, kind)), None)
        return None if place is None else kept.pop(place)

    def forget(self, name: str) -> None:
        """A worker is of no more use: it is told nothing, and ends."""
        control = self._controls.pop(name, None)
        if control is not None:
            control.close()
        self._watch.forget(name)

    def _answer(self, name: str, kind: type[Said]) -> Said:
        """Wait for one worker's answer while watching all of them."""
        while (found := self._take(name, kind)) is None:
            self._listen()
        return found

    def _listen(self, until_ms: float | None = None) -> None:
        """Read every pipe that is ready by then, or soon; what belongs to a later turn is kept."""
        pipes = {control: name for name, control in self._controls.items()}
        left = self._watch.look_ms / 1e3
        if until_ms is not None:
            left = min(left, max(0.0, until_ms - now_ms()) / 1e3)
        self._watch.look()
        for pipe in wait(list[Any](pipes), left):
            assert isinstance(pipe, Connection | Line)
            said = self._receive(pipes[pipe], pipe)
            if isinstance(said, Wanted):
                data = self._fleet.chunk(pipes[pipe], said)
                self.order(pipes[pipe], Chunk(data))
            elif isinstance(said, Committed):
                self.journal.told(said)
            elif isinstance(said, Lacks):
                self._cut_off(said)
            else:
                self._kept[pipes[pipe]].append(said)

    def _cut_off(self, lacks: Lacks) -> None:
        """A message is lost, so its stage is; of one that was given up already it is no news."""
        ends = lacks.receiver, lacks.sender
        name = next(each for each in ends if self.deployment.pipeline_of(each) is not None)
        if self.works(name):
            raise LostWorkerError(
                name,
                f"is cut off: message {lacks.number} from {lacks.sender} to {lacks.receiver} did "
                f"not arrive, though later ones did",
                "cut",
            )

    def _receive(self, name: str, control: Connection | Line) -> Any:
        try:
            said = ANSWERS.decoded(control.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise self._died(name) from None
        except BrokenRecordError:
            raise WorkerError(name, "said what no worker says") from None
        if not isinstance(said, Failed):
            return said
        if said.by_user:
            raise UserError(said.sentence)
        raise WorkerError(name, f"failed: {said.sentence}")

    def _died(self, name: str) -> LostWorkerError:
        process = self._processes[name]
        process.join(END_S)
        if isinstance(process, RemoteProcess) and process.exitcode is None:
            return LostWorkerError(name, f"is lost: {process.why}")
        return LostWorkerError(name, f"died (exit code {process.exitcode})")


def _join(processes: Iterable[BaseProcess | RemoteProcess], within_s: float) -> None:
    """Wait for the ends of all."""
    deadline = now_ms() + 1e3 * within_s
    for process in processes:
        process.join(max(0.0, (deadline - now_ms()) / 1e3))


class _Run:
    """One run of a deployment's requests by these workers: a closed loop, or requests that arrive.

    Here times count from the run's start and requests from 1; the workers know the host's clock,
    and sessions of all runs.
    """

    def __init__(
        self,
        controller: Controller,
        deployment: Deployment,
        base: int,
        start: float,
        progress: Callable[[], None],
    ) -> None:
        """Args: ``base``: sessions before this run; ``start``: now, in ms."""
        self._controller, self.deployment = controller, deployment
        self._base, self._start, self._spares = base, start, deployment.faults.spares
        self._drafts = [draft.name for draft in deployment.drafts]
        self._front = deployment.front_desk()
        for pipeline in controller.given_up:
            self._front.lose(pipeline)
        self._planned = deployment.faults.planned(deployment.seed)
        self._next_fault = next(self._planned, None)
        self._failing: tuple[Planned, float] | None = None
        self._over = 0  # so many requests were reported as progress
        self._progress = progress
        self.trace = Trace(
            deployment.devices,
            machines=deployment.machines,
            requests=self._front.over,
            paged=deployment.serving.cache == "paged",
            slo=deployment.serving.slo,
        )
        self.recording = Recording()

    def decode(self) -> None:
        front = self._front
        self._open(front.start(0.0), 0.0)
        while not front.done:
            arrival_ms, fault = front.next_arrival_ms, self._next_fault
            times = [arrival_ms, None if fault is None else fault.at_ms, self._over_by_itself_ms]
            at_ms = min((each for each in times if each is not None), default=None)
            try:
                found = self._controller.next_finished(
                    self._drafts,
                    None if at_ms is None else at_ms + self._start,
                    may_rest=arrival_ms is not None,
                )
            except LostWorkerError as death:
                self._lose(death)
                continue
            if found is None:
                self._arrivals(now_ms() - self._start)
                self._pass_over()
                self._inject()
                continue
            self._finished(found)

    def end(self) -> None:
        """All requests are over: take what the workers noted."""
        if self._over_by_itself_ms is not None and self._failing is not None:
            self._controller.resume(self._failing[0].worker)
        try:
            self._controller.collect(self.trace, self._start)
        except LostWorkerError as death:
            if not self._spares:
                raise
            self._lose(death)
        if self._failing is not None:
            planned, at_ms = self._failing
            self.trace.faults.append(Fault(planned.worker, planned.kind, at_ms, None))

    def _inject(self) -> None:
        """Let the next worker fail if it is time; while another's loss is not made good, it is
        spared, and who is gone does not fail again."""
        planned = self._next_fault
        if planned is None or planned.at_ms > now_ms() - self._start:
            return
        self._next_fault = next(self._planned, None)
        if self._failing is None and self._controller.works(planned.worker):
            self._failing = planned, now_ms() - self._start
            self._controller.inject(planned.worker, planned.kind, planned.for_ms)

    @property
    def _over_by_itself_ms(self) -> float | None:
        """When the present fault is over, if it ends by itself."""
        if self._failing is None or self._failing[0].for_ms is None:
            return None
        return self._failing[1] + self._failing[0].for_ms

    def _pass_over(self) -> None:
        """A fault that ends by itself is over, if it is time; nobody noticed it."""
        over_ms = self._over_by_itself_ms
        if over_ms is None or self._failing is None or over_ms > now_ms() - self._start:
            return
        planned, at_ms = self._failing
        self._controller.resume(planned.worker)
        self.trace.faults.append(Fault(planned.worker, planned.kind, at_ms, None))
        self._failing = None

    def _lost(self, death: LostWorkerError, noticed_ms: float, recovered_ms: float | None) -> None:
        """Note a loss; one that was injected is known better. Args: times on the host's clock."""
        kind, at_ms = death.kind, None
        if self._failing is not None and self._failing[0].worker == death.name:
            kind, at_ms = self._failing[0].kind, self._failing[1]
            self._failing = None
        times = [None if t is None else t - self._start for t in (noticed_ms, recovered_ms)]
        self.trace.faults.append(Fault(death.name, kind, at_ms, *times))

    def salvage(self, error: RunError, at_ms: float) -> None:
        """Note what is committed of the requests that were open when the run failed."""
        if isinstance(error, WorkerError):
            self._controller.forget(error.name)
        if isinstance(error, LostWorkerError):
            self._lost(error, at_ms + self._start, None)
        self.trace.requests += [self._note(found) for found in self._heard()]
        # What is left is open; draft servers that do not answer had told a part of it.
        for text in self._controller.journal.texts(now_ms()):
            known = RecordedRequest(text.prompt_tokens, text.tokens)
            self.trace.requests.append(self._note(Finished(text, known)))
        self.trace.complete = self.recording.complete = False

    def _heard(self) -> list[Finished]:
        """Requests that are over by now; the journal knows the others as well as any draft."""
        over = []
        for found in self._controller.open_texts(self._drafts):
            if found.trace.session <= self._base:
                continue  # of a run that ended before
            if found.trace.reason == RUN_ENDED:
                self._controller.journal.known(found.trace)
                self._record(found)
            else:
                over.append(found)
        return over

    def _finished(self, found: Finished) -> None:
        request = self._note(found)
        self._arrivals(request.finished_ms)
        self._open(self._front.finished(request), request.finished_ms)

    def _note(self, found: Finished) -> RequestTrace:
        """Take a request into the recording; returns it as this run counts."""
        self._controller.journal.closed(found.trace.session)
        number = self._record(found)
        return replace(found.trace.shifted(-self._start), session=number)

    def _record(self, found: Finished) -> int:
        """What was recorded of a request before is not told again; returns its number here."""
        number = found.trace.session - self._base
        before = self.recording.requests.get(number, RecordedRequest(0)).answers
        answers = [*before, *found.recorded.answers]
        self.recording.requests[number] = replace(found.recorded, answers=answers)
        return number

    def _arrivals(self, until_ms: float) -> None:
        """Take in what has arrived by then, each request at its own time."""
        while (at := self._front.next_arrival_ms) is not None and at <= until_ms:
            self._open(self._front.arrive(), at)

    def _open(self, assignments: Sequence[Assignment], now_ms: float) -> None:
        for _ in self._front.over[self._over :]:
            self._progress()
        self._over = len(self._front.over)
        for assignment in assignments:
            assert assignment.draft is not None  # it is served
            spec, session = self.deployment.requests[assignment.request], assignment.session
            given = replace(assignment, asked_ms=assignment.asked_ms + self._start)
            held = self._controller.journal.open(self._base + session, len(spec.prompt), given)
            self._hand_over(held, now_ms + self._start)

    def _hand_over(self, held: Held, at_ms: float) -> None:
        """Give an open request to its draft server."""
        spec, draft = self.deployment.requests[held.assignment.request], held.assignment.draft
        assert draft is not None  # it is served
        order = Open(held, self.deployment.new_schedule, spec, at_ms)
        self._controller.order(self._drafts[draft], order)

    def _recover(self, death: LostWorkerError, how: str) -> None:
        """Go on with the committed texts, all workers started anew. Args: ``how``: without the
        lost one."""
        noticed_ms, controller = now_ms(), self._controller
        controller.forget(death.name)
        over = self._heard()
        try:
            controller.collect(self.trace, self._start)
        except LostWorkerError as other:
            self.trace.warnings.append(f"{other}, too; not all of what workers did is known")
        if death.name in self._drafts:
            self.recording.complete = False  # it lacks what that draft had answered
        controller.start_anew(death)
        recovered_ms = now_ms()
        for held in controller.journal.take_up():
            self._hand_over(held, recovered_ms)
        self._lost(death, noticed_ms, recovered_ms)
        while (planned := self._next_fault) and planned.at_ms <= recovered_ms - self._start:
            self._next_fault = next(self._planned, None)
        self.trace.warnings.append(
            f"{death} after {noticed_ms - self._start:.0f} ms; {how}, and the open requests went "
            f"on with what they had {recovered_ms - noticed_ms:.0f} ms later"
        )
        for found in over:
            self._finished(found)

    def _lose(self, death: LostWorkerError) -> None:
        """Go on with a spare, with a lost stage's layers at the others, or without its pipeline if
        there is another."""
        if self._spares:
            self._spares -= 1
            self._recover(death, "a spare took its place")
            return
        if self._deal_anew(death.name):
            self._recover(death, shares_of(self.deployment, death.name))
            return
        pipeline = self.deployment.pipeline_of(death.name)
        if pipeline is None or not self._front.lose(pipeline):
            raise death
        self._controller.give_up(pipeline)
        self._lost(death, now_ms(), None)
        for draft in self._drafts:
            self._controller.order(draft, Lose(pipeline, death.name))
        self.trace.warnings.append(
            f"{death} after {now_ms() - self._start:.0f} ms; the requests of pipeline{pipeline} "
            f"ended with what they had, their state was freed, and the other pipelines went on"
        )

    def _deal_anew(self, lost: str) -> bool:
        """Deal a lost stage's layers over the others; returns whether they are."""
        if self.deployment.redeal is None or self._front.lost:
            return False
        try:
            self.deployment = self.deployment.redeal(self.deployment, lost)
        except UserError as refused:
            self.trace.warnings.append(f"no layers were dealt anew: {refused}")
            return False
        self._controller.deal_anew(self.deployment)
        return True
