"""Successive halving: many candidates on few runs, the survivors on more (Jamieson and Talwalkar,
AISTATS 2016), on common random numbers.

Candidates are compared on the same runs, that is, on the same texts. The best candidate of every
schedule reaches the last rung; an unranked one lost to another of its own schedule, and is not
on the front. Of candidates with equal figures in all runs so far one survives, and none that the
runs so far tell from the best one of all by far more than their chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import ceil, comb
from typing import TYPE_CHECKING

from treepipe.core.errors import UserError
from treepipe.planner.candidates import Candidate, Refused, find_candidates
from treepipe.planner.cluster import Cluster
from treepipe.planner.front import Front, front_figure, front_members, pareto_front
from treepipe.planner.gaps import Simulated, far_behind, may_be_equal, relative_gap
from treepipe.planner.limits import Miss, misses
from treepipe.planner.uncertain import Cases
from treepipe.progress import Progress
from treepipe.results.critical_path import CriticalPath
from treepipe.results.metric import Metric
from treepipe.results.metrics import GOALS, PERCENTILES, metric
from treepipe.results.statistics import Interval
from treepipe.results.units import number
from treepipe.scenario.schema import ScheduleName
from treepipe.sim.points import Point, outcomes_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_ALL_TOGETHER = (
    "throughput_tokens_s",
    "goodput_requests_s",
    "usd_per_million_tokens",
    "joules_per_token",
)
"""Goals of all requests together, which the busiest device bounds."""


@dataclass(frozen=True, slots=True)
class Ranked(Simulated):
    """A plan of the last rung.

    Attributes:
        gap: relative difference of its goal to the best one's, on the same runs; None for the best,
            and if no plan keeps the limits.
        tied: whether it is indistinguishable from the best one (the gap's interval holds 0).
        misses: the limits that it breaks, the worst first.
    """

    gap: Interval | None
    tied: bool
    misses: tuple[Miss, ...] = ()

    @property
    def label(self) -> str:
        return self.candidate.label

    @property
    def missed(self) -> str:
        """The broken limits in words."""
        return " and ".join(map(str, self.misses))

    @property
    def path(self) -> CriticalPath:
        """The shares of a token's time by place and by reason."""
        return self.outcome.path or CriticalPath({}, {})  # earlier rungs record none

    def binds(self, goal: str) -> str | None:
        """Return the bottleneck: the place with the largest share of the critical path, or for
        goals of many requests the busiest device. None if no time passes."""
        busy = self.outcome.utilization
        if goal in OF_ALL_TOGETHER and busy:
            return max(busy, key=lambda name: busy[name].mean)
        return self.path.binds


@dataclass(frozen=True, slots=True)
class Rung:
    """The number of candidates simulated, and of runs of each."""

    candidates: int
    runs: int


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        ranking: best first, at least one; if no plan keeps the limits, all of the last rung, sorted
            by the limit that each misses most, nearest first.
        cases: the best plan of each schedule as uncertain inputs vary; None if no input is
            uncertain, no plan keeps the limits, or the search was interrupted.
        interrupted: whether Ctrl-C ended the search: this is the best that was known then.
    """

    cluster: Cluster
    ranking: Sequence[Ranked]
    refused: Sequence[Refused]
    rungs: Sequence[Rung]
    cases: Cases | None = None
    interrupted: bool = False

    @property
    def goal(self) -> Metric:
        return metric(self.cluster.search.goal)

    def value(self, ranked: Ranked) -> Interval:
        """Return the goal of a plan."""
        return ranked.outcome.metrics[self.cluster.search.goal]

    @property
    def front(self) -> Front:
        """The plans that no other one beats; empty if none keeps the limits."""
        return pareto_front(self.ranking if self.feasible else [], self.cluster.search.weighed)

    def front_figure(self) -> Figure:
        """Draw the front: every plan by the goal and each other goal."""
        title = f"{self.cluster.name}: plans by their places in the ranking ({self.runs} runs)"
        return front_figure(self.front, self.goal.name, title)

    @property
    def feasible(self) -> bool:
        """Whether a plan keeps the limits."""
        return not self.winner.misses

    @property
    def runs(self) -> int:
        """Number of runs of every plan in the ranking."""
        return self.rungs[-1].runs

    @property
    def comparisons(self) -> int:
        """Number of pairs of plans, for intervals that hold together whichever plan is best."""
        return comb(len(self.ranking), 2) if self.feasible else 0

    @property
    def winner(self) -> Ranked:
        """The best plan; if none keeps the limits, the one nearest to them."""
        return self.ranking[0]

    @property
    def best_of_each(self) -> dict[ScheduleName, Ranked]:
        """The first plan of every schedule, even if it equals another schedule's."""
        first: dict[ScheduleName, Ranked] = {}
        for each in self.ranking:
            for candidate in (each.candidate, *each.candidate.same):
                first.setdefault(candidate.schedule, replace(each, candidate=candidate))
        return first


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a search that has simulated some plans already; ``found`` is its result."""

    def __init__(self, found: SearchResult) -> None:
        super().__init__()
        self.found = replace(found, interrupted=True)


def rank(cluster: Cluster, say: Progress) -> SearchResult:
    """Find the best plans for a cluster.

    Raises:
        UserError: the file is wrong, or no plan is possible.
        RunError: a simulation came to a standstill.
        SearchInterrupted: Ctrl-C, once a plan is simulated.
    """
    candidates, refused = find_candidates(cluster)
    candidates, runs = _by_turns(candidates), cluster.search.first_runs
    rungs, whole = list[Rung](), list[Simulated]()
    while True:
        plans = list[Simulated]()
        try:
            for plan in _simulated(candidates, cluster, runs, say):
                plans.append(plan)
        except KeyboardInterrupt:
            if not whole and not plans:
                raise
            rungs = rungs or [Rung(len(plans), runs)]
            raise SearchInterrupted(_answer(cluster, whole or plans, refused, rungs)) from None
        rungs.append(Rung(len(candidates), runs))
        if runs == cluster.runs:
            return _answer(cluster, plans, refused, rungs)
        whole, candidates = plans, _survivors(plans, cluster)
        runs = min(cluster.runs, runs * cluster.search.keep)


def _by_turns(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Order candidates so that the first of each schedule come first, then the second."""
    groups: dict[ScheduleName, list[Candidate]] = {}
    for each in candidates:
        groups.setdefault(each.schedule, []).append(each)
    return [each for turn in zip_longest(*groups.values()) for each in turn if each is not None]


def _answer(
    cluster: Cluster,
    plans: Sequence[Simulated],
    refused: Sequence[Refused],
    rungs: Sequence[Rung],
) -> SearchResult:
    """Rank plans, and refuse those that break a limit, if there are others."""
    limits, refused = cluster.search.limits, list(refused)
    kept = [plan for plan in plans if not misses(plan.outcome, limits)]
    for plan in plans if kept else ():
        for worst in misses(plan.outcome, limits)[:1]:
            refused += [
                Refused(each.schedule, each.settings, each.partition, str(worst), worst.excess)
                for each in (plan.candidate, *plan.candidate.same)
            ]
    return SearchResult(cluster, _ranking(kept or plans, cluster), refused, rungs)


def _simulated(
    candidates: Sequence[Candidate], cluster: Cluster, runs: int, say: Progress
) -> Iterator[Simulated]:
    """Yield plans as they are simulated, and tell the best so far."""
    goal = metric(cluster.search.goal)
    best: Simulated | None = None
    paths = runs == cluster.runs
    points = [
        Point(str(i), each.scenario.with_(runs=runs), paths=paths)
        for i, each in enumerate(candidates)
    ]
    say(f"{len(points)} plans, {runs} runs", len(points))
    for candidate, (_, outcome) in zip(candidates, outcomes_of(points), strict=True):
        plan = Simulated(candidate, outcome)
        _check_goals(plan, cluster)
        say("", 1)
        if best is None or _cost(plan, cluster) < _cost(best, cluster):
            best, mean = plan, number(outcome.metrics[goal.name].mean)
            say(f"best so far: {candidate.schedule}, {mean} {goal.unit}", 0)
        yield plan


def _check_goals(plan: Simulated, cluster: Cluster) -> None:
    """Raise ``UserError`` if a plan lacks a figure that plans are compared by."""
    for goal in (cluster.search.goal, *cluster.search.weighed):
        if plan.value(goal) is None:
            key = "search.goal =" if goal == cluster.search.goal else "search.front:"
            raise UserError(
                f"{cluster.path}: key {key} {goal!r} does not apply: {plan.candidate.label} "
                f"has {', '.join(plan.outcome.metrics) or 'no metric'}{_lacking(goal)}"
            )


def _lacking(goal: str) -> str:
    """Say how many requests a percentile needs; empty for other goals."""
    percentile = PERCENTILES.get(goal)
    if percentile is None or not percentile.of_requests:
        return ""
    return (
        f"; it takes {percentile.least} requests in all runs of a rung together "
        f"(workload.requests, search.first_runs)"
    )


def _survivors(plans: Sequence[Simulated], cluster: Cluster) -> list[Candidate]:
    """Select the best plan of every schedule, others that may be the best of all, and those of
    the front; best first."""
    search, by_schedule = cluster.search, dict[ScheduleName, list[Simulated]]()
    hopeless = _hopeless(plans, cluster)
    for plan in plans:
        by_schedule.setdefault(plan.candidate.schedule, []).append(plan)
    kept, able = list[Simulated](), list[Simulated]()
    for group in by_schedule.values():
        ranked = _best_first(group, cluster)
        first, *others = ranked[: ceil(len(ranked) / search.keep)]
        kept += [first, *(each for each in others if not hopeless(each))]
        able += [each for each in ranked if not misses(each.outcome, search.limits)]
    front = front_members(able, search.weighed) if search.weighed else []
    kept += [each for each in front if each not in kept]
    return [each.candidate for each in sorted(kept, key=lambda each: _cost(each, cluster))]


def _hopeless(plans: Sequence[Simulated], cluster: Cluster) -> Callable[[Simulated], bool]:
    """Return a test of whether a plan is ``far_behind`` the best; none is if all break a limit."""
    goal, best = cluster.search.goal, min(plans, key=lambda each: _cost(each, cluster))
    if misses(best.outcome, cluster.search.limits):
        return lambda plan: False
    far = far_behind([each.runs(goal) for each in plans], best.runs(goal), metric(goal))
    return lambda plan: far(plan.runs(goal))


def _ranking(plans: Sequence[Simulated], cluster: Cluster) -> list[Ranked]:
    """Rank plans that all keep the limits, or all break one."""
    best, *others = ranked = _best_first(plans, cluster)
    if misses(best.outcome, cluster.search.limits):
        broken = [misses(each.outcome, cluster.search.limits) for each in ranked]
        pairs = zip(ranked, broken, strict=True)
        return [Ranked(each.candidate, each.outcome, None, False, own) for each, own in pairs]
    goal, comparisons = cluster.search.goal, comb(len(ranked), 2)
    ranking = [Ranked(best.candidate, best.outcome, None, True)]
    for each in others:
        gap = relative_gap(best.runs(goal), each.runs(goal), comparisons)
        ranking.append(Ranked(each.candidate, each.outcome, gap, may_be_equal(gap)))
    return ranking


def _best_first(plans: Sequence[Simulated], cluster: Cluster) -> list[Simulated]:
    """Sort plans by their excess over the limits (0: kept), then by the goal. Of plans with equal
    figures the simplest is kept."""
    groups: dict[object, list[Simulated]] = {}
    for plan in sorted(plans, key=lambda plan: _cost(plan, cluster)):
        groups.setdefault(_figures(plan), []).append(plan)
    distinct = []
    for group in groups.values():
        first, *others = sorted(group, key=lambda plan: plan.candidate.parameters)
        same = [c for other in others for c in (other.candidate, *other.candidate.same)]
        candidate = replace(first.candidate, same=(*first.candidate.same, *same))
        distinct.append(Simulated(candidate, first.outcome))
    return distinct


def _cost(plan: Simulated, cluster: Cluster) -> tuple[float, float]:
    """Return a plan's excess over the limits (0: kept) and its goal, by which plans are sorted."""
    goal, missed = metric(cluster.search.goal), misses(plan.outcome, cluster.search.limits)
    mean = plan.outcome.metrics[goal.name].mean
    return missed[0].excess if missed else 0.0, goal.cost(mean)


def _figures(plan: Simulated) -> object:
    """Return all figures that plans are compared by, in every run."""
    seen = plan.outcome.observations
    return (
        tuple((goal, *(f"{value:.9g}" for value in seen.get(goal, ()))) for goal in GOALS),
        tuple(plan.candidate.prices.items()),
    )
