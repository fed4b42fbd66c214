"""What workers that fail now and then leave of a plan's figures.

A fault that comes a few times a year is in no simulated run, so its rate is reckoned with instead:
every loss costs the time until it is noticed, the restart, and the time to the first token, in
which open texts are fed again. Between losses the plan is as it is simulated, without faults.

Law of this file: only means that stretch with the time lost are changed, by one factor; percentiles
and promises are those between losses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from treepipe.core.errors import UserError
from treepipe.core.recovery import noticed_after_ms
from treepipe.planner.cluster import Cluster
from treepipe.planner.limits import is_least_best
from treepipe.results.statistics import Interval
from treepipe.scenario.faults import MS_PER_HOUR, FaultsSection
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome, Point, simulate_points

TIMES = ("time_between_tokens_ms", "request_latency_ms")
RATES = ("throughput_tokens_s", "per_session_throughput_tokens_s", "usd_per_million_tokens")
"""Tokens in a stretch of time, and what they cost; of requests that arrive by themselves none is
lost, so theirs stay."""


def check_rates(cluster: Cluster, plans: Iterable[Scenario]) -> None:
    """Raises ``UserError`` where a search cannot take the cluster's faults into account."""
    if not cluster.faults.inject:
        return
    known = {role for plan in plans for role in resolve(plan).devices}
    for index, fault in enumerate(cluster.faults.inject):
        key = f"{cluster.path}: key faults.inject.{index}"
        if fault.rate_per_hour is None:
            raise UserError(
                f"{key}.at_ms: a search weighs rates (rate_per_hour); treepipe simulate tells what "
                f"one loss does to the plan"
            )
        if not cluster.faults.spares:
            raise UserError(
                f"{key}: without a spare (faults.spares = 0) the first loss ends the service"
            )
        if fault.worker not in known:
            raise UserError(
                f"{key}.worker = {fault.worker!r}: no plan has such a worker; there are "
                f"{', '.join(sorted(known))}"
            )


def faults_of(faults: FaultsSection, roles: Collection[str]) -> FaultsSection:
    """Those of a plan: a worker that it does not have does not fail."""
    kept = tuple(each for each in faults.inject if each.worker in roles)
    return faults.model_copy(update={"inject": kept})


def faults_content(cluster: Cluster, plan: Scenario) -> dict[str, Any]:
    """The table of a plan's scenario, empty where the cluster has none."""
    if "faults" not in cluster.content:
        return {}
    own = faults_of(cluster.faults, resolve(plan).devices)
    return {"faults": own.model_dump(exclude_unset=True, exclude_none=True)}


def time_lost(faults: FaultsSection, roles: Collection[str], feeding_ms: float) -> float:
    """The time lost to faults for each moment in which all is well.

    Args: ``feeding_ms``: until open texts have been fed again.

    >>> hourly = {"worker": "draft0", "kind": "kill", "rate_per_hour": 1}
    >>> section = FaultsSection(restart_ms=35_000, inject=[hourly])
    >>> time_lost(section, ["draft0"], 1000.0), time_lost(section, ["draft1"], 1000.0)
    (0.01, 0.0)
    """
    lost = 0.0
    for each in faults_of(faults, roles).inject:
        down = noticed_after_ms(each.kind, faults.timeout_ms) + faults.restart_ms + feeding_ms
        lost += (each.rate_per_hour or 0.0) * down / MS_PER_HOUR
    return lost


def stretch(cluster: Cluster, plan: Scenario, outcome: Outcome) -> float:
    """How much longer everything takes with the cluster's faults; 1 where it states none."""
    if not cluster.faults.inject:
        return 1.0
    feeding = outcome.metrics["time_to_first_token_ms"].mean  # which no factor changes
    return 1.0 + time_lost(cluster.faults, resolve(plan).devices, feeding)


def simulate_weighed(
    cluster: Cluster, points: Sequence[Point], say: Callable[[str, int], None], title: str
) -> dict[str, Outcome]:
    """The outcomes by label, with the cluster's faults.

    Raises:
        UserError, RunError: as ``simulate_points``.
    """
    outcomes = simulate_points(points, say, title)
    return {
        each.label: weighed(
            outcomes[each.label],
            stretch(cluster, each.scenario, outcomes[each.label]),
            arriving=each.scenario.workload.arrivals is not None,
        )
        for each in points
    }


def weighed(outcome: Outcome, longer: float, *, arriving: bool) -> Outcome:
    """The outcome where everything takes so many times as long.

    Args: ``arriving``: requests come at times of their own.
    """
    factors = dict.fromkeys(TIMES, longer)
    if not arriving:
        factors |= {name: longer if is_least_best(name) else 1 / longer for name in RATES}
    if longer == 1:
        return outcome
    return replace(
        outcome,
        metrics={
            name: _times(value, factors.get(name, 1.0)) for name, value in outcome.metrics.items()
        },
        observations={
            name: tuple(each * factors.get(name, 1.0) for each in values)
            for name, values in outcome.observations.items()
        },
    )


def _times(value: Interval, factor: float) -> Interval:
    ends = [None if end is None else end * factor for end in (value.low, value.high)]
    return Interval(value.mean * factor, *ends)
