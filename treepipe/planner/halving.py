"""Successive halving: many candidates on few runs, the survivors on more (Jamieson and Talwalkar,
AISTATS 2016), on common random numbers.

Candidates are compared on the same runs, that is, on the same texts; first, where the goal is a
time between tokens, on the beginnings of the texts. The best candidate of every schedule reaches
the last rung, on its first runs alone if it drafts and is far behind the best one of all; an
unranked one lost to another of its own schedule, and is not on the front. Of candidates with equal
figures in all runs so far, of any schedule, one survives, and none that the runs so far tell from
the best one of all by far more than their chance. A candidate whose closed form is far behind the
best plan of the first ones, one of each schedule, is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import ceil, comb
from typing import TYPE_CHECKING

from treepipe.core.errors import UserError
from treepipe.core.schedules import systems
from treepipe.planner.candidates import (
    Candidate,
    Refused,
    count_combinations,
    find_candidates,
)
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
from treepipe.sim.points import Point, outcomes_of, started

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


BEHIND = 1.15
"""Factor on the best simulated figure of the first plans, beyond which a candidate's closed form
puts it off. A form leaves waiting out: of 69 plans of two clusters (``docs/planning.md``) simulated
figures were 0.98 to 3 times the forms'.
"""
BY_FORM = f"not simulated: its closed form is {BEHIND - 1:.0%} or more behind the first plans' best"
MANY = 100
"""Combinations from which the processes that simulate start before their plans are known."""
FAR_RUNS = 6
"""Runs, in the last rung, of a schedule's best candidate that is far behind."""
PAYS = 3  # a rung that costs so many times the runs that it can save is left out


@dataclass(frozen=True, slots=True)
class Rung:
    """The number of candidates simulated, and of runs of each; of ``new_tokens`` of each text, or
    of all (None); and of those ``far`` behind, on ``FAR_RUNS``."""

    candidates: int
    runs: int
    new_tokens: int | None = None
    far: int = 0

    def __str__(self) -> str:
        short = "" if self.new_tokens is None else f" of {self.new_tokens} tokens"
        far = f", {self.far} far behind on {FAR_RUNS}" if self.far else ""
        return f"{self.candidates} on {self.runs} runs{short}{far}"


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
        """Number of runs of every plan in the ranking that is not far behind."""
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
    with started() if count_combinations(cluster) > MANY else nullcontext():
        candidates, refused = find_candidates(cluster)
    runs, most, tokens = cluster.search.first_runs, cluster.runs, cluster.first_tokens
    rungs, whole, far = list[Rung](), list[Simulated](), list[Candidate]()
    while True:
        plans, rung = list[Simulated](), Rung(len(candidates), runs, tokens, len(far))
        try:
            for plan in (
                _simulated([*candidates, *far], cluster, rung, say)
                if rungs
                else _first(candidates, cluster, rung, say, refused)
            ):
                plans.append(plan)
        except KeyboardInterrupt:
            if not whole and not plans:
                raise
            rungs = rungs or [Rung(len(plans), runs, tokens)]
            raise SearchInterrupted(_answer(cluster, whole or plans, refused, rungs)) from None
        rungs.append(replace(rung, candidates=len(plans) - len(far)))
        if runs == most and tokens is None:
            return _answer(cluster, plans, refused, rungs)
        whole, (near, behind) = plans, _survivors(plans, cluster)
        candidates = [*near, *behind]
        runs, tokens = runs if tokens else runs * cluster.search.keep, None
        others = len(candidates) - len({each.schedule for each in candidates})
        while runs < most and len(candidates) * runs >= PAYS * others * (most - runs):
            runs *= cluster.search.keep
        runs = min(most, runs)
        if runs == most > FAR_RUNS:
            candidates, far = near, behind


