"""The simulator's entry point: scenario to traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from treepipe.core.errors import RunError, UserError
from treepipe.physics.timing import FAR, TimeTable
from treepipe.results.load import overload_warnings
from treepipe.results.recording import Recording
from treepipe.results.trace import Kind, Spans, Trace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.memory import cache_entries, fitted
from treepipe.scenario.placement import READ, Placement, place
from treepipe.scenario.resolve import input_warnings, resolve
from treepipe.scenario.rows import AskedRows, with_guessed_rows
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import PoolSection, Replay
from treepipe.scenario.workload import draw_requests, run_seeds, trace_warnings
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.acceptance_pool import acceptance_pool, acceptance_warnings, judges_whole
from treepipe.sim.alike import simulate_alike
from treepipe.sim.replay import ReplaySource
from treepipe.sim.theory.closed_form import resolve_admission
from treepipe.sim.world import simulate

MOST = 256
"""Scenarios simulated together: more lanes cost as much for each."""


def predict(
    scenario: Scenario,
    progress: Callable[[], None] = lambda: None,
    *,
    paths: bool = False,
    asked: tuple[RequestSpec, ...] | None = None,
) -> list[Trace]:
    """Simulate all runs (with critical paths if ``paths``), and call ``progress`` after each.

    ``asked``: requests in place of the workload's.

    Raises:
        UserError: something the scenario names is wrong.
    """
    work, traces = _asked_runs(scenario, asked), []
    for deployment, source in work.runs:
        traces.append(simulate(deployment, source, record_paths=paths))
        progress()
    return work.finished(traces)


def predict_alike(
    scenarios: Sequence[Scenario],
) -> Iterator[list[Trace] | UserError | RunError]:
    """Simulate scenarios with the same ``likeness``, in lanes as far as possible (``alike.py``);
    yield what ``predict`` returns or raises, per scenario."""
    ready, refused = dict[int, _Asked](), dict[int, UserError]()
    shared = _Shared()
    for number, scenario in enumerate(scenarios):
        try:
            ready[number] = _asked_runs(scenario, shared=shared)
        except UserError as error:
            refused[number] = error
    told = [
        simulate_alike([deployment for deployment, _ in runs], runs[0][1])
        for runs in zip(*(asked.runs for asked in ready.values()), strict=True)
    ]
    own = dict(zip(ready, zip(*told, strict=True), strict=True))
    for number in range(len(scenarios)):
        if number in refused:
            yield refused[number]
            continue
        try:
            yield ready[number].finished([trace() for trace in own[number]])
        except (UserError, RunError) as error:
            yield error


def alike(scenarios: Sequence[Scenario]) -> list[list[int]]:
    """Group scenarios by ``likeness``: their numbers, at most ``MOST`` together."""
    groups = dict[str, list[int]]()
    for number, scenario in enumerate(scenarios):
        groups.setdefault(likeness(scenario), []).append(number)
    return [
        members[first : first + MOST]
        for members in groups.values()
        for first in range(0, len(members), MOST)
    ]


def likeness(scenario: Scenario) -> str:
    """Return a text that scenarios share whose simulations may differ in durations alone: the same
    schedule and rules on the same texts, with as many roles."""
    content = scenario.model_dump(mode="json", exclude_unset=True)
    for name in ("name", "links"):
        content.pop(name, None)
    content["scale"] = scenario.scale.misses
    for placed in (*content.get("drafts", ()), *_stages(content)):
        placed.pop("device", None)
    if isinstance(arrivals := content.get("workload", {}).get("arrivals"), dict):
        arrivals.pop("rate_per_s", None)
    return json.dumps([str(scenario.path.parent), content], sort_keys=True)


def _stages(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    return (stage for pipeline in content.get("pipelines", ()) for stage in pipeline["stages"])


@dataclass(frozen=True, slots=True)
class _Shared:
    """What scenarios of one ``likeness`` share.

    Attributes:
        placed: placements, by what scenarios say of them.
        sources: the acceptance of each run, by its seed.
        requests: those of a seed, by it and what scenarios say of their workload.
    """

    placed: dict[str, Placement] = field(default_factory=dict)
    sources: dict[int, PoolSource] = field(default_factory=dict)
    requests: dict[tuple[int, str], tuple[RequestSpec, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A scenario's runs, and what all of them share.

    Attributes:
        warnings: warnings of the acceptance, of every run.
        of_workload: warnings of the workload, told once.
        given: whether the requests are given in place of the workload's.
    """

    scenario: Scenario
    runs: Sequence[tuple[Deployment, PoolSource | ReplaySource]]
    warnings: Sequence[str]
    of_workload: Sequence[str]
    given: bool = False

    def finished(self, traces: list[Trace]) -> list[Trace]:
        """Add to the runs' traces what is told beside a simulation.

        Raises:
            UserError: a table is extrapolated too far.
        """
        exact = self._exact()
        for (deployment, source), trace in zip(self.runs, traces, strict=True):
            trace.exact = exact
            if isinstance(source, PoolSource):
                trace.redrawn = source.redrawn(trace)
            else:
                trace.warnings += source.warnings()
            trace.warnings += self.warnings
            _refuse_far(deployment, trace)
            trace.warnings += extrapolation_warnings(deployment, trace)
            deployment = with_guessed_rows(deployment, asked_rows(deployment, trace))
            trace.warnings += input_warnings(self.scenario, deployment)
            trace.estimates = deployment.estimates
        traces[0].warnings += self.of_workload
        traces[0].warnings += overload_warnings(self.scenario, self.runs[-1][0], traces)
        return traces

    def _exact(self) -> bool:
        """Whether nothing in the runs is drawn at random: neither acceptance nor requests, nor the
        times of links and hosts."""
        deployment, source = self.runs[0]
        if isinstance(source, ReplaySource):
            return False  # its text was drawn once
        roles = deployment.roles
        links = [deployment.link(*pair) for pair in roles.connections]
        hosts = [machine.costs for machine in roles.machines if machine.costs is not None]
        if any(link.jitter_ms or link.loss for link in links) or any(h.variation for h in hosts):
            return False
        if self.scenario.schedule.system.drafts and not source.constant:
            return False
        requests = [each.requests for each, _ in self.runs]
        if len(requests) == 1 and not self.given:
            requests.append(draw_requests(self.scenario, run_seeds(self.scenario.seed, 2)[1]))
        return all(each == requests[0] for each in requests)


