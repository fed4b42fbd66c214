"""Successive halving: many candidates on few runs, the survivors on more (Jamieson and Talwalkar,
AISTATS 2016), on common random numbers.

Law of this file: candidates are compared on the same runs, that is, on the same texts. Every
schedule keeps its best candidates to the last rung, so that the ranking tells who wins by how much;
whatever is not ranked there was outrun by a candidate of its own schedule, and beaten in all goals
of the front that is looked for. Of candidates with the same figures in all runs so far one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, comb

from treepipe.core.errors import UserError
from treepipe.planner.candidates import Candidate, Refused, find_candidates
from treepipe.planner.cluster import Cluster
from treepipe.planner.front import Front, Weighed, front_members, pareto_front
from treepipe.planner.gaps import Runs, may_be_equal, relative_gap
from treepipe.planner.limits import Miss, misses
from treepipe.planner.uncertain import Cases, in_cases
from treepipe.results.critical_path import CriticalPath
from treepipe.results.metrics import GOALS, PERCENTILES, metric
from treepipe.results.statistics import Interval
from treepipe.scenario.schema import ScheduleName
from treepipe.sim.points import Outcome, Point, simulate_points

OF_ALL_TOGETHER = (
    "throughput_tokens_s",
    "goodput_requests_s",
    "usd_per_million_tokens",
    "joules_per_token",
)
"""Goals that another token at the same time brings nearer."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate of the last rung.

    Attributes:
        gap: its goal's relative difference to the best one's, on the same runs; None for the best,
            and where no plan keeps the limits.
        tied: it cannot be told from the best one (the gap's interval holds 0).
        misses: limits that it breaks, the worst first.
    """

    candidate: Candidate
    outcome: Outcome
    gap: Interval | None
    tied: bool
    misses: tuple[Miss, ...] = ()

    @property
    def path(self) -> CriticalPath:
        """The shares of a token's time by place, and by reason."""
        assert self.outcome.path is not None  # as in all outcomes of the last rung
        return self.outcome.path

    def binds(self, goal: str) -> str | None:
        """What the goal hangs on most: the place with the largest share of the critical path, and
        for goals of many requests together the busiest device. None where no time passes."""
        busy = self.outcome.utilization
        if goal in OF_ALL_TOGETHER and busy:
            return max(busy, key=lambda name: busy[name].mean)
        return self.path.binds


@dataclass(frozen=True, slots=True)
class Rung:
    """How many candidates were simulated, on how many runs each."""

    candidates: int
    runs: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
        ranking: best first, at least one; where no plan keeps the limits all of the last rung,
            by the limit that each misses most, nearest first.
        cases: the best plan of each schedule as inputs that are estimates vary; None if none is,
            or no plan keeps the limits.
    """

    cluster: Cluster
    ranking: Sequence[Ranked]
    refused: Sequence[Refused]
    rungs: Sequence[Rung]
    cases: Cases | None = None

    @property
    def front(self) -> Front:
        """The plans that no other one beats; empty where none keeps the limits."""
        plans = [Weighed(each.candidate, each.outcome) for each in self.ranking]
        return pareto_front(plans if self.feasible else [], self.cluster.search.weighed)

    @property
    def feasible(self) -> bool:
        """Whether a plan keeps the limits."""
        return not self.best.misses

    @property
    def runs(self) -> int:
        """How often every plan of the ranking was simulated."""
        return self.rungs[-1].runs

    @property
    def comparisons(self) -> int:
        """Pairs of plans in the ranking: whichever came out best, its intervals hold together."""
        return comb(len(self.ranking), 2) if self.feasible else 0

    @property
    def best(self) -> Ranked:
        return self.ranking[0]

    @property
    def best_of_each(self) -> dict[ScheduleName, Ranked]:
        """The first of every schedule, also where it is the same as another one's."""
        first: dict[ScheduleName, Ranked] = {}
        for each in self.ranking:
            for candidate in (each.candidate, *each.candidate.same):
                first.setdefault(candidate.schedule, replace(each, candidate=candidate))
        return first


def search(cluster: Cluster, say: Callable[[str, int], None]) -> Found:
    """Find the best plans for a cluster, and what its uncertain inputs leave of them.

    Raises:
        UserError, RunError: as ``rank``.
    """
    return with_cases(rank(cluster, say), say)


def with_cases(found: Found, say: Callable[[str, int], None]) -> Found:
    """Try the best plan of each schedule in the cases that the inputs allow.

    Raises:
        UserError, RunError: as ``in_cases``.
    """
    if not found.feasible:
        return found
    plans = {name: each.candidate for name, each in found.best_of_each.items()}
    search, seed = found.cluster.search, found.cluster.seed
    return replace(found, cases=in_cases(plans, search.goal, search.cases, seed, say))


def rank(cluster: Cluster, say: Callable[[str, int], None]) -> Found:
    """Find the best plans for a cluster.

    Raises:
        UserError: the file is wrong, or no plan is possible.
        RunError: a simulation came to a standstill.
    """
    alive, refused = find_candidates(cluster)
    rungs, runs, last = list[Rung](), cluster.search.first_runs, cluster.runs
    while True:
        rungs.append(Rung(len(alive), runs))
        outcomes = _simulated(alive, cluster, runs, say, paths=runs == last)
        if runs == last:
            break
        alive = _survivors(alive, outcomes, cluster)
        runs = min(last, runs * cluster.search.keep)
    last_rung = list(zip(alive, outcomes, strict=True))
    limits = cluster.search.limits
    kept = [pair for pair in last_rung if not misses(pair[1], limits)]
    if not kept:
        return Found(cluster, _by_nearness(last_rung, cluster), refused, rungs)
    for candidate, outcome in last_rung:
        for worst in misses(outcome, limits)[:1]:
            for each in (candidate, *candidate.same):
                chosen = each.schedule, each.settings, each.partition
                refused.append(Refused(*chosen, str(worst), worst.excess))
    return Found(cluster, _ranking(kept, cluster), refused, rungs)


def _simulated(
    candidates: Sequence[Candidate],
    cluster: Cluster,
    runs: int,
    say: Callable[[str, int], None],
    *,
    paths: bool,
) -> list[Outcome]:
    points = [
        Point(str(i), each.scenario.with_(runs=runs), paths=paths)
        for i, each in enumerate(candidates)
    ]
    title = f"{len(points)} plans, {runs} runs"
    outcomes = list(simulate_points(points, say, title).values())
    for candidate, outcome in zip(candidates, outcomes, strict=True):
        known = {**outcome.metrics, **candidate.prices}
        for goal in (cluster.search.goal, *cluster.search.weighed):
            key = "search.goal =" if goal == cluster.search.goal else "search.front:"
            if goal not in known:
                raise UserError(
                    f"{cluster.path}: key {key} {goal!r} does not apply: {candidate.label} has "
                    f"{', '.join(outcome.metrics) or 'no metric'}{_lacking(goal)}"
                )
    return outcomes


def _lacking(goal: str) -> str:
    """How many requests a percentile needs; nothing of other goals."""
    percentile = PERCENTILES.get(goal)
    if percentile is None or not percentile.of_requests:
        return ""
    return (
        f"; it takes {percentile.least} requests in all runs of a rung together "
        f"(workload.requests, search.first_runs)"
    )


def _cost(outcome: Outcome, cluster: Cluster) -> tuple[float, float]:
    """What is least for the best: how far the limits are missed (0: kept), then the goal."""
    goal, missed = cluster.search.goal, misses(outcome, cluster.search.limits)
    value = outcome.metrics[goal].mean
    return (
        missed[0].excess if missed else 0.0,
        value if metric(goal).less_is_better else -value,
    )


def _survivors(
    candidates: Sequence[Candidate], outcomes: Sequence[Outcome], cluster: Cluster
) -> list[Candidate]:
    """The best ones of every schedule, and those of the front that is looked for."""
    by_schedule: dict[ScheduleName, list[tuple[Candidate, Outcome]]] = {}
    for candidate, outcome in zip(candidates, outcomes, strict=True):
        by_schedule.setdefault(candidate.schedule, []).append((candidate, outcome))
    kept = []
    able = list[Weighed]()
    for each in by_schedule.values():
        plans = _told_apart(_sorted(each, cluster))
        kept += [candidate for candidate, _ in plans[: ceil(len(plans) / cluster.search.keep)]]
        able += [Weighed(*plan) for plan in plans if not misses(plan[1], cluster.search.limits)]
    if goals := cluster.search.weighed:
        front = [able[index].candidate for index in front_members(able, goals)]
        kept += [candidate for candidate in front if candidate not in kept]
    return kept


def _sorted(
    pairs: Sequence[tuple[Candidate, Outcome]], cluster: Cluster
) -> list[tuple[Candidate, Outcome]]:
    return sorted(pairs, key=lambda pair: _cost(pair[1], cluster))


def _ranking(kept: Sequence[tuple[Candidate, Outcome]], cluster: Cluster) -> list[Ranked]:
    """The ranking of plans that keep the limits."""
    goal = cluster.search.goal
    (candidate, best), *others = _told_apart(_sorted(kept, cluster))
    stated, pairs = Runs.of(best, goal), comb(len(others) + 1, 2)
    ranking = [Ranked(candidate, best, None, True)]
    for candidate, outcome in others:
        gap = relative_gap(stated, Runs.of(outcome, goal), pairs)
        ranking.append(Ranked(candidate, outcome, gap, may_be_equal(gap)))
    return ranking


def _by_nearness(broken: Sequence[tuple[Candidate, Outcome]], cluster: Cluster) -> list[Ranked]:
    """The ranking of plans that all break a limit."""
    return [
        Ranked(candidate, outcome, None, False, misses(outcome, cluster.search.limits))
        for candidate, outcome in _told_apart(_sorted(broken, cluster))
    ]


def _told_apart(
    pairs: Sequence[tuple[Candidate, Outcome]],
) -> list[tuple[Candidate, Outcome]]:
    """Plans in their order, those of the same figures as one: the simplest of them."""
    groups: dict[object, list[tuple[Candidate, Outcome]]] = {}
    for candidate, outcome in pairs:
        groups.setdefault(_figures(candidate, outcome), []).append((candidate, outcome))
    found = []
    for group in groups.values():
        (first, outcome), *others = sorted(group, key=lambda pair: pair[0].parameters)
        same = [*first.same, *(each for other, _ in others for each in (other, *other.same))]
        found.append((replace(first, same=tuple(same)), outcome))
    return found


def _figures(candidate: Candidate, outcome: Outcome) -> object:
    """All that a plan can be weighed by, in every run."""
    return (
        tuple(
            (goal, *(f"{value:.9g}" for value in outcome.observations.get(goal, ())))
            for goal in GOALS
        ),
        tuple(candidate.prices.items()),
    )
