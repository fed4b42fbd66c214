"""Scenario -> traces of real runs: the executor's entry point (``execute``), and the ``Controller``
that runs a deployment's requests by its workers, one run after another.

A ``Controller`` is a ``Crew`` that serves requests: a process per role, each of which dials the
crew's ``Lines`` (``lines.py``). The crew's ``Fleet`` (``fleet.py``) has a ``RemoteHost``
(``remote.py``) for each other host, whose ``Daemon`` (``daemon.py``) starts the same processes
there. In a process a worker (``draft_worker.py``, ``stage_worker.py``, ``switch_worker.py``) does
the role's work, with the ``Station`` (``station.py``) that every worker has.

Invariant: after an exception, Ctrl-C, or a worker's death or silence, no process and no port is
left behind. An error appears once, with the worker's name and the committed texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from treepipe.core.errors import RunError
from treepipe.executor.run.crew import Crew
from treepipe.executor.run.launch import Launch, prepare
from treepipe.executor.run.pulse import LostWorkerError
from treepipe.executor.run.recovery import Recovery
from treepipe.executor.run.run_requests import RunRequests
from treepipe.executor.wire.records import Holdings
from treepipe.executor.wire.role import RoleSettings
from treepipe.results.load import overload_warnings
from treepipe.results.recording import Recording
from treepipe.results.result import make_incomplete_result, write_json
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import SWITCH, Deployment
from treepipe.scenario.resolve import input_warnings
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.workload import trace_warnings


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


# --- all runs of a scenario ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Execution:
    """All runs of a scenario."""

    traces: list[Trace]
    recordings: list[Recording]
    peak_memory_bytes: dict[str, int]


def execute(
    scenario: Scenario,
    say: Callable[[str, int], None],
    json: str | None = None,
    recording: Path | None = None,
) -> Execution:
    """Start the workers, run the workload ``runs`` times, end the workers.

    Args:
        json, recording: the user's output files. Only a run that fails writes them here, with the
            committed texts.

    Raises:
        UserError: something in the scenario is wrong.
        RunError: a worker failed, died, or did not answer.
    """
    launch = prepare(scenario)
    traces: list[Trace] = []
    recordings: list[Recording] = []
    say(f"starting {len(launch.roles)} processes", 1)
    warnings = run_warnings(scenario, launch)
    with Controller(launch.roles, launch.deployment) as controller:
        say("", 1)
        say("decoding", sum(len(deployment.requests) for deployment in launch.runs))
        for deployment in launch.runs:
            try:
                trace, recorded = controller.run(deployment, lambda: say("", 1))
            except RunEndedError as ended:
                controller.close()
                ended.trace.warnings += warnings
                kept = _keep(scenario, len(traces), ended, json, recording)
                raise RunError(f"{ended}; {kept}") from None
            trace.warnings += warnings
            traces.append(trace)
            recordings.append(recorded)
        memory = controller.peak_memory_bytes()
    traces[0].warnings += overload_warnings(scenario, launch.deployment, traces)
    return Execution(traces, recordings, memory)


def run_warnings(scenario: Scenario, launch: Launch) -> list[str]:
    """Return warnings about a run's inputs, before it begins."""
    return [*input_warnings(scenario, launch.deployment, run=True), *_left_out(scenario)]


def _left_out(scenario: Scenario) -> Iterator[str]:
    if not scenario.emulate:
        yield (
            "emulate = false: devices, links and hosts of the scenario are not imposed on the run, "
            "which takes this machine's own time"
        )
    elif scenario.emulate == "devices":
        yield (
            "emulate = 'devices': links of the scenario are not imposed on the run, whose messages "
            "take the network's own time"
        )
    yield from trace_warnings(scenario, run=True)


def _keep(
    scenario: Scenario, done: int, ended: RunEndedError, json: str | None, recording: Path | None
) -> str:
    """Save the committed texts of a failed run; return a clause with their place and size."""
    texts = [request.tokens for request in ended.trace.requests]
    what = f"{sum(map(len, texts))} tokens of {len(texts)} requests were committed until then"
    content = make_incomplete_result(scenario.name, scenario.seed, done, str(ended), ended.trace)
    targets = [json] if json is not None else []
    if json is None and recording is None:
        targets = [_free_name(f"{Path(scenario.name).name}-incomplete")]
    try:
        for target in targets:
            write_json(content.to_json(), target)
        if recording is not None:
            ended.recording.save(recording)
            targets.append(str(recording))
    except RunError as error:
        return f"{what}, but they could not be saved: {error}"
    saved = ", ".join("standard output" if target == "-" else target for target in targets)
    return f"{what}, saved in {saved}"


def _free_name(stem: str) -> str:
    """Find an unused name for a JSON file in this folder."""
    names = (f"{stem}{tail}.json" for tail in chain([""], (f"-{n}" for n in count(2))))
    return next(name for name in names if not Path(name).exists())