def _asked_runs(
    scenario: Scenario,
    requests: tuple[RequestSpec, ...] | None = None,
    shared: _Shared | None = None,
) -> _Asked:
    """Raises ``UserError``: something the scenario names is wrong."""
    shared = shared or _Shared()
    scenario = resolve_admission(scenario)
    acceptance, path = scenario.acceptance, scenario.path
    if acceptance is None and scenario.schedule.system.drafts:
        raise UserError(f"{path}: key acceptance is missing; a prediction needs a source")
    said = scenario.said(READ)
    if said not in shared.placed:
        shared.placed[said] = place(scenario)
    deployment = resolve(scenario, shared.placed[said])
    of_acceptance = acceptance_warnings(scenario)  # refused before the work
    runs: Sequence[tuple[Deployment, PoolSource | ReplaySource]]
    if isinstance(acceptance, Replay):
        recording = Recording.load(path.parent / acceptance.file)
        given = [deployment.asked(_recorded_requests(recording, scenario))]
        runs = [(each, ReplaySource(recording)) for each in fitted(given)]
    else:
        if not shared.sources:
            shared.sources.update(_sources(scenario))
        given = []
        for seed in shared.sources:
            drawn = seed, scenario.said({"workload": True})
            if drawn not in shared.requests:
                shared.requests[drawn] = requests or draw_requests(scenario, seed)
            given.append(deployment.asked(shared.requests[drawn], seed))
        runs = [*zip(fitted(given), shared.sources.values(), strict=True)]
    of_workload = [] if requests else trace_warnings(scenario)
    return _Asked(scenario, runs, of_acceptance, of_workload, requests is not None)


