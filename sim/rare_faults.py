"""Faults that are too rare for a run: runs without one and runs with one, and how often each is.

Faults at a rate come as a Poisson process, of rate R in all while nobody is down. So a run of
length T is without one with the probability exp(-R T), and then it is the undisturbed run; else it
is a run whose first fault comes before T, and faults behind it come as they do. A figure's sums are
those of both kinds, weighed by these probabilities, which is exact for any rate (stratified
sampling: Cochran, Sampling Techniques (1977), section 5.3).

Law of this file: both kinds draw the same texts, and T is the same in all runs: the longest
undisturbed one's. (A first fault behind the end of a shorter run leaves that as it is.)
"""

from __future__ import annotations

from math import expm1

from treepipe.results.estimates import Disturbed
from treepipe.results.trace import Trace
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict


def predict_rare(
    scenario: Scenario, *, paths: bool = False
) -> tuple[list[Trace], Disturbed | None]:
    """The runs without a fault at a rate, and those with one; None where the scenario has no rate.

    Raises:
        UserError, RunError: as ``predict``.
    """
    certain = tuple(each for each in scenario.faults.inject if each.rate_per_hour is None)
    if len(certain) == len(scenario.faults.inject):
        return predict(scenario, paths=paths), None
    without = scenario.faults.model_copy(update={"inject": certain})
    table = without.model_dump(exclude_unset=True, exclude_none=True) if certain else {}
    undisturbed = predict(scenario.with_(faults=table), paths=paths)
    longest = max(request.finished_ms for trace in undisturbed for request in trace.requests)
    traces = predict(scenario, first_fault_within_ms=longest)
    share = -expm1(-resolve(scenario).faults.rate_per_ms * longest)
    return undisturbed, Disturbed(traces, share)
