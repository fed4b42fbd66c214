"""Uncertainty of inputs, propagated to an answer: the best plans simulated in drawn cases.

An input that is an estimate states a relative uncertainty u: its true value is within a factor of 1
+ u of the stated one, with a confidence of 95 %. Each case multiplies every such input by a factor
from the corresponding lognormal distribution (drawn by a Latin hypercube, so that few cases cover
the range). Plans are compared within a case, on the first runs' own texts, so that common errors
cancel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import exp, log, log1p, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from treepipe.core.errors import UserError
from treepipe.planner.cluster import Cluster
from treepipe.progress import Progress
from treepipe.results.metric import Metric
from treepipe.results.statistics import CONFIDENCE, Interval
from treepipe.scenario.scale import Estimated, multiplied
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.sim.points import Point, simulate_points

if TYPE_CHECKING:
    from treepipe.planner.candidates import Candidate
    from treepipe.planner.gaps import Simulated

RUNS = 2
"""Runs of each plan in each case."""
FEWEST_CASES = 20
"""Fewest cases whose spread gives a range, and whose share is given in per cent: of 20 cases 95 %
are 19."""
QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cases:
    """A plan of each schedule in cases drawn from the inputs' uncertainty.

    Attributes:
        inputs: relative uncertainty of each estimated input.
        values: by schedule, the goal's mean over the runs in each case.
        stated: by schedule, the goal's mean with all inputs as stated.
    """

    inputs: Mapping[Estimated, float]
    values: Mapping[ScheduleName, Floats]
    stated: Mapping[ScheduleName, float]

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
    half = sqrt(sampling**2 + (QUANTILE * float(logs.std(ddof=1))) ** 2)
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
    drawn = [dict.fromkeys(inputs, 1.0), *drawn_factors(inputs, cases, seed)]
    like = _like(plans)
    apart = [name for name in plans if like[name] == name]
    points = [
        Point(f"{name}/{case}", in_case(plans[name].scenario, own[name], factors))
        for name in apart
        for case, factors in enumerate(drawn)
    ]
    try:
        outcomes = simulate_points(points, say, f"{len(apart)} plans in {cases} cases")
    except UserError as error:
        raise UserError(
            f"{error} (a case that the inputs' uncertainty allows; search.cases = 0 tries none)"
        ) from None
    means = [outcome.metrics[goal].mean for outcome in outcomes.values()]
    rows = dict(zip(apart, np.array(means).reshape(len(apart), len(drawn)), strict=True))
    table = {name: rows[like[name]] for name in plans}
    stated = {name: float(row[0]) for name, row in table.items()}
    return Cases(inputs, {name: row[1:] for name, row in table.items()}, stated)


def _like(plans: Mapping[ScheduleName, Candidate]) -> dict[ScheduleName, ScheduleName]:
    """Return by schedule the first plan with all its figures, which stands for it in the cases."""
    found = {name: name for name in plans}
    for name, plan in plans.items():
        equal = [each.schedule for each in plan.same if plans.get(each.schedule) is each]
        found |= dict.fromkeys(equal, name)
    return found


def drawn_factors(
    inputs: Mapping[Estimated, float], cases: int, seed: int
) -> list[dict[Estimated, float]]:
    """Draw the factor of every input for each case, from a Latin hypercube (McKay, Beckman and
    Conover, *Technometrics* 1979)."""
    rng = np.random.default_rng(seed)
    strata = rng.permuted(np.tile(np.arange(cases), (len(inputs), 1)), axis=1)
    shares = ((strata + rng.random(strata.shape)) / cases).T
    normal = NormalDist()
    spreads = [log1p(share) / QUANTILE for share in inputs.values()]
    return [
        {
            of: exp(spread * normal.inv_cdf(at))
            for of, spread, at in zip(inputs, spreads, row, strict=True)
        }
        for row in shares.tolist()
    ]


def in_case(
    scenario: Scenario, own: Collection[Estimated], factors: Mapping[Estimated, float]
) -> Scenario:
    """Multiply those inputs that the plan's scenario uses (``own``) by their factors, on top of the
    scenario's own factors. As stated it is the scenario of a search's first rung, if that has as
    many runs, whose outcome is remembered."""
    table = {"device": "devices", "link": "links", "acceptance": "misses", "rows": "rows"}
    mine = {
        f"{table[of.kind]}.{of.name}".rstrip("."): factor
        for of, factor in factors.items()
        if of in own and factor != 1
    }
    if not mine:
        return scenario.with_(runs=RUNS)
    return scenario.with_(scale=multiplied(scenario.scale, mine), runs=RUNS)
