"""Scenario -> traces of real runs: the executor's front door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from treepipe.distributions import ArrivalTrace
from treepipe.executor.cluster import PRELOAD, Cluster
from treepipe.executor.fork_server import fork_server
from treepipe.executor.launch import prepare
from treepipe.load import overload_warnings
from treepipe.planning import input_warnings
from treepipe.recording import Recording
from treepipe.scenario import Scenario
from treepipe.trace import Trace


@dataclass(frozen=True, slots=True)
class Execution:
    """All runs of a scenario, with what draft and target answered in each."""

    traces: list[Trace]
    recordings: list[Recording]
    peak_memory_bytes: dict[str, int]


def execute(scenario: Scenario, path: Path, say: Callable[[str, int], None]) -> Execution:
    """Start the workers, run the workload ``runs`` times, end the workers.

    Raises:
        UserError: something the scenario names is wrong.
        RunError: a worker failed or died.
    """
    launch = prepare(scenario, path)
    traces, recordings = [], []
    say(f"starting {len(launch.roles)} processes", 1)
    warnings = input_warnings(scenario, launch.plan)
    if not scenario.emulate:
        warnings.append(
            "emulate = false: devices, links and hosts of the scenario are not imposed on the run, "
            "which takes this machine's own time"
        )
    arrivals = scenario.workload.arrivals
    if isinstance(arrivals, ArrivalTrace):
        warnings.append(
            f"prompts have the lengths of workload.prompts; those in {arrivals.file} are for the "
            f"simulator"
        )
    fork_server(PRELOAD)
    with Cluster(launch.roles, launch.plan) as cluster:
        say("", 1)
        say("decoding", sum(len(plan.requests) for plan in launch.plans))
        for plan in launch.plans:
            trace, recording = cluster.run(plan, lambda: say("", 1))
            trace.warnings += warnings
            traces.append(trace)
            recordings.append(recording)
        memory = cluster.peak_memory_bytes()
    traces[0].warnings += overload_warnings(scenario, launch.plan, traces)
    return Execution(traces, recordings, memory)
