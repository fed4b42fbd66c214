"""Scenario -> traces of real runs: the executor's entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from treepipe.core.errors import RunError
from treepipe.executor.run.controller import Controller, RunEndedError
from treepipe.executor.run.launch import Launch, prepare
from treepipe.results.load import overload_warnings
from treepipe.results.recording import Recording
from treepipe.results.result import make_incomplete_result, write_json
from treepipe.results.trace import Trace
from treepipe.scenario.resolve import input_warnings
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.workload import trace_warnings


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
