"""Robustness analysis: the best plan's goal under jitter, a slow device, a burst, or a loss, one at
a time, on the ranking's runs and texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, TypeAlias

from treepipe.planner.analysis import Finding
from treepipe.planner.gaps import Runs, relative_change, shown, shown_interval
from treepipe.planner.halving import SearchResult
from treepipe.planner.sensitivity import RATE
from treepipe.profiles.library import resolve_link
from treepipe.progress import Progress
from treepipe.results.metrics import metric
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.statistics import Fixed, Interval
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scale import multiplied, named_links
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome, Point, simulate_points

SLOWER = 1.5
"""Factor on the times of a slow device."""
BURSTY = 4.0
"""Coefficient of variation of the gaps between requests in a burst."""
DEFAULT = "links.default"
Case: TypeAlias = tuple[str, str | None, Scenario]
"""Description of a fault, the device it affects, and the scenario that contains it."""


@dataclass(frozen=True, slots=True)
class StressCase:
    """The effect of one fault on the goal.

    Attributes:
        case: description in words.
        worker: the affected device; None if the fault affects no single device.
        change: relative change of the goal.
        low, high, fixed: its 95 % interval, over the paired runs and for this case alone, as in
            ``Interval``.
    """

    case: str
    worker: str | None
    change: float
    low: float | None
    high: float | None
    fixed: Fixed = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class StressCases(Finding):
    """The effects of faults on the best plan, one at a time."""

    cases: Sequence[StressCase] = ()

    @classmethod
    def run(cls, result: SearchResult, say: Progress, given: Sequence[str] = ()) -> StressCases:
        return cls(stress_cases(result, say))

    def as_dict(self) -> dict[str, Any]:
        rows = [asdict(each) for each in self.cases]
        return {"robustness": [{k: v for k, v in row.items() if k != "fixed"} for row in rows]}

    def tables(self, result: SearchResult) -> list[Sheet]:
        if not self.cases:
            return []
        goal, plan = result.goal.in_words, result.winner.candidate.label
        title = f"{plan}: {goal} where things go wrong ({result.runs} paired runs)"
        sheet = Sheet(title, [*words("what", "worst at"), *figures("change", "95 % interval")])
        for each in self.cases:
            interval = shown_interval(Interval(each.change, each.low, each.high, each.fixed))
            sheet.add(each.case, each.worker or "", shown(each.change), interval)
        return [sheet.filled]


def stress_cases(result: SearchResult, say: Progress) -> list[StressCase]:
    """Simulate the best plan with each fault; empty if no plan is feasible.

    Of cases that differ in the device alone the worst is kept, by the first rung's runs.

    Raises:
        UserError: the scenario rejects a case.
        RunError: see ``simulate_points``.
    """
    if not result.feasible:
        return []
    search, best = result.cluster.search, result.winner
    cases, worst = list(_cases(best.candidate.scenario, result)), dict[str, tuple[float, Case]]()
    for case, outcome in zip(cases, _simulated(cases, search.first_runs, say), strict=True):
        cost = metric(search.goal).cost(outcome.metrics[search.goal].mean)
        if case[0] not in worst or cost > worst[case[0]][0]:
            worst[case[0]] = cost, case
    kept = [case for _, case in worst.values()]
    stated, rows = Runs.of(best.outcome, search.goal), list[StressCase]()
    for (what, worker, _), outcome in zip(kept, _simulated(kept, result.runs, say), strict=True):
        change = relative_change(stated, Runs.of(outcome, search.goal))
        ends = change.low, change.high, change.fixed
        rows.append(StressCase(what, worker, change.mean, *ends))
    return rows


def _simulated(cases: Sequence[Case], runs: int, say: Progress) -> list[Outcome]:
    points = [
        Point(f"{case} {worker}", scenario.with_(runs=runs)) for case, worker, scenario in cases
    ]
    title = f"best plan, {len(cases)} cases, {runs} runs"
    return [*simulate_points(points, say, title).values()]


def _cases(plan: Scenario, result: SearchResult) -> Iterator[Case]:
    yield "jitter as large as latencies", None, plan.with_(**_jitter(plan))
    if (rate := plan.number_at(RATE)) is not None:
        bursty = {"process": "gamma", "rate_per_s": rate, "cv": BURSTY}
        in_bursts = plan.with_(**{"workload.arrivals": bursty})
        yield f"arrivals in bursts (cv {BURSTY:g})", None, in_bursts
    roles = resolve(plan).roles.devices
    for role in roles:
        table = multiplied(plan.scale, {f"roles.{role}": SLOWER})
        yield f"a device {SLOWER:g} times as slow", role, plan.with_(scale=table)
    read = {"timeout_ms", "restart_ms"}
    faults = result.cluster.faults.model_dump(include=read, exclude_unset=True)
    at_ms = _halfway_ms(plan, result)
    for role in roles:
        inject = [{"worker": role, "kind": "cut", "at_ms": at_ms}]
        lost = {**faults, "spares": 1, "inject": inject}
        yield "a device lost halfway, with a spare", role, plan.with_(faults=lost)


def _jitter(plan: Scenario) -> dict[str, Any]:
    """Return keys that add jitter to every link, with the link's latency as its scale."""
    changes = dict[str, Any]()
    for key, link in named_links(plan.links).items():
        known = resolve_link(link, f"{plan.path}: key {key}", plan.path.parent)
        scale = (known.jitter_ms or 0.0) + known.latency_ms
        if isinstance(link, str) and key.count(".") == 1:
            changes[key] = {"profile": link, "jitter_ms": scale}
        elif key == DEFAULT and "default" not in plan.links.model_fields_set:
            changes[key] = {"latency_ms": known.latency_ms, "jitter_ms": scale}
        elif known.latency_ms:
            changes[f"{key}.jitter_ms"] = scale
    return changes


def _halfway_ms(plan: Scenario, result: SearchResult) -> float:
    """Estimate the middle of a run."""
    workload = plan.workload
    if (rate := plan.number_at(RATE)) is not None:
        return 500.0 * workload.requests / rate
    rounds = ceil(workload.requests / workload.concurrency)
    return rounds * result.winner.outcome.metrics["request_latency_ms"].mean / 2
