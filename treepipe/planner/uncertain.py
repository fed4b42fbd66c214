"""Uncertainty of inputs, propagated to an answer: the best plans simulated in a few cases.

Plans are compared within a case, on the first runs' own texts, so that common errors cancel. A few
cases, at one standard deviation of every input, tell the slopes of the goal's logarithm, and these
its value in the drawn cases. A goal with a threshold, or of requests that queue, has no such
slopes: there each drawn case is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from treepipe.core.errors import UserError
from treepipe.planner.cluster import OF_PROMISES, Cluster
from treepipe.planner.drawn import (
    FEWEST_CASES,
    QUANTILE,
    Floats,
    drawn_levels,
    factors_at,
    in_case,
    orthogonal_levels,
)
from treepipe.progress import Progress
from treepipe.results.metric import Metric
from treepipe.results.statistics import ROUNDING, Interval
from treepipe.scenario.scale import Estimated
from treepipe.scenario.schema import ScheduleName
from treepipe.sim.points import Point, simulate_points

if TYPE_CHECKING:
    from treepipe.planner.candidates import Candidate
    from treepipe.planner.gaps import Simulated


@dataclass(frozen=True, slots=True)
class Cases:
    """A plan of each schedule in cases drawn from the inputs' uncertainty.

    Attributes:
        inputs: relative uncertainty of each estimated input.
        values: by schedule, the goal's mean over the runs in each drawn case, on the first tokens
            of the texts (``Cluster.first_tokens``).
        stated: by schedule, the same with all inputs as stated.
        simulated: number of cases in which the plans were simulated.
        levels: [cases, inputs] of the drawn cases, in standard deviations of an input's logarithm.
    """

    inputs: Mapping[Estimated, float]
    values: Mapping[ScheduleName, Floats]
    stated: Mapping[ScheduleName, float]
    simulated: int
    levels: Floats

    @property
    def count(self) -> int:
        return len(next(iter(self.values.values())))

    def best_in(self, goal: Metric) -> dict[ScheduleName, float]:
        """Return the share of the cases in which each schedule is best."""
        table = np.array(list(self.values.values()))
        best = table.argmin(axis=0) if goal.less_is_better else table.argmax(axis=0)
        return {name: float(np.mean(best == row)) for row, name in enumerate(self.values)}

    def widened(self, schedule: ScheduleName, sampled: Interval) -> Interval:
        """Widen ``sampled``, the goal's interval over the runs, by the inputs' uncertainty."""
        return widened(sampled, self.values[schedule] / self.stated[schedule])

    def ratio_widened(
        self, above: ScheduleName, below: ScheduleName, sampled: Interval
    ) -> Interval:
        """Widen the interval of the ratio of two plans' goals, compared within each case."""
        ratios = self.values[above] / self.values[below]
        return widened(sampled, ratios * self.stated[below] / self.stated[above])


def widened(sampled: Interval, factors: Floats) -> Interval:
    """Widen the interval of a positive estimate by the factors that the inputs put on it, one per
    case; fewer than ``FEWEST_CASES`` of them give no interval. The spreads of sampling and of
    inputs are of logarithms, and are assumed independent and normal.

    >>> both = widened(Interval(10.0, 9.0, 11.1), np.array([0.5, 2.0] * 10))
    >>> round(both.low, 2), round(both.high, 2)
    (2.47, 40.46)
    """
    if sampled.mean <= 0:
        return sampled
    if len(factors) < FEWEST_CASES:
        return Interval(sampled.mean, None, None)
    logs = np.log(factors)
    sampling = 0.0
    if sampled.low is not None and sampled.high is not None and sampled.low > 0:
        sampling = log(sampled.high / sampled.low) / 2
    spread = QUANTILE * float(logs.std(ddof=1))
    if spread <= ROUNDING:  # no input moves it
        return sampled
    half = sqrt(sampling**2 + spread**2)
    middle = log(sampled.mean) + float(logs.mean())
    return Interval(sampled.mean, exp(middle - half), exp(middle + half))


def in_cases(
    simulated: Mapping[ScheduleName, Simulated], cluster: Cluster, say: Progress
) -> Cases | None:
    """Simulate plans in the cluster's cases; None if no input is an estimate.

    Raises:
        UserError, RunError: see ``simulate_points``.
    """
    goal, cases, seed = cluster.search.goal, cluster.search.cases, cluster.seed
    plans = {name: plan.candidate for name, plan in simulated.items()}
    own = {name: plan.outcome.estimates for name, plan in simulated.items()}
    inputs = {
        of: share
        for estimates in own.values()
        for of, share in estimates.items()
        if of.kind != "model"
    }
    if not inputs or cases < 2:
        return None
    levels, few = drawn_levels(len(inputs), cases, seed), orthogonal_levels(len(inputs))
    if cluster.workload.arriving or goal in OF_PROMISES or cases <= len(few):
        few = levels
    drawn = [dict.fromkeys(inputs, 1.0), *factors_at(inputs, few)]
    short = {"workload.new_tokens": cluster.first_tokens} if cluster.first_tokens else {}
    like = _like(plans)
    apart = [name for name in plans if like[name] == name]
    points = [
        Point(f"{name}/{case}", in_case(scenario, own[name], factors))
        for name, scenario in [(each, plans[each].scenario.with_(**short)) for each in apart]
        for case, factors in enumerate(drawn)
    ]
    try:
        outcomes = simulate_points(points, say, f"{len(apart)} plans in {len(few)} cases")
    except UserError as error:
        raise UserError(
            f"{error} (a case that the inputs' uncertainty allows; search.cases = 0 tries none)"
        ) from None
    means = [outcome.metrics[goal].mean for outcome in outcomes.values()]
    rows = dict(zip(apart, np.array(means).reshape(len(apart), len(drawn)), strict=True))
    table = {name: rows[like[name]] for name in plans}
    stated = {name: float(row[0]) for name, row in table.items()}
    values = {name: row[1:] for name, row in table.items()}
    if few is not levels:
        logs = {name: np.log(each) for name, each in values.items()}
        slopes = {name: few.T @ each / len(few) for name, each in logs.items()}
        values = {n: np.exp(each.mean() + levels @ slopes[n]) for n, each in logs.items()}
    return Cases(inputs, values, stated, len(few), levels)


def _like(plans: Mapping[ScheduleName, Candidate]) -> dict[ScheduleName, ScheduleName]:
    """Return by schedule the first plan with all its figures, which stands for it in the cases."""
    found = {name: name for name in plans}
    for name, plan in plans.items():
        equal = [each.schedule for each in plan.same if plans.get(each.schedule) is each]
        found |= dict.fromkeys(equal, name)
    return found
