"""What the uncertainty of inputs does to an answer: the best plans again, in drawn cases.

An input that is an estimate states a relative uncertainty u: its true value is within a factor of
1 + u of the stated one, with a confidence of 95 %. In a case each such input has a factor of its
own, drawn from the lognormal distribution of which this is so (all of them by a Latin hypercube,
so that few cases cover the range). Plans are compared within a case, so what all of them rest on
cancels out.

Law of this file: a case is simulated on the first runs' own texts; so what it changes is due to
the inputs, and not to other texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import exp, log, log1p, sqrt

import numpy as np
import numpy.typing as npt
from scipy import stats

from treepipe.core.errors import UserError
from treepipe.planner.candidates import Candidate
from treepipe.results.statistics import CONFIDENCE, Interval
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scale import Estimated, multiplied
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.sim.points import Point, simulate_points

RUNS = 2
"""Of each plan in each case."""
QUANTILE = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cases:
    """A plan of each schedule in the cases that the inputs allow.

    Attributes:
        inputs: relative uncertainty of each that is an estimate.
        values: by schedule, the goal's mean over the runs in each case.
        stated: by schedule, the same with all inputs as they are stated.
    """

    inputs: Mapping[Estimated, float]
    values: Mapping[ScheduleName, Floats]
    stated: Mapping[ScheduleName, float]

    def best_in(self, *, least: bool) -> dict[ScheduleName, float]:
        """The share of the cases in which each is the best. Args: ``least``: is best."""
        table = np.array(list(self.values.values()))
        best = table.argmin(axis=0) if least else table.argmax(axis=0)
        return {name: float(np.mean(best == row)) for row, name in enumerate(self.values)}

    def widened(self, schedule: ScheduleName, sampled: Interval) -> Interval:
        """The goal's interval by the runs and by the inputs; ``sampled``: by the runs alone."""
        return widened(sampled, self.values[schedule] / self.stated[schedule])

    def ratio_widened(
        self, above: ScheduleName, below: ScheduleName, sampled: Interval
    ) -> Interval:
        """The same of one plan's goal over another's, within the same cases."""
        ratios = self.values[above] / self.values[below]
        return widened(sampled, ratios * self.stated[below] / self.stated[above])


def widened(sampled: Interval, factors: Floats) -> Interval:
    """A positive estimate with the interval that both the sampling and the inputs leave it.

    Both spreads are of logarithms, are independent, and are taken to be normal.

    Args: ``factors``: what the inputs' cases multiply the estimate by.

    >>> both = widened(Interval(10.0, 10.0, 10.0), np.array([0.5, 2.0]))
    >>> round(both.low, 2), round(both.high, 2)
    (1.46, 68.3)
    """
    if sampled.mean <= 0:
        return sampled
    logs = np.log(factors)
    sampling = 0.0
    if sampled.low is not None and sampled.high is not None and sampled.low > 0:
        sampling = log(sampled.high / sampled.low) / 2
    half = sqrt(sampling**2 + (QUANTILE * float(logs.std(ddof=1))) ** 2)
    middle = log(sampled.mean) + float(logs.mean())
    return Interval(sampled.mean, exp(middle - half), exp(middle + half))


def in_cases(
    plans: Mapping[ScheduleName, Candidate],
    goal: str,
    cases: int,
    seed: int,
    say: Callable[[str, int], None],
) -> Cases | None:
    """Simulate plans in so many cases; None if no input of theirs is an estimate.

    Raises:
        UserError, RunError: as ``simulate_points``.
    """
    own = {name: resolve(plan.scenario).estimates for name, plan in plans.items()}
    inputs = {
        of: share
        for estimates in own.values()
        for of, share in estimates.items()
        if of.kind != "model"
    }
    if not inputs or cases < 2:
        return None
    drawn = [dict.fromkeys(inputs, 1.0), *_draw(inputs, cases, seed)]
    points = [
        Point(f"{name}/{case}", _in_case(plan.scenario, own[name], factors))
        for name, plan in plans.items()
        for case, factors in enumerate(drawn)
    ]
    try:
        outcomes = simulate_points(points, say, f"{len(plans)} plans in {cases} cases")
    except UserError as error:
        raise UserError(
            f"{error} (a case that the inputs' uncertainty allows; search.cases = 0 tries none)"
        ) from None
    means = [outcome.metrics[goal].mean for outcome in outcomes.values()]
    table = np.array(means).reshape(len(plans), len(drawn))
    stated = dict(zip(plans, table[:, 0].tolist(), strict=True))
    return Cases(inputs, dict(zip(plans, table[:, 1:], strict=True)), stated)


def _draw(inputs: Mapping[Estimated, float], cases: int, seed: int) -> list[dict[Estimated, float]]:
    """The factor of every input, per case."""
    places = stats.qmc.LatinHypercube(len(inputs), seed=seed).random(cases)
    normal = stats.norm.ppf(places)
    spreads = [log1p(share) / QUANTILE for share in inputs.values()]
    return [dict(zip(inputs, np.exp(row * spreads).tolist(), strict=True)) for row in normal]


def _in_case(
    scenario: Scenario, own: Collection[Estimated], factors: Mapping[Estimated, float]
) -> Scenario:
    """A plan's scenario with its inputs so much larger, on top of factors that it gives itself.

    Args: ``own``: the estimates that it names; factors on others are left out.
    """
    table = {"device": "devices", "link": "links", "acceptance": "misses"}
    mine = {
        f"{table[of.kind]}.{of.name}".rstrip("."): factor
        for of, factor in factors.items()
        if of in own
    }
    return scenario.with_(scale=multiplied(scenario.scale, mine), runs=RUNS)
