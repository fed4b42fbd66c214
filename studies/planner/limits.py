"""Limits of a search: what is refused before a simulation, and what after it."""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.errors import UserError
from treepipe.memory import Need
from treepipe.metrics import UNITS
from treepipe.plan import Plan
from treepipe.studies.planner.cluster import Limits
from treepipe.studies.points import Outcome

SMALL_IS_GOOD = ("_ms", "_per_token", "_per_million_tokens")
"""Ends of the names of such metrics; throughputs are better large."""


def check_limits(plan: Plan, needs: Sequence[Need], limits: Limits) -> None:
    """Raises ``UserError`` if a limit that needs no simulation is broken, or cannot be judged."""
    if limits.price_usd_per_hour is not None:
        _check_price(plan, limits.price_usd_per_hour)
    if limits.memory_share < 1:
        _check_share(plan, needs, limits.memory_share)


def broken_limit(outcome: Outcome, limits: Limits) -> str | None:
    """Which bound of a simulated figure is broken, in a sentence; None if all are kept."""
    for name, bound in limits.of_metrics.items():
        if name not in outcome.metrics:
            return f"it has no {name}, which search.limits bounds"
        value, most = outcome.metrics[name].mean, is_least_best(name)
        if value > bound if most else value < bound:
            side = "above" if most else "below"
            return f"{name} is {value:.4g} {UNITS[name]}, {side} search.limits.{name} = {bound:g}"
    return None


def is_least_best(metric: str) -> bool:
    """Whether less of it is better."""
    return metric.endswith(SMALL_IS_GOOD)


def _check_price(plan: Plan, most: float) -> None:
    price = 0.0
    for machine in plan.machines:
        if machine.usd_per_hour is None:
            raise UserError(
                f"key search.limits.price_usd_per_hour: the device of {machine.name} states no "
                f"price_usd_per_hour"
            )
        price += machine.usd_per_hour
    if price > most:
        raise UserError(
            f"its devices cost {price:g} USD per hour, above search.limits.price_usd_per_hour = "
            f"{most:g}"
        )


def _check_share(plan: Plan, needs: Sequence[Need], share: float) -> None:
    """As ``check_memory``, with a share of every device's memory."""
    if not needs:
        raise UserError(
            "key search.limits.memory_share: nothing tells the target's size (target.profile, or "
            "target.layer_mib and target.kv_kib)"
        )
    for machine in plan.machines:
        needed = sum(need.total for need in needs if need.role in machine.roles)
        if machine.memory_mib is not None and needed > share * machine.memory_mib:
            raise UserError(
                f"{', '.join(machine.roles)} would take {needed:.1f} MiB, but of the device's "
                f"{machine.memory_mib:g} MiB search.limits.memory_share = {share:g} may be taken"
            )
