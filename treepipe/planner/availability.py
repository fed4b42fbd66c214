"""What workers that fail now and then leave of a plan's figures.

A fault that comes a few times a year is in no simulated run. So every plan is also simulated in
runs that have one, at a moment of its own in each, and all figures are those of both kinds of runs,
weighed by how rare a run with a fault is (``sim/rare_faults.py``).

Law of this file: a plan's scenario has no rates of its own; they are the cluster's, of the workers
that the plan has. There is always a spare, as a search refuses rates without any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from treepipe.core.errors import UserError
from treepipe.core.recovery import noticed_after_ms
from treepipe.planner.cluster import Cluster
from treepipe.scenario.faults import MOST_SPARES, MS_PER_HOUR, FaultsSection
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome, Point, simulate_points


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
                f"{key}: without a spare (faults.spares = 0) the first loss ends the service, or "
                f"leaves it without its draft"
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


def time_lost(faults: FaultsSection, roles: Collection[str]) -> float:
    """The time in which losses are made good for each moment in which nobody is down.

    >>> hourly = {"worker": "draft0", "kind": "kill", "rate_per_hour": 1}
    >>> section = FaultsSection(restart_ms=36_000, inject=[hourly])
    >>> time_lost(section, ["draft0"]), time_lost(section, ["draft1"])
    (0.01, 0.0)
    """
    lost = 0.0
    for each in faults_of(faults, roles).inject:
        down = noticed_after_ms(each.kind, faults.timeout_ms)
        passes = each.for_ms is not None and each.for_ms < down
        down = each.for_ms if passes and each.for_ms else down + faults.restart_ms
        lost += (each.rate_per_hour or 0.0) * down / MS_PER_HOUR
    return lost


def up_share(cluster: Cluster, plan: Scenario) -> float:
    """The share of the time in which no loss is made good; 1 where the cluster states no rate."""
    if not cluster.faults.inject:
        return 1.0
    return 1 / (1 + time_lost(cluster.faults, resolve(plan).devices))


def simulate_weighed(
    cluster: Cluster, points: Sequence[Point], say: Callable[[str, int], None], title: str
) -> dict[str, Outcome]:
    """The outcomes by label, with the cluster's faults.

    Raises:
        UserError, RunError: as ``simulate_points``.
    """
    return simulate_points([_with_rates(cluster, each) for each in points], say, title)


def _with_rates(cluster: Cluster, point: Point) -> Point:
    """The point with the cluster's faults besides those that its scenario has itself."""
    plan = point.scenario
    content = faults_content(cluster, plan).get("faults", {})
    if not content.get("inject"):
        return point
    own = plan.faults.model_dump(exclude_unset=True, exclude_none=True)
    inject = [*own.get("inject", []), *content["inject"]]
    table = {**content, **own, "spares": MOST_SPARES, "inject": inject}
    return replace(point, scenario=plan.with_(faults=table), rare_faults=True)
