"""Running a deployment's requests by its workers, one run after another.

A ``Controller`` is a ``Crew`` (``crew.py``) that serves requests: a process per role, each of which
dials the crew's ``Lines`` (``lines.py``). The crew's ``Fleet`` (``fleet.py``) has a ``RemoteHost``
(``remote.py``) for each other host, whose ``Daemon`` (``daemon.py``) starts the same processes
there. In a process a worker (``draft_worker.py``, ``stage_worker.py``, ``switch_worker.py``) does
the role's work, with the ``Station`` (``station.py``) that every worker has.

Invariant: after an exception, Ctrl-C, or a worker's death or silence, no process and no port is
left behind. An error appears once, with the worker's name and the committed texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from treepipe.core.errors import RunError
from treepipe.executor.run.crew import Crew
from treepipe.executor.run.pulse import LostWorkerError
from treepipe.executor.run.recovery import Recovery
from treepipe.executor.run.run_requests import RunRequests
from treepipe.executor.wire.records import Holdings
from treepipe.executor.wire.role import RoleSettings
from treepipe.results.recording import Recording
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import SWITCH, Deployment


class RunEndedError(RunError):
    """A run failed, ``at_ms`` after its start.

    Trace and recording hold its requests: the finished ones, and the committed part of the open
    ones. There are no spans.
    """

    def __init__(self, why: str, at_ms: float, trace: Trace, recording: Recording) -> None:
        super().__init__(f"{why}, {at_ms:.0f} ms after the run began")
        self.at_ms = at_ms
        self.trace, self.recording = trace, recording


class Controller(Crew):
    """A crew that serves requests.

    >>> with Controller(roles, deployment) as controller:  # doctest: +SKIP
    ...     trace, recording = controller.run(deployment)
    """

    def __init__(self, roles: Sequence[RoleSettings], deployment: Deployment) -> None:
        super().__init__(roles, deployment)
        self._sessions = 0

    def run(
        self, deployment: Deployment, progress: Callable[[], None] = lambda: None
    ) -> tuple[Trace, Recording]:
        """Decode the requests of a deployment for these workers; times count from the start.

        ``progress`` is called after each request. The next runs lack the workers that a run lost.

        Raises:
            RunEndedError: a draft server or the last pipeline is lost, or a worker failed. There
                can be no further run.
        """
        opened = self.deployment
        assert deployment.roles.ends == opened.roles.ends  # the workers were opened for this value
        deployment = replace(deployment, wiring=opened.wiring)
        run = RunRequests(self, deployment, self._sessions, progress)
        recovery = Recovery(self, run)
        self._sessions += len(deployment.requests)
        try:
            _decode(run, recovery)
            recovery.end()
        except RunError as error:
            at_ms = run.now_ms
            recovery.salvage(error, at_ms)
            raise RunEndedError(str(error), at_ms, run.trace, run.recording) from None
        finally:
            run.trace.requests.sort(key=lambda request: request.session)
        return run.trace, run.recording

    def peak_memory_bytes(self) -> dict[str, int]:
        """Highest resident memory of every worker so far."""
        workers = [name for name in self.lines if name != SWITCH]
        return {name: self.lines.ask(name, Holdings).peak_memory_bytes for name in workers}

    def open_sessions(self) -> dict[str, int]:
        """Number of requests whose state each worker holds."""
        return {name: self.lines.ask(name, Holdings).sessions for name in self.lines}


def _decode(run: RunRequests, recovery: Recovery) -> None:
    """Serve until all requests are over, including planned failures."""
    run.begin()
    while not run.front.done:
        try:
            found = run.next_finished(recovery.injection.next_ms)
        except LostWorkerError as death:
            recovery.lose(death)
            continue
        if found is not None:
            run.finished(found)
            continue
        run.arrivals(run.now_ms)
        recovery.injection.act(run.now_ms)
