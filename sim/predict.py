"""The simulator's entry point: scenario to traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from treepipe.core.errors import UserError
from treepipe.physics.timing import TimeTable
from treepipe.results.load import overload_warnings
from treepipe.results.recording import Recording
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.fitting import fit_to_memory
from treepipe.scenario.memory import cache_entries
from treepipe.scenario.resolve import input_warnings, resolve
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Replay
from treepipe.scenario.workload import draw_requests, run_seeds
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.acceptance_pool import acceptance_pool, acceptance_warnings, judges_whole
from treepipe.sim.replay import ReplaySource
from treepipe.sim.theory.admission import resolve_admission
from treepipe.sim.world import simulate

FAR = 64
"""Factor on a table's end up to which the table is extrapolated; larger requests are refused."""


def predict(
    scenario: Scenario,
    progress: Callable[[], None] = lambda: None,
    *,
    paths: bool = False,
) -> list[Trace]:
    """Simulate all runs (with critical paths if ``paths``), and call ``progress`` after each.

    Raises:
        UserError: something the scenario names is wrong.
    """
    scenario = resolve_admission(scenario)
    acceptance, path = scenario.acceptance, scenario.path
    if acceptance is None and scenario.schedule.system.drafts:
        raise UserError(f"{path}: key acceptance is missing; a prediction needs a source")
    deployment = resolve(scenario)
    of_acceptance = acceptance_warnings(scenario)  # refused before the work
    if isinstance(acceptance, Replay):
        recording = Recording.load(path.parent / acceptance.file)
        deployment = fit_to_memory(deployment.asked(_recorded_requests(recording, scenario)))
        replay = ReplaySource(recording)
        traces = [simulate(deployment, replay, record_paths=paths)]
        traces[0].warnings += replay.warnings()
        progress()
    else:
        pool, block, ratio = acceptance_pool(scenario)
        whole = judges_whole(scenario, pool)
        source = PoolSource(pool, block, scenario.seed, ratio, whole=whole)
        traces = []
        for seed in run_seeds(scenario.seed, scenario.runs):
            deployment = fit_to_memory(deployment.asked(draw_requests(scenario, seed), seed))
            own = source.reseeded(seed, resampled=scenario.runs > 1)
            traces.append(simulate(deployment, own, record_paths=paths))
            traces[-1].redrawn = own.redrawn(traces[-1])
            progress()
    for trace in traces:
        trace.warnings += of_acceptance
        _refuse_far(deployment, trace)
        trace.warnings += extrapolation_warnings(deployment, trace)
        trace.warnings += input_warnings(scenario, deployment)
    traces[0].warnings += overload_warnings(scenario, deployment, traces)
    return traces


def _recorded_requests(recording: Recording, scenario: Scenario) -> tuple[RequestSpec, ...]:
    """Return requests of the recorded lengths, arriving as in the scenario's first run."""
    (seed,) = run_seeds(scenario.seed, 1)
    asked = draw_requests(scenario, seed)
    arrive = scenario.workload.arrivals is not None
    if arrive and max(recording.requests, default=0) > len(asked):
        raise UserError(
            f"{scenario.path}: the recording has a request {max(recording.requests)}, but only "
            f"{len(asked)} requests arrive (key workload)"
        )
    return tuple(
        RequestSpec(
            (0,) * request.prompt_tokens,
            len(request.text),
            arrival_ms=asked[session - 1].arrival_ms if arrive else None,
        )
        for session, request in sorted(recording.requests.items())
    )


def extrapolation_warnings(deployment: Deployment, trace: Trace) -> list[str]:
    """Return warnings of token counts and contexts beyond a device's table: its last slope was
    continued, or its last time held where that falls."""
    found = []
    for work, table, tokens in _beyond_tables(deployment, trace):
        held = " with a fall, so its last time was held" if table.falls else ""
        found.append(
            f"{work} were extrapolated to {tokens} tokens, the table ends at {max(table.points)}"
            + held
        )
    longest = cache_entries(deployment, 0)
    for work, table, tokens in _asked(deployment, trace):
        last = table.last_context
        if tokens and last is not None and last < longest:
            found.append(
                f"{work} were extrapolated to a context of {longest} tokens, the table ends at "
                f"{last}"
            )
    return found


def _refuse_far(deployment: Deployment, trace: Trace) -> None:
    """Check that no table is extrapolated beyond ``FAR`` times its end.

    Raises:
        UserError: one is.
    """
    for work, table, tokens in _beyond_tables(deployment, trace):
        end = max(table.points)
        if tokens > FAR * end:
            raise UserError(
                f"{deployment.path}: {work} are asked for at {tokens} tokens, far outside their "
                f"table, which ends at {end}; give times up to there"
            )


def _beyond_tables(deployment: Deployment, trace: Trace) -> Iterator[tuple[str, TimeTable, int]]:
    """Yield the tables of ``_asked`` that end before the largest request to them."""
    return (each for each in _asked(deployment, trace) if each[1].extrapolates(each[2]))


def _asked(deployment: Deployment, trace: Trace) -> Iterator[tuple[str, TimeTable, int]]:
    """Yield every device's tables, with a description and the largest token count asked of it."""
    largest: dict[tuple[str, str], int] = {}
    for span in trace.spans:
        if span.kind in ("compute", "draft", "evaluate"):
            key = (span.device, span.kind)
            largest[key] = max(largest.get(key, 0), span.tokens)
    for placed in deployment.roles.placed:
        times = placed.times
        tables = {"compute": times.stage, "draft": times.draft, "evaluate": times.evaluate}
        for kind, table in tables.items():
            yield f"{placed.name}: {kind} times", table, largest.get((placed.name, kind), 0)
