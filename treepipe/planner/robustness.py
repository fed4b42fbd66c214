"""What becomes of the best plan where things go wrong: jitter, a slow device, a burst, a loss.

Law of this file: every case is the plan's own scenario with one thing wrong, on the ranking's runs
and texts; of cases that differ in the device alone the worst is told, found on few of these runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, ClassVar, TypeAlias

from treepipe.planner.analysis import Analysis
from treepipe.planner.gaps import Runs, relative_change, shown, shown_interval
from treepipe.planner.halving import Found
from treepipe.profiles.library import resolve_link
from treepipe.results.metrics import in_words, metric
from treepipe.results.sheet import Sheet, figures, words
from treepipe.scenario.distributions import ArrivalTrace
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scale import multiplied, named_links
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome, Point, simulate_points

SLOWER = 1.5
"""Of a slow device."""
BURSTY = 4.0
"""The coefficient of variation of the gaps between requests in a burst."""
DEFAULT = "links.default"
Say: TypeAlias = Callable[[str, int], None]
Case: TypeAlias = tuple[str, str | None, Scenario]
"""What goes wrong, whose device it is, and the scenario in which it does."""


@dataclass(frozen=True, slots=True)
class StressCase:
    """What one thing that goes wrong does to the goal.

    Attributes:
        case: in words.
        worker: whose device it is; None where it is nobody's.
        change: relative, of the goal.
        low: end of its 95 % interval, over the paired runs and for this case alone; None where the
            runs cannot be paired.
        high: its other end.
    """

    case: str
    worker: str | None
    change: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class RobustnessAnalysis(Analysis):
    """``--robust``: the best plan with one thing wrong."""

    cases: Sequence[StressCase] = ()
    heading: ClassVar[str] = "Where things go wrong"

    @classmethod
    def run(cls, found: Found, say: Say) -> RobustnessAnalysis:
        return cls(stress_cases(found, say))

    def as_dict(self) -> dict[str, Any]:
        return {"robustness": [asdict(each) for each in self.cases]}

    def tables(self, found: Found) -> list[Sheet]:
        """A row per case with what it does to the goal."""
        if not self.cases:
            return []
        goal, plan = in_words(found.cluster.search.goal), found.best.candidate.label
        title = f"{plan}: {goal} where things go wrong ({found.runs} paired runs)"
        columns = [*words("what", "worst at"), *figures("change", "95 % interval")]
        sheet = Sheet("", title, columns)
        for each in self.cases:
            interval = shown_interval(each.low, each.high)
            sheet.add(each.case, each.worker or "", shown(each.change), interval)
        return [sheet]


def stress_cases(found: Found, say: Say) -> list[StressCase]:
    """What each thing that goes wrong does to the best plan; none if no plan is feasible.

    Raises:
        UserError: a case is refused.
        RunError: as ``simulate_points``.
    """
    if not found.feasible:
        return []
    goal, best = found.cluster.search.goal, found.best
    told = _worst([*_cases(best.candidate.scenario, found)], found, say)
    wrong = list[StressCase]()
    for (case, worker, _), outcome in zip(
        told, _simulated(told, found, found.runs, say), strict=True
    ):
        change = relative_change(Runs.of(best.outcome, goal), Runs.of(outcome, goal))
        wrong.append(StressCase(case, worker, change.mean, change.low, change.high))
    return wrong


def _worst(told: Sequence[Case], found: Found, say: Say) -> list[Case]:
    """The worst of cases that differ in the device alone, by the first rung's runs."""
    goal = found.cluster.search.goal
    sign = 1 if metric(goal).less_is_better else -1
    seen = _simulated(told, found, found.cluster.search.first_runs, say)
    by_case: dict[str, list[tuple[float, Case]]] = {}
    for case, outcome in zip(told, seen, strict=True):
        by_case.setdefault(case[0], []).append((sign * outcome.metrics[goal].mean, case))
    return [max(each, key=lambda pair: pair[0])[1] for each in by_case.values()]


def _simulated(told: Sequence[Case], found: Found, runs: int, say: Say) -> list[Outcome]:
    points = [
        Point(f"{case} {worker}", scenario.with_(runs=runs)) for case, worker, scenario in told
    ]
    title = f"best plan, {len(told)} cases, {runs} runs"
    return [*simulate_points(points, say, title).values()]


def _cases(plan: Scenario, found: Found) -> Iterator[Case]:
    yield "jitter as large as latencies", None, plan.with_(**_jitter(plan))
    arrivals = plan.workload.arrivals
    if not isinstance(arrivals, (ArrivalTrace, type(None))):
        bursty = {"process": "gamma", "rate_per_s": arrivals.rate_per_s, "cv": BURSTY}
        yield (
            f"arrivals in bursts (cv {BURSTY:g})",
            None,
            plan.with_(**{"workload.arrivals": bursty}),
        )
    roles = resolve(plan).devices
    for role in roles:
        table = multiplied(plan.scale, {f"roles.{role}": SLOWER})
        yield f"a device {SLOWER:g} times as slow", role, plan.with_(scale=table)
    faults, at_ms = found.cluster.faults, _halfway_ms(plan, found)
    for role in roles:
        lost = {
            **faults.model_dump(
                include={"timeout_ms", "restart_ms", "read_mib_s"}, exclude_unset=True
            ),
            "spares": 1,
            "inject": [{"worker": role, "kind": "cut", "at_ms": at_ms}],
        }
        yield "a device lost halfway, with a spare", role, plan.with_(faults=lost)


def _jitter(plan: Scenario) -> dict[str, Any]:
    """Keys by which every link's messages are late at random, on the scale of its latency."""
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


def _halfway_ms(plan: Scenario, found: Found) -> float:
    """The middle of a run, as far as it can be told beforehand."""
    workload = plan.workload
    if not isinstance(workload.arrivals, (ArrivalTrace, type(None))):
        return 500.0 * workload.requests / workload.arrivals.rate_per_s
    rounds = ceil(workload.requests / workload.concurrency)
    return rounds * found.best.outcome.metrics["request_latency_ms"].mean / 2
