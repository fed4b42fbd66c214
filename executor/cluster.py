"""Starting, watching and ending the worker processes of one pipeline on this host.

Law of this file: whatever happens (an exception, Ctrl-C, a worker's death), no process and no
port is left behind, and an error appears once, with the worker's name.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from treepipe.errors import RunError, UserError
from treepipe.executor.clock import now_ms
from treepipe.executor.role import Desk, RoleSettings
from treepipe.plan import Plan, RequestSpec
from treepipe.planning import new_schedule
from treepipe.recording import Recorder, Recording
from treepipe.scenario import ScheduleSection
from treepipe.trace import RequestTrace, Span, Trace

PRELOAD = [
    "treepipe.executor.stage_worker",
    "treepipe.executor.draft_worker",
    "treepipe.executor.families",
]
"""What the fork server imports once, so that a worker starts in a fraction of a second."""
END_S = 1.0
"""How long a worker gets to end by itself before it is killed."""


class Cluster:
    """A draft process and one process per stage; a context manager.

    >>> with Cluster(roles, plan) as cluster:           # doctest: +SKIP
    ...     trace, recording = cluster.run(section, plan.requests)
    """

    def __init__(self, roles: Sequence[RoleSettings], plan: Plan) -> None:
        """Args: ``roles``: the draft first, then the stages in order."""
        self._roles, self._plan = list(roles), plan
        self._processes: dict[str, BaseProcess] = {}
        self._controls: dict[str, Connection] = {}
        self._kept: dict[str, list[tuple[str, Any]]] = {r.placed.name: [] for r in roles}
        self._session = 0
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
        draft, *stages = addresses
        for index, name in enumerate(addresses):
            wanted = stages if name == draft else [*stages[index:], draft][:1]
            links = {peer: self._plan.link(name, peer) for peer in wanted}
            self._controls[name].send(({peer: addresses[peer] for peer in wanted}, links))
        for name in addresses:
            self.load_memory[name] = self._answer(name, "loaded")

    def run(
        self,
        section: ScheduleSection,
        requests: Sequence[RequestSpec],
        progress: Callable[[], None] = lambda: None,
    ) -> tuple[Trace, Recording]:
        """Decode requests one after another; times count from the first one's start.

        ``progress`` is called after each.
        """
        draft, *stages = self._controls
        start = now_ms()
        trace = Trace(tuple(self._controls))
        recording = Recording()
        for request in requests:
            self._session += 1
            self._controls[draft].send((section, self._session, request, stages))
            result, recorded = self._answer(draft, "finished")
            trace.requests.append(_request_from(result, start))
            recording.requests[self._session] = recorded
            progress()
        for name, control in self._controls.items():
            control.send("spans")
            spans: list[Span] = self._answer(name, "spans")
            trace.spans += [_span_from(span, start) for span in spans if span.end_ms >= start]
        trace.spans.sort(key=lambda span: (span.start_ms, span.end_ms, span.device))
        return trace, recording

    def peak_memory_bytes(self) -> dict[str, int]:
        """Highest resident memory of every worker so far."""
        for control in self._controls.values():
            control.send("memory")
        return {name: self._answer(name, "memory") for name in self._controls}

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

    def _answer(self, name: str, tag: str) -> Any:
        """Wait for one worker's answer while watching all of them.

        Workers speak when spoken to, except when they fail; so a pipe that is ready out of turn
        is read at once, and what belongs to a later turn is kept.
        """
        while not any(waiting[0] == tag for waiting in self._kept[name]):
            pipes = {control: who for who, control in self._controls.items()}
            for pipe in wait(list(pipes)):
                assert isinstance(pipe, Connection)
                who = pipes[pipe]
                self._kept[who].append(self._receive(who, pipe))
        found = next(waiting for waiting in self._kept[name] if waiting[0] == tag)
        self._kept[name].remove(found)
        return found[1]

    def _receive(self, name: str, control: Connection) -> tuple[str, Any]:
        try:
            tag, content = control.recv()
        except (EOFError, ConnectionResetError):
            self._processes[name].join(END_S)
            code = self._processes[name].exitcode
            raise RunError(f"{name} died (exit code {code})") from None
        if tag == "user error":
            raise UserError(content)
        if tag == "failed":
            raise RunError(f"{name} failed: {content}")
        return tag, content


def worker_main(role: RoleSettings, control: Connection) -> None:
    """Body of every worker process."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends us
    torch.set_num_threads(1)
    try:
        baseline = _peak_memory()
        desk = Desk.open(role, control)
        try:
            control.send(("listening", desk.inbox.address))
            desk.connect(*control.recv())
            serve = _serve_draft if role.number == 0 else _serve_stage
            serve(desk, baseline)
        finally:
            desk.close()
    except (EOFError, BrokenPipeError, ConnectionResetError, InterruptedError):
        return  # the controller is gone
    except UserError as error:
        _report(control, "user error", str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        _report(control, "failed", f"{type(error).__name__}: {error} ({place})")


def _report(control: Connection, tag: str, sentence: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be there to hear it
        control.send((tag, sentence))


def _serve_stage(desk: Desk, baseline: int) -> None:
    from treepipe.executor.stage_worker import StageWorker

    worker = StageWorker(desk, next(iter(desk.outboxes)))
    desk.control.send(("loaded", (baseline, _peak_memory())))
    while True:
        worker.serve()
        _reply(desk, desk.control.recv())


def _serve_draft(desk: Desk, baseline: int) -> None:
    from treepipe.executor.draft_worker import DraftWorker

    worker = DraftWorker(desk, list(desk.outboxes))
    desk.control.send(("loaded", (baseline, _peak_memory())))
    while True:
        order = desk.control.recv()
        if isinstance(order, str):
            _reply(desk, order)
            continue
        section, session, request, stages = order
        recorder = Recorder()
        schedule = new_schedule(section, len(stages), session)
        result = worker.run(session, schedule, request, recorder)
        recorder.finished(session, len(request.prompt), result.tokens)
        desk.control.send(("finished", (result, recorder.recording.requests[session])))


def _reply(desk: Desk, order: str) -> None:
    desk.control.send((order, desk.take_spans() if order == "spans" else _peak_memory()))


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _span_from(span: Span, start_ms: float) -> Span:
    return Span(
        span.device,
        span.kind,
        span.start_ms - start_ms,
        span.end_ms - start_ms,
        span.session,
        span.tokens,
    )


def _request_from(request: RequestTrace, start_ms: float) -> RequestTrace:
    return RequestTrace(
        request.session,
        request.prompt_tokens,
        request.started_ms - start_ms,
        request.finished_ms - start_ms,
        tuple((time - start_ms, count) for time, count in request.emitted),
        request.tokens,
        request.rounds,
        request.reason,
    )
