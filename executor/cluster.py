"""Starting, watching and ending the worker processes of a plan on this host.

Law of this file: whatever happens (an exception, Ctrl-C, a worker's death), no process and no
port is left behind, and an error appears once, with the worker's name.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from treepipe.errors import RunError, UserError
from treepipe.executor.clock import now_ms
from treepipe.executor.station import RoleSettings
from treepipe.executor.worker import worker_main
from treepipe.plan import SWITCH, Plan
from treepipe.recording import RecordedRequest, Recording
from treepipe.schedules.shared_draft import Assignment, Dispatcher
from treepipe.trace import RequestTrace, Span, Trace

PRELOAD = [
    "treepipe.executor.stage_worker",
    "treepipe.executor.draft_worker",
    "treepipe.executor.families",
]
"""What the fork server imports once, so that a worker starts in a fraction of a second."""
END_S = 1.0
"""How long a worker gets to end by itself before it is killed."""


class WorkerDiedError(RunError):
    """A worker process is gone."""

    def __init__(self, name: str, code: int | None) -> None:
        super().__init__(f"{name} died (exit code {code})")
        self.name = name


class Cluster:
    """The draft servers and the stages of a plan, a process each; a context manager.

    >>> with Cluster(roles, plan) as cluster:           # doctest: +SKIP
    ...     trace, recording = cluster.run(plan)
    """

    def __init__(self, roles: Sequence[RoleSettings], plan: Plan) -> None:
        """Args: ``roles``: one per device of the plan."""
        self._roles, self._plan = list(roles), plan
        if plan.queues_transfers and roles[0].emulate:
            self._roles.append(roles[0].as_switch())
        self._processes: dict[str, BaseProcess] = {}
        self._controls: dict[str, Connection] = {}
        self._kept: dict[str, deque[tuple[str, Any]]] = {
            r.placed.name: deque() for r in self._roles
        }
        self._sessions = 0
        self.load_memory: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Cluster:
        # The fork server hands its environment on: one thread per worker, no tokenizer pools.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        try:
            for role in self._roles:
                ours, theirs = context.Pipe()
                process = context.Process(target=worker_main, args=(role, theirs), daemon=True)
                self._processes[role.placed.name] = process
                self._controls[role.placed.name] = ours
                process.start()
                theirs.close()
            self._introduce()
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

    def _introduce(self) -> None:
        """Collect every worker's address and tell each whom it sends to."""
        addresses = {name: self._answer(name, "listening") for name in self._controls}
        for name in addresses:
            peers = self._peers(name)
            links = {peer: self._plan.link(name, peer) for peer in peers}
            switch = addresses.get(SWITCH) if name != SWITCH else None
            ways = {peer: switch or addresses[peer] for peer in peers}
            self._controls[name].send((ways, links))
        for name in addresses:
            self.load_memory[name] = self._answer(name, "loaded")

    def _peers(self, name: str) -> list[str]:
        """Whom a worker sends to: a draft to all stages, a stage to the next or to the drafts."""
        drafts = [draft.name for draft in self._plan.drafts]
        pipelines = [[stage.name for stage in stages] for stages in self._plan.pipelines]
        if name == SWITCH:
            return [*self._plan.devices]
        if name in drafts:
            return [stage for stages in pipelines for stage in stages]
        stages = next(stages for stages in pipelines if name in stages)
        return stages[stages.index(name) + 1 :][:1] or drafts

    # --- runs ------------------------------------------------------------------------------------

    def run(
        self, plan: Plan, progress: Callable[[], None] = lambda: None
    ) -> tuple[Trace, Recording]:
        """Decode the requests of a plan for these workers; times count from the start.

        ``progress`` is called after each request. A pipeline that loses a worker is given up and
        the trace says so; the others go on.

        Raises:
            RunError: a draft server or the last pipeline is lost, or a worker failed.
        """
        start, base = now_ms(), self._sessions
        self._sessions += len(plan.requests)
        run = _Run(self, plan, base, start, progress)
        run.decode()
        trace, recording = run.trace, run.recording
        for name in self._controls:
            spans: list[Span] = self._ask(name, "spans")
            trace.spans += [span.shifted(-start) for span in spans if span.end_ms >= start]
        for draft in plan.drafts:
            turns = self._ask(draft.name, "turns")
            trace.turns += [turn.shifted(-start) for turn in turns if turn.started_ms >= start]
        trace.spans.sort(key=lambda span: (span.start_ms, span.end_ms, span.device))
        trace.requests.sort(key=lambda request: request.session)
        return trace, recording

    def order(self, name: str, what: str, content: Any) -> None:
        """Tell a worker to do something that has no direct answer."""
        self._controls[name].send((what, content))

    def next_finished(
        self, drafts: Sequence[str], until_ms: float | None
    ) -> tuple[RequestTrace, RecordedRequest] | None:
        """Wait until then for any draft server to finish one. Raises ``WorkerDiedError``."""
        while True:
            for name in drafts:
                for message in self._kept[name]:
                    if message[0] == "finished":
                        self._kept[name].remove(message)
                        finished: tuple[RequestTrace, RecordedRequest] = message[1]
                        return finished
            if until_ms is not None and until_ms <= now_ms():
                return None
            self._listen(until_ms)

    def give_up(self, pipeline: int) -> None:
        """End what is left of a pipeline that lost a worker, and tell the draft servers."""
        for stage in self._plan.pipelines[pipeline]:
            control = self._controls.pop(stage.name, None)
            if control is not None:
                control.close()

    def peak_memory_bytes(self) -> dict[str, int]:
        """Highest resident memory of every worker so far."""
        return {name: self._ask(name, "memory") for name in self._controls if name != SWITCH}

    def open_sessions(self) -> dict[str, int]:
        """How many requests each worker holds state of."""
        return {name: self._ask(name, "sessions") for name in self._controls}

    def kill(self, name: str) -> None:
        """Kill one worker, as a power cut would (fault injection)."""
        self._processes[name].kill()

    def close(self) -> None:
        """End every process; returns when all are gone."""
        for control in self._controls.values():
            control.close()  # a worker ends when its control pipe does
        deadline = now_ms() + 1e3 * END_S
        started = [p for p in self._processes.values() if p.pid is not None]
        for process in started:
            process.join(max(0.0, (deadline - now_ms()) / 1e3))
        for process in started:
            if process.is_alive():
                process.kill()
                process.join()
        self._processes.clear()
        self._controls.clear()

    # --- talking to workers ----------------------------------------------------------------------

    def _ask(self, name: str, what: str) -> Any:
        self._controls[name].send((what, None))
        return self._answer(name, what)

    def _answer(self, name: str, tag: str) -> Any:
        """Wait for one worker's answer while watching all of them."""
        while not any(waiting[0] == tag for waiting in self._kept[name]):
            self._listen()
        found = next(waiting for waiting in self._kept[name] if waiting[0] == tag)
        self._kept[name].remove(found)
        return found[1]

    def _listen(self, until_ms: float | None = None) -> None:
        """Read every pipe that is ready by then; what belongs to a later turn is kept."""
        pipes = {control: name for name, control in self._controls.items()}
        left = None if until_ms is None else max(0.0, until_ms - now_ms()) / 1e3
        for pipe in wait(list(pipes), left):
            assert isinstance(pipe, Connection)
            self._kept[pipes[pipe]].append(self._receive(pipes[pipe], pipe))

    def _receive(self, name: str, control: Connection) -> tuple[str, Any]:
        try:
            tag, content = control.recv()
        except (EOFError, ConnectionResetError):
            self._processes[name].join(END_S)
            raise WorkerDiedError(name, self._processes[name].exitcode) from None
        if tag == "user error":
            raise UserError(content)
        if tag == "failed":
            raise RunError(f"{name} failed: {content}")
        return tag, content


