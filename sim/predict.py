"""Scenario -> traces: the simulator's front door."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.physics.timing import TimeTable
from treepipe.profiles.hit_ratio import at_depth, depths_of
from treepipe.results.load import overload_warnings
from treepipe.results.recording import Recording
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.fitting import fitting
from treepipe.scenario.making import making_warnings, share_warnings, stated_warnings
from treepipe.scenario.memory import cache_entries
from treepipe.scenario.resolve import input_warnings, resolve
from treepipe.scenario.scale import scaled_hits
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import HitRatio, PoolSection, Replay
from treepipe.scenario.workload import draw_requests, run_seeds
from treepipe.sim.acceptance import AcceptanceSource, PoolSource
from treepipe.sim.blocks import block_length
from treepipe.sim.made_pools import bernoulli_pool, hit_ratio_pool
from treepipe.sim.pool import Pool
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

FAR = 64
"""Times the end of a device's table: what is beyond is refused, what is before is extrapolated."""
MADE_BLOCK = 1
"""Positions of a made pool are independent, so they are drawn one by one."""


def predict(
    scenario: Scenario,
    progress: Callable[[], None] = lambda: None,
    *,
    paths: bool = False,
) -> list[Trace]:
    """Simulate all runs of a scenario; ``progress`` is called after each.

    Args:
        paths: whether the traces tell of the requests' critical paths.

    Raises:
        UserError: something the scenario names is wrong.
    """
    acceptance, path = scenario.acceptance, scenario.path
    if acceptance is None and scenario.schedule.system.drafts:
        raise UserError(f"{path}: key acceptance is missing; a prediction needs a source")
    deployment = resolve(scenario)
    of_acceptance = acceptance_warnings(scenario)  # refused before the work
    if isinstance(acceptance, Replay):
        recording = Recording.load(path.parent / acceptance.file)
        deployment = fitting(deployment.asked(_recorded_requests(recording, scenario)))
        replay = ReplaySource(recording)
        traces = [_simulate(deployment, replay, progress, paths=paths)]
        traces[0].warnings += replay.warnings()
    else:
        pool, block, ratio = acceptance_pool(scenario)
        source = PoolSource(pool, block, scenario.seed, ratio)
        traces = []
        for seed in run_seeds(scenario.seed, scenario.runs):
            deployment = fitting(deployment.asked(draw_requests(scenario, seed), seed))
            own = source.reseeded(seed, resampled=scenario.runs > 1)
            traces.append(_simulate(deployment, own, progress, paths=paths))
            traces[-1].redrawn = own.redrawn(traces[-1])
    for trace in traces:
        trace.warnings += of_acceptance
        _refuse_far(deployment, trace)
        trace.warnings += extrapolation_warnings(deployment, trace)
        trace.warnings += input_warnings(scenario, deployment)
    traces[0].warnings += overload_warnings(scenario, deployment, traces)
    return traces


def _simulate(
    deployment: Deployment,
    source: AcceptanceSource,
    progress: Callable[[], None],
    *,
    paths: bool,
) -> Trace:
    trace = simulate(deployment, source, record_paths=paths)
    progress()
    return trace


@lru_cache(maxsize=2)
def _recorded_pool(
    file: Path, written_ns: int, depth_loss: float, sharpness: float, off_path: float | None
) -> Pool:
    """Remembered, as many points of a study draw from the same pool.

    Args: ``written_ns``: when the file was written last, as it may be written again.
    """
    return Pool.load(file, depth_loss).sharpened(sharpness, off_path)