def _first(
    candidates: Sequence[Candidate],
    cluster: Cluster,
    rung: Rung,
    say: Progress,
    refused: list[Refused],
) -> Iterator[Simulated]:
    """Tell the best candidate by the closed forms at once, then yield the first rung's plans: one
    of each schedule, the best by its form, and those that are not far behind the best of these by
    theirs; append the others to ``refused``."""
    goal, heads = metric(cluster.search.goal), dict[ScheduleName, Candidate]()
    order = sorted(candidates, key=lambda each: (not each.by_form, goal.cost(each.by_form or 0)))
    for each in order:
        heads.setdefault(each.schedule, each)
    if best := order[0].by_form:
        say(
            f"first answer, by closed forms that {sum(bool(e.by_form) for e in heads.values())} of "
            f"{len(heads)} systems have: {order[0].label}, {number(best)} {goal.in_unit}; short "
            f"runs of all systems follow, mostly up to half as long again",
            0,
        )
    costs = list[float]()
    for plan in _simulated([*heads.values()], cluster, rung, say):
        costs.append(goal.cost(plan.outcome.metrics[goal.name].mean))
        yield plan
    others = list[Candidate]()
    for each in (one for one in candidates if heads[one.schedule] is not one):
        form, least = abs(each.by_form or 0), abs(min(costs))
        known = form and least and not (cluster.search.limits.of_metrics or cluster.search.weighed)
        behind = (form / least if goal.less_is_better else least / form) if known else 0.0
        if behind <= BEHIND:
            others.append(each)
        else:
            refused.append(Refused(each.schedule, each.settings, each.partition, BY_FORM))
    if others:
        yield from _simulated(others, cluster, rung, say)


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
    candidates: Sequence[Candidate], cluster: Cluster, rung: Rung, say: Progress
) -> Iterator[Simulated]:
    """Yield plans as they are simulated, and tell the best so far."""
    goal, short = metric(cluster.search.goal), rung.new_tokens
    best: Simulated | None = None
    paths = rung.runs == cluster.runs and short is None
    changes = {"workload.new_tokens": short} if short else {}
    near, points = len(candidates) - rung.far, list[Point]()
    for i, each in enumerate(candidates):
        runs = rung.runs if i < near else FAR_RUNS
        points.append(Point(str(i), each.scenario.with_(runs=runs, **changes), paths=paths))
    say(f"plans: {replace(rung, candidates=near)}", len(points))
    for candidate, (_, outcome) in zip(candidates, outcomes_of(points), strict=True):
        plan = Simulated(candidate, outcome)
        _check_goals(plan, cluster)
        say("", 1)
        if best is None or _cost(plan, cluster) < _cost(best, cluster):
            best, mean = plan, number(outcome.metrics[goal.name].mean)
            say(f"best so far: {candidate.schedule}, {mean} {goal.in_unit}", 0)
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


def _survivors(
    plans: Sequence[Simulated], cluster: Cluster
) -> tuple[list[Candidate], list[Candidate]]:
    """Select the best plan of every schedule, others that may be the best of all, and those of
    the front; best first; apart are those that draft, are far behind and on no front."""
    search, by_schedule = cluster.search, dict[ScheduleName, list[Simulated]]()
    hopeless = _hopeless(plans, cluster)
    for plan in plans:
        by_schedule.setdefault(plan.candidate.schedule, []).append(plan)
    survivors, able = list[Simulated](), list[Simulated]()
    for group in by_schedule.values():
        ranked = _best_first(group, cluster)
        first, *others = ranked[: ceil(len(ranked) / search.keep)]
        survivors += [first, *(each for each in others if not hopeless(each))]
        able += [each for each in ranked if not misses(each.outcome, search.limits)]
    front = front_members(able, search.weighed) if search.weighed else []
    survivors += [each for each in front if each not in survivors]
    groups: tuple[list[Candidate], list[Candidate]] = [], []
    for each in _best_first(survivors, cluster):  # those that equal another schedule's stand for it
        drafts = systems()[each.candidate.schedule].drafts
        groups[not search.weighed and drafts and hopeless(each)].append(each.candidate)
    return groups


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