class _Run:
    """One run of a plan's requests over a cluster: a closed loop, or requests that arrive."""

    def __init__(
        self, cluster: Cluster, plan: Plan, base: int, start: float, progress: Callable[[], None]
    ) -> None:
        """Args: ``base``: sessions before this run; ``start``: now, in ms."""
        self._cluster, self._plan, self._base, self._start = cluster, plan, base, start
        self._progress = progress
        self._dispatcher: Dispatcher = plan.dispatcher()
        self.trace = Trace(plan.devices, machines=plan.machines)
        self.recording = Recording()

    def decode(self) -> None:
        drafts = [draft.name for draft in self._plan.drafts]
        self._assign(self._dispatcher.start(self._start), self._start)
        while not self._dispatcher.done:
            try:
                found = self._cluster.next_finished(drafts, self._dispatcher.next_arrival_ms)
            except WorkerDiedError as death:
                self._lose(death)
                continue
            self._arrivals(now_ms() if found is None else found[0].finished_ms)
            if found is None:
                continue
            request, recorded = found
            index = request.session - self._base - 1
            self.trace.requests.append(replace(request.shifted(-self._start), session=index + 1))
            self.recording.requests[index + 1] = recorded
            self._progress()
            finished = request.finished_ms
            self._assign(self._dispatcher.finished(index, finished), finished)

    def _arrivals(self, until_ms: float) -> None:
        """Take in what has arrived by then, each request at its own time."""
        while (at := self._dispatcher.next_arrival_ms) is not None and at <= until_ms:
            self._assign(self._dispatcher.arrive(), at)

    def _assign(self, assignments: Sequence[Assignment], now_ms: float) -> None:
        for assignment in assignments:
            index = assignment.request
            spec = self._plan.requests[index]
            if assignment.draft is None:
                asked = assignment.asked_ms - self._start
                refused = RequestTrace.refused(index + 1, len(spec.prompt), asked)
                self.trace.requests.append(refused)
                self._progress()
                continue
            draft = self._plan.drafts[assignment.draft].name
            content = (self._base + index + 1, self._plan.new_schedule, spec, assignment, now_ms)
            self._cluster.order(draft, "open", content)

    def _lose(self, death: WorkerDiedError) -> None:
        """Go on without the pipeline of a dead stage, if there is another."""
        lost = [
            pipeline
            for pipeline, stages in enumerate(self._plan.pipelines)
            if any(stage.name == death.name for stage in stages)
        ]
        if not lost or len(self._dispatcher.lost) + 1 == len(self._plan.pipelines):
            raise death
        self._dispatcher.lost.update(lost)
        self._cluster.give_up(lost[0])
        for draft in self._plan.drafts:
            self._cluster.order(draft.name, "lose", (lost[0], death.name))
        self.trace.warnings.append(
            f"{death} after {now_ms() - self._start:.0f} ms; the requests of pipeline{lost[0]} "
            f"ended with what they had, their state was freed, and the other pipelines went on"
        )