def acceptance_pool(scenario: Scenario) -> tuple[Pool, int | None, Mapping[int, float] | None]:
    """What positions are drawn from (not of a replay; none is plain decoding), how many of them
    together (None: whole texts), and the hit ratios they are drawn to reach."""
    acceptance = scenario.acceptance
    assert not isinstance(acceptance, Replay)
    if isinstance(acceptance, PoolSection):
        file = scenario.path.parent / acceptance.file
        written_ns = file.stat().st_mtime_ns if file.is_file() else 0
        sharpness, off_path = acceptance.sharpness, acceptance.off_path_sharpness
        pool = _recorded_pool(file, written_ns, acceptance.depth_loss, sharpness, off_path)
        hits = acceptance.hit_ratio
        if scenario.scale.misses != 1:
            hits = scaled_hits(scenario, hits or {1: pool.hit_ratio(1)})
        return pool, acceptance.block or (block_length(pool) if hits else None), hits
    if isinstance(acceptance, HitRatio):
        table = acceptance.table
        by_depth = [
            scaled_hits(scenario, {k: at_depth(shares, depth) for k, shares in table.items()})
            for depth in range(depths_of(table))
        ]
        return hit_ratio_pool({k: [each[k] for each in by_depth] for k in table}), MADE_BLOCK, None
    beta = 1.0 if acceptance is None else scaled_hits(scenario, {1: acceptance.beta})[1]
    return bernoulli_pool(beta), MADE_BLOCK, None


def acceptance_warnings(scenario: Scenario) -> list[str]:
    """How the acceptance goes with the scenario's sampling and drafts; raises ``UserError`` if it
    does not."""
    acceptance = scenario.acceptance
    if isinstance(acceptance, PoolSection) and scenario.schedule.system.drafts:
        made = acceptance_pool(scenario)[0].made
        return making_warnings(scenario, made) if made is not None else []
    if not scenario.schedule.system.drafts or isinstance(acceptance, Replay):
        return []
    return [*stated_warnings(scenario), *share_warnings(scenario)]


def _recorded_requests(recording: Recording, scenario: Scenario) -> tuple[RequestSpec, ...]:
    """Requests as long as they were recorded, asked for when the scenario's first run asks."""
    (seed,) = run_seeds(scenario.seed, 1)
    asked = draw_requests(scenario, seed)
    if scenario.workload.arrivals is not None and max(recording.requests, default=0) > len(asked):
        raise UserError(
            f"{scenario.path}: the recording has a request {max(recording.requests)}, but only "
            f"{len(asked)} requests arrive (key workload)"
        )
    return tuple(
        RequestSpec(
            (0,) * request.prompt_tokens,
            len(request.text),
            arrival_ms=None
            if scenario.workload.arrivals is None
            else asked[session - 1].arrival_ms,
        )
        for session, request in sorted(recording.requests.items())
    )


def extrapolation_warnings(deployment: Deployment, trace: Trace) -> list[str]:
    """Token counts and contexts beyond a device's table: its last slope was continued, or its last
    time held where that falls."""
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
    """Raises ``UserError`` if a table was asked for so much more that no slope tells of it."""
    for work, table, tokens in _beyond_tables(deployment, trace):
        end = max(table.points)
        if tokens > FAR * end:
            raise UserError(
                f"{deployment.path}: {work} are asked for at {tokens} tokens, far outside their "
                f"table, which ends at {end}; give times up to there"
            )


def _beyond_tables(deployment: Deployment, trace: Trace) -> Iterator[tuple[str, TimeTable, int]]:
    """Those tables of ``_asked`` that end before what they were asked for."""
    return (each for each in _asked(deployment, trace) if each[1].extrapolates(each[2]))


def _asked(deployment: Deployment, trace: Trace) -> Iterator[tuple[str, TimeTable, int]]:
    """Every device's tables, in words too, and the most tokens that each was asked for."""
    largest: dict[tuple[str, str], int] = {}
    for span in trace.spans:
        if span.kind in ("compute", "draft", "evaluate"):
            key = (span.device, span.kind)
            largest[key] = max(largest.get(key, 0), span.tokens)
    for placed in deployment.placed:
        times = placed.times
        tables = {"compute": times.stage, "draft": times.draft, "evaluate": times.evaluate}
        for kind, table in tables.items():
            yield f"{placed.name}: {kind} times", table, largest.get((placed.name, kind), 0)
