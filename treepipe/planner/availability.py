"""What workers that fail now and then leave of a plan's figures.

A fault that comes a few times a year is in no simulated run. So every plan is also simulated in
runs that have one, at a moment of its own in each, and all figures are those of both kinds of runs,
weighed by how rare a run with a fault is (``sim/rare_faults.py``).

Law of this file: a plan's scenario has no rates of its own; they are the cluster's, of the workers
that the plan has. There is always a spare, or never one: then only draft servers may fail that come
back, and their requests are decoded plainly meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treepipe.core.errors import UserError
from treepipe.core.recovery import noticed_after_ms
from treepipe.planner.cluster import Cluster
from treepipe.scenario.faults import MOST_SPARES, MS_PER_HOUR, FaultsSection
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome, Point, simulate_points
from treepipe.sim.rare_faults import plain_ms


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


def check_goes_on(cluster: Cluster, plan: Scenario) -> None:
    """Raises ``UserError`` if a loss is the end of a plan, or of its drafting."""
    if not cluster.faults.inject or cluster.faults.spares:
        return
    deployment = resolve(with_rates(cluster, plan))
    for index, fault in enumerate(cluster.faults.inject):
        if fault.worker not in deployment.devices:
            continue
        key = f"{cluster.path}: key faults.inject.{index}: without a spare (faults.spares = 0)"
        if deployment.without_draft(fault.worker) is None:
            raise UserError(f"{key} the first loss of {fault.worker} ends the service")
        if fault.for_ms is None:
            raise UserError(
                f"{key} the first loss of {fault.worker} leaves plain decoding for ever; for_ms "
                f"(of a stop or a cut) says how long it is away"
            )


@dataclass(frozen=True, slots=True)
class TimeShares:
    """What faults leave of a plan's time, as shares of all of it.

    Attributes:
        up: in which no loss is made good.
        plain: in which, besides, the requests of a lost draft server are decoded plainly.
    """

    up: float = 1.0
    plain: float = 0.0


def time_shares(cluster: Cluster, plan: Scenario) -> TimeShares:
    """What the cluster's faults leave of a plan's time, in the long run.

    A moment in which all draft servers draft is followed by so many in which a loss is made good,
    and so many of plain decoding; a draft server that comes back takes another restart.
    """
    deployment = resolve(with_rates(cluster, plan))
    faults, lost, plain = deployment.faults, 0.0, 0.0
    for each in faults.injected:
        rate = (each.rate_per_hour or 0.0) / MS_PER_HOUR
        down = noticed_after_ms(each.kind, faults.timeout_ms)
        if each.for_ms is not None and each.for_ms < down:
            down = each.for_ms
        else:
            down += faults.restart_ms * (1 if faults.spares else 2)
        lost += rate * down
        plain += rate * plain_ms(deployment, each)
    whole = 1 + plain + lost
    return TimeShares((1 + plain) / whole, plain / whole)


def simulate_weighed(
    cluster: Cluster, points: Sequence[Point], say: Callable[[str, int], None], title: str
) -> dict[str, Outcome]:
    """The outcomes by label, with the cluster's faults.

    Raises:
        UserError, RunError: as ``simulate_points``.
    """
    weighed = list[Point]()
    for point in points:
        scenario = with_rates(cluster, point.scenario)
        rare = scenario is not point.scenario
        weighed.append(replace(point, scenario=scenario, rare_faults=rare))
    return simulate_points(weighed, say, title)


def with_rates(cluster: Cluster, plan: Scenario) -> Scenario:
    """The plan with the cluster's faults besides those that its scenario has itself."""
    content = faults_content(cluster, plan).get("faults", {})
    if not content.get("inject"):
        return plan
    own = plan.faults.model_dump(exclude_unset=True, exclude_none=True)
    inject = [*own.get("inject", []), *content["inject"]]
    spares = MOST_SPARES if cluster.faults.spares or own.get("spares") else 0
    return plan.with_(faults={**content, **own, "spares": spares, "inject": inject})