def _sources(scenario: Scenario) -> dict[int, PoolSource]:
    """Make the acceptance of each run, by its seed."""
    pool, block, ratio = acceptance_pool(scenario)
    whole = judges_whole(scenario, pool)
    acceptance, changed = scenario.acceptance, scenario.scale.misses != 1
    stated = acceptance.hit_ratio if changed and isinstance(acceptance, PoolSection) else None
    source = PoolSource(pool, block, scenario.seed, ratio, stated=stated, whole=whole)
    seeds = run_seeds(scenario.seed, scenario.runs)
    return {seed: source.reseeded(seed, resampled=scenario.runs > 1) for seed in seeds}


def _recorded_requests(recording: Recording, scenario: Scenario) -> tuple[RequestSpec, ...]:
    """Return requests of the recorded lengths, arriving as in the scenario's first run."""
    (seed,) = run_seeds(scenario.seed, 1)
    asked = draw_requests(scenario, seed)
    arrive = scenario.workload.arriving
    if arrive and max(recording.requests, default=0) > len(asked):
        raise UserError(
            f"{scenario.path}: the recording has a request {max(recording.requests)}, but only "
            f"{len(asked)} requests arrive (key workload)"
        )
    recorded = sorted(recording.requests.items())
    places = {session - 1: place for place, (session, _) in enumerate(recorded)}
    found = list[RequestSpec]()
    for session, request in recorded:
        made = RequestSpec((0,) * request.prompt_tokens, len(request.text))
        if arrive:
            own = asked[session - 1]
            after = places.get(-1 if own.after is None else own.after)
            made = replace(made, arrival_ms=own.arrival_ms, after=after, delay_ms=own.delay_ms)
        found.append(made)
    return tuple(found)


def extrapolation_warnings(deployment: Deployment, trace: Trace) -> list[str]:
    """Return warnings of token counts and contexts beyond a device's table: its last slope was
    continued, or its last time held where that falls."""
    found, asked = list[str](), asked_rows(deployment, trace)
    for role, work, table, _, most in asked:
        if table.extrapolates(most):
            held = " with a fall, so its last time was held" if table.falls else ""
            found.append(
                f"{role}: {work} times were extrapolated to {most} tokens, the table ends at "
                f"{max(table.points)}{held}"
            )
    longest = cache_entries(deployment, 0)
    for role, work, table, *_ in asked:
        last = table.last_context
        if last is not None and last < longest:
            found.append(
                f"{role}: {work} times were extrapolated to a context of {longest} tokens, the "
                f"table ends at {last}"
            )
    return found


def _refuse_far(deployment: Deployment, trace: Trace) -> None:
    """Check that no table is asked beyond ``FAR`` times its end, or below its first row by as much.

    Raises:
        UserError: one is.
    """
    for role, work, table, least, most in asked_rows(deployment, trace):
        first, last = table.first, max(table.points)
        for tokens, end in ((least, f"begins at {first}"), (most, f"ends at {last}")):
            above = tokens > FAR * last and table.extrapolates(tokens)
            if above or FAR * tokens < first:
                raise UserError(
                    f"{deployment.path}: {role}: {work} times are asked for at {tokens} tokens, "
                    f"far outside their table, which {end}; give times up to there"
                )


def asked_rows(deployment: Deployment, trace: Trace) -> list[AskedRows]:
    """Return the tables that were asked, with the token counts."""
    sizes, found = Spans.of(trace.spans).columns.sizes, list[AskedRows]()
    for placed in deployment.roles.placed:
        times = placed.times
        tables: dict[Kind, TimeTable] = {
            "compute": times.stage,
            "draft": times.draft,
            "evaluate": times.evaluate,
        }
        for kind, table in tables.items():
            if size := sizes.get((placed.name, kind)):
                found.append(AskedRows(placed.name, kind, table, *size))
    return found
