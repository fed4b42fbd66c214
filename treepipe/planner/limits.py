"""Limits of a search: those checked before a simulation, and those checked after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

from treepipe.core.errors import UserError
from treepipe.planner.cluster import Limits, Search
from treepipe.results.metrics import in_words, metric
from treepipe.results.units import number
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.memory import Need
from treepipe.sim.points import Outcome


class LimitError(UserError):
    """An exceeded limit; ``excess`` is the relative amount."""

    def __init__(self, sentence: str, excess: float) -> None:
        super().__init__(sentence)
        self.excess = excess


@dataclass(frozen=True, slots=True)
class Miss:
    """A bound of a simulated figure that a plan breaks.

    Attributes:
        limit: the bounded metric.
        value: the plan's value; None if it has no such figure.
        excess: the factor between value and bound less 1: 0.2 is a value 20 % above an upper bound,
            or a lower bound 20 % above the value.
    """

    limit: str
    value: float | None
    bound: float
    excess: float

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "excess": self.excess if isfinite(self.excess) else None}

    def __str__(self) -> str:
        if self.value is None:
            return f"it has no {in_words(self.limit)}, which search.limits.{self.limit} bounds"
        side = "above" if metric(self.limit).less_is_better else "below"
        return (
            f"{in_words(self.limit)} is {number(self.value)} {metric(self.limit).in_unit}, "
            f"{side} search.limits.{self.limit} = {number(self.bound)} (by a factor of "
            f"{number(1 + self.excess, 3)})"
        )


def check_limits(deployment: Deployment, needs: Sequence[Need], search: Search) -> None:
    """Raise ``UserError`` if a limit that needs no simulation is broken, or if a device lacks the
    data for the goal or a limit."""
    limits = search.limits
    for goal in search.weighed:
        _check_data(deployment, goal, f"key search.front: {goal!r}")
    _check_data(deployment, search.goal, f"key search.goal = {search.goal!r}")
    for name in limits.of_metrics:
        _check_data(deployment, name, f"key search.limits.{name}")
    if limits.price_usd_per_hour is not None:
        _check_rate(deployment, limits.price_usd_per_hour)
    if limits.memory_share < 1:
        _check_share(deployment, needs, limits.memory_share)


def misses(outcome: Outcome, limits: Limits) -> tuple[Miss, ...]:
    """Return the broken bounds of simulated figures, the worst first."""
    found = []
    for name, bound in limits.of_metrics.items():
        if name not in outcome.metrics:
            found.append(Miss(name, None, bound, inf))
            continue
        value = outcome.metrics[name].mean
        above, below = (value, bound) if metric(name).less_is_better else (bound, value)
        if above > below:
            found.append(Miss(name, value, bound, above / below - 1 if below else inf))
    return tuple(sorted(found, key=lambda miss: -miss.excess))


def _check_data(deployment: Deployment, goal: str, key: str) -> None:
    """Raise ``UserError`` if a device lacks the power or price that a goal sums over devices."""
    machines = deployment.roles.machines
    stated: dict[str, tuple[str, list[object]]] = {
        "usd_per_million_tokens": ("price_usd_per_hour", [each.usd_per_hour for each in machines]),
        "price_usd_per_hour": ("price_usd_per_hour", [each.usd_per_hour for each in machines]),
        "joules_per_token": ("power", [each.power_w for each in machines]),
    }
    needed, values = stated.get(goal, ("", []))
    lacking = [m.name for m, value in zip(machines, values, strict=False) if value is None]
    if lacking:
        others = f", nor do those of {', '.join(lacking[1:])}" if lacking[1:] else ""
        raise UserError(f"{key}: the device of {lacking[0]} states no {needed}{others}")


def stated_prices(deployment: Deployment, price_usd: float | None) -> dict[str, float]:
    """Return ``price_usd`` of the purchase, and the hourly price if every device states one."""
    prices = {} if price_usd is None else {"price_usd": price_usd}
    rates = [machine.usd_per_hour for machine in deployment.roles.machines]
    known = [rate for rate in rates if rate is not None]
    return {**prices, "price_usd_per_hour": sum(known)} if len(known) == len(rates) else prices


def check_price(price_usd: float | None, bought: Mapping[str, int], limits: Limits) -> None:
    """Raise ``LimitError`` if the purchase (numbers by kind) costs too much."""
    most = limits.price_usd
    if most is not None and price_usd is not None and price_usd > most:
        raise LimitError(
            f"{', '.join(f'{count} {kind}' for kind, count in bought.items())} cost "
            f"{price_usd:g} USD, above search.limits.price_usd = {most:g}",
            price_usd / most - 1,
        )


def _check_rate(deployment: Deployment, most: float) -> None:
    _check_data(deployment, "price_usd_per_hour", "key search.limits.price_usd_per_hour")
    price = stated_prices(deployment, None)["price_usd_per_hour"]
    if price > most:
        raise LimitError(
            f"its devices cost {price:g} USD per hour, above search.limits.price_usd_per_hour = "
            f"{most:g}",
            price / most - 1,
        )


def _check_share(deployment: Deployment, needs: Sequence[Need], share: float) -> None:
    """Raise an error if a device needs more than ``share`` of its memory (``check_memory``)."""
    if not needs:
        raise UserError(
            "key search.limits.memory_share: nothing tells the target's size (target.profile)"
        )
    for machine in deployment.roles.machines:
        needed = sum(need.total for need in needs if need.role in machine.roles)
        if machine.memory_mib is not None and needed > share * machine.memory_mib:
            raise LimitError(
                f"{', '.join(machine.roles)} would take {needed:.1f} MiB, but of the device's "
                f"{machine.memory_mib:g} MiB search.limits.memory_share = {share:g} may be taken",
                needed / (share * machine.memory_mib) - 1,
            )
