"""Faults that are too rare for a run: runs without one and runs with one, and how often each is.

Faults at a rate come as a Poisson process, of rate R in all while nobody is down. So a run of
length T is without one with the probability exp(-R T), and then it is the undisturbed run; else it
is a run whose first fault comes before T, and faults behind it come as they do. A figure's sums are
those of both kinds, weighed by these probabilities, which is exact for any rate (stratified
sampling: Cochran, Sampling Techniques (1977), section 5.3).

A draft server without a spare may be away for much longer than a run, and others begin meanwhile:
the third kind. A draft that is lost at the rate r is decoded plainly for P of the time in which it
drafts 1 / r, so as runs follow each other r P T / T' of this kind, which last T', come to each one
that begins with all there.

Law of this file: all kinds draw the same texts, and T is the same in all runs: the longest
undisturbed one's. (A first fault behind the end of a shorter run leaves that as it is.)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1
from statistics import fmean

from treepipe.core.recovery import noticed_after_ms
from treepipe.results.estimates import Disturbed
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.faults import MS_PER_HOUR, Away, Injected
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict


def predict_rare(
    scenario: Scenario, *, paths: bool = False
) -> tuple[list[Trace], tuple[Disturbed, ...]]:
    """The runs without a fault at a rate, and those with one or behind one; the latter are none
    where the scenario has no rate.

    Raises:
        UserError, RunError: as ``predict``.
    """
    certain = tuple(each for each in scenario.faults.inject if each.rate_per_hour is None)
    if len(certain) == len(scenario.faults.inject):
        return predict(scenario, paths=paths), ()
    without = scenario.faults.model_copy(update={"inject": certain})
    table = without.model_dump(exclude_unset=True, exclude_none=True) if certain else {}
    undisturbed = predict(scenario.with_(faults=table), paths=paths)
    longest, deployment = max(_lengths(undisturbed)), resolve(scenario)
    traces = predict(scenario, first_fault_within_ms=longest)
    share = -expm1(-deployment.faults.rate_per_ms * longest)
    away = drafts_away(deployment)
    if not away:
        return undisturbed, (Disturbed(traces, share),)
    behind = predict(scenario, away=away)
    shorter = fmean(_lengths(undisturbed)) / fmean(_lengths(behind))
    odds = sum(each.odds for each in away) * shorter
    there = 1 / (1 + odds)
    return undisturbed, (Disturbed(traces, share * there), Disturbed(behind, odds * there))


def drafts_away(deployment: Deployment) -> tuple[Away, ...]:
    """The draft servers that faults at a rate take away; two at a time are left out."""
    away = ((each, plain_ms(deployment, each)) for each in deployment.faults.injected)
    return tuple(
        Away(each.worker, (each.rate_per_hour or 0.0) / MS_PER_HOUR * most, most)
        for each, most in away
        if each.rate_per_hour and most
    )


def plain_ms(deployment: Deployment, fault: Injected) -> float:
    """How long requests are decoded plainly if the draft server is lost by a fault that is over
    some time; 0 of any other one."""
    faults = deployment.faults
    if faults.spares or fault.for_ms is None or deployment.without_draft(fault.worker) is None:
        return 0.0
    down_ms = noticed_after_ms(fault.kind, faults.timeout_ms) + faults.restart_ms
    return max(0.0, fault.for_ms - down_ms)


def _lengths(traces: Sequence[Trace]) -> list[float]:
    """How long each run took, in ms."""
    return [max(request.finished_ms for request in trace.requests) for trace in traces]
