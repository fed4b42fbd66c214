"""Successive halving: many candidates on few runs, the survivors on more (Jamieson and Talwalkar,
AISTATS 2016), on common random numbers.

Law of this file: candidates are compared on the same runs, that is, on the same texts. Every
schedule keeps its best candidates to the last rung, so that the ranking tells who wins by how much;
whatever is not ranked there was outrun by a candidate of its own schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf

from treepipe.errors import UserError
from treepipe.metrics import range_of
from treepipe.scenario import ScheduleName
from treepipe.statistics import Interval, Paired
from treepipe.studies.planner.candidates import Candidate, Refused, find_candidates
from treepipe.studies.planner.cluster import ClusterFile
from treepipe.studies.planner.limits import broken_limit, is_least_best
from treepipe.studies.points import Outcome, Point, simulate_points


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate of the last rung.

    Attributes:
        gap: its goal's relative difference to the best one's, on the same runs; None for the best.
        tied: it cannot be told from the best one (the gap's 95 % interval holds 0).
    """

    candidate: Candidate
    outcome: Outcome
    gap: Interval | None
    tied: bool


@dataclass(frozen=True, slots=True)
class Rung:
    """How many candidates were simulated, on how many runs each."""

    candidates: int
    runs: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found. ``ranking``: best first, at least one."""

    file: ClusterFile
    ranking: Sequence[Ranked]
    refused: Sequence[Refused]
    rungs: Sequence[Rung]

    @property
    def best(self) -> Ranked:
        return self.ranking[0]

    @property
    def best_of_each(self) -> dict[ScheduleName, Ranked]:
        """The first of every schedule."""
        first: dict[ScheduleName, Ranked] = {}
        for each in self.ranking:
            first.setdefault(each.candidate.schedule, each)
        return first


def search(file: ClusterFile, say: Callable[[str, int], None]) -> Found:
    """Find the best plans for a cluster.

    Raises:
        UserError: the file is wrong, or no plan is possible within its limits.
        RunError: a simulation came to a standstill.
    """
    alive, refused = find_candidates(file)
    rungs, runs, last = list[Rung](), file.search.first_runs, file.cluster.runs
    while True:
        rungs.append(Rung(len(alive), runs))
        outcomes = _simulated(alive, file, runs, say)
        if runs == last:
            break
        alive = _survivors(alive, outcomes, file)
        runs = min(last, runs * file.search.keep)
    kept = []
    for candidate, outcome in zip(alive, outcomes, strict=True):
        reason = broken_limit(outcome, file.search.limits)
        if reason is None:
            kept.append((candidate, outcome))
        else:
            refused.append(
                Refused(candidate.schedule, candidate.settings, candidate.partition, reason)
            )
    if not kept:
        raise UserError(f"{file.path}: no plan keeps the limits: {refused[-1].reason}")
    return Found(file, _ranking(kept, file), refused, rungs)


def _simulated(
    candidates: Sequence[Candidate],
    file: ClusterFile,
    runs: int,
    say: Callable[[str, int], None],
) -> list[Outcome]:
    points = [
        Point(str(i), file.path, scenario=each.scenario.model_copy(update={"runs": runs}))
        for i, each in enumerate(candidates)
    ]
    outcomes = list(simulate_points(points, say, f"{len(points)} plans, {runs} runs").values())
    for candidate, outcome in zip(candidates, outcomes, strict=True):
        if file.search.goal not in outcome.metrics:
            raise UserError(
                f"{file.path}: key search.goal = {file.search.goal!r} does not apply: "
                f"{candidate.label} has {', '.join(outcome.metrics) or 'no metric'}"
            )
    return outcomes


def _cost(outcome: Outcome, file: ClusterFile) -> tuple[bool, float]:
    """What is least for the best: limits first, then the goal."""
    goal = file.search.goal
    value = outcome.metrics[goal].mean
    return (
        broken_limit(outcome, file.search.limits) is not None,
        value if is_least_best(goal) else -value,
    )


def _survivors(
    candidates: Sequence[Candidate], outcomes: Sequence[Outcome], file: ClusterFile
) -> list[Candidate]:
    """The best ones of every schedule."""
    by_schedule: dict[ScheduleName, list[tuple[Candidate, Outcome]]] = {}
    for candidate, outcome in zip(candidates, outcomes, strict=True):
        by_schedule.setdefault(candidate.schedule, []).append((candidate, outcome))
    kept = []
    for each in by_schedule.values():
        each.sort(key=lambda pair: _cost(pair[1], file))
        kept += [candidate for candidate, _ in each[: ceil(len(each) / file.search.keep)]]
    return kept


def _ranking(kept: list[tuple[Candidate, Outcome]], file: ClusterFile) -> list[Ranked]:
    goal = file.search.goal
    kept = sorted(kept, key=lambda pair: _cost(pair[1], file))
    (candidate, best), *others = kept
    ranking = [Ranked(candidate, best, None, True)]
    for candidate, outcome in others:
        ours, theirs = best.observations[goal], outcome.observations[goal]
        paired = Paired.of(ours, theirs, batches=False, within=range_of(goal))
        low, high = paired.difference.low, paired.difference.high
        tied = (-inf if low is None else low) <= 0 <= (inf if high is None else high)
        ranking.append(Ranked(candidate, outcome, paired.relative, tied))
    return ranking
