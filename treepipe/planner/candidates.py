"""From a cluster to candidates: all schedules, settings and partitions, and what is refused.

Law of this file: nothing is dropped silently; what cannot be is listed with its reason.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from treepipe.core.errors import UserError
from treepipe.core.layers import PartitionRule
from treepipe.core.schedules import systems
from treepipe.planner.cluster import Cluster
from treepipe.planner.grids import batches, default_grid, settings_of
from treepipe.planner.layouts import Layout, layouts
from treepipe.planner.limits import LimitError, check_limits, check_price, stated_prices
from treepipe.planner.partition import uneven_partitions, with_layers
from treepipe.scenario.fitting import roomy
from treepipe.scenario.memory import check_memory, memory_needs
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario, assign_key
from treepipe.scenario.schema import ScheduleName
from treepipe.scenario.workload import draw_requests


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that can be simulated.

    Attributes:
        settings: what was chosen, by dotted key of the scenario.
        partition: how layers were dealt; "even" is also where all devices are alike.
        layers: of every stage, per pipeline.
        prices: ``price_usd`` of what is bought and ``price_usd_per_hour`` of all devices, where
            they are stated.
        same: others that had all its figures, to nine digits, in every run of both.
    """

    schedule: ScheduleName
    settings: Mapping[str, Any]
    partition: PartitionRule
    layers: tuple[tuple[int, ...], ...]
    scenario: Scenario
    prices: Mapping[str, float] = field(default_factory=dict)
    same: tuple[Candidate, ...] = ()

    @property
    def parameters(self) -> int:
        """How many its schedule has: the fewer, the simpler it is."""
        return len(systems()[self.schedule].keys)

    @property
    def label(self) -> str:
        """Schedule and settings, as a table shows them."""
        return " ".join([self.schedule, *self.chosen])

    @property
    def chosen(self) -> list[str]:
        """The settings as a table shows them, and the partition if it is not the even one."""
        settings = [
            f"{key.removeprefix('schedule.')}={_shown(v)}" for key, v in self.settings.items()
        ]
        return settings if self.partition == "even" else [*settings, self.partition]


@dataclass(frozen=True, slots=True)
class Refused:
    """A plan that cannot be, or that breaks a limit, and why in one sentence.

    Attributes:
        excess: by which share of it a limit is broken; infinite where the reason is another one.
    """

    schedule: ScheduleName
    settings: Mapping[str, Any]
    partition: PartitionRule
    reason: str
    excess: float = inf


def find_candidates(cluster: Cluster) -> tuple[list[Candidate], list[Refused]]:
    """All candidates, and what was refused before anything was simulated.

    Raises:
        UserError: the file is wrong, or no candidate is possible.
    """
    found, refused = list[Candidate](), list[Refused]()
    for layout, name, settings, scenario in _scenarios(cluster, refused):
        for partition, each in _partitions(cluster, scenario):
            try:
                requests = draw_requests(each, each.seed)
                deployment = roomy(resolve(each).asked(requests), [requests])
                needs = memory_needs(deployment)
                check_memory(deployment, needs)
                check_limits(deployment, needs, cluster.search)
            except UserError as error:
                reason = str(error).removeprefix(f"{cluster.path}: ")
                excess = error.excess if isinstance(error, LimitError) else inf
                refused.append(Refused(name, settings, partition, reason, excess))
                continue
            layers = tuple(tuple(len(s.layers) for s in stages) for stages in deployment.pipelines)
            prices = stated_prices(deployment, layout.price_usd)
            found.append(Candidate(name, settings, partition, layers, each, prices))
    if not found:
        nearest = min(refused, key=lambda each: (each.excess, each.reason))
        more = f" ({len(refused)} candidates were tried)" if len(refused) > 1 else ""
        raise UserError(f"{cluster.path}: {nearest.reason}{more}")
    return found, refused


def _scenarios(
    cluster: Cluster, refused: list[Refused]
) -> Iterator[tuple[Layout, ScheduleName, dict[str, Any], Scenario]]:
    """Layout, schedule, settings and scenario of every combination, layers as the file says.

    Args: ``refused``: gets, once for each schedule, the layouts that are too dear.
    """
    for layout in layouts(cluster):
        for name in dict.fromkeys(cluster.search.schedules):
            try:
                check_price(layout.price_usd, layout.bought, cluster.search.limits)
            except LimitError as error:
                refused.append(Refused(name, layout.settings, "even", str(error), error.excess))
                continue
            for settings, scenario in _settings(cluster, layout, name):
                yield layout, name, {**layout.settings, **settings}, scenario


def _settings(
    cluster: Cluster, layout: Layout, name: ScheduleName
) -> Iterator[tuple[dict[str, Any], Scenario]]:
    """Settings and scenario of every combination that a schedule has in a layout."""
    search = cluster.search
    besides = {k: v for k, v in search.grid.items() if not k.startswith("schedule.")}
    instead = {
        key.removeprefix("schedule."): values
        for key, values in search.grid.items()
        if key.removeprefix("schedule.") in systems()[name].keys
    }
    tried = {**batches(name, cluster), **besides}
    for values in itertools.product(*tried.values()):
        around = dict(zip(tried, values, strict=True))
        base = _with(cluster, {**layout.changes, **around, "schedule.name": name})
        fixed = {
            key: (base.content["schedule"][key],)
            for key in cluster.fixed & systems()[name].keys - {"prefill_chunk"}
        }
        blocks = default_grid(name, base)
        for settings in settings_of(blocks, {**fixed, **instead}):
            chosen = {
                **around,
                **{f"schedule.{k}": v for k, v in settings.items() if k not in fixed},
            }
            yield chosen, _with(cluster, {**layout.changes, **chosen, "schedule.name": name})


def _with(cluster: Cluster, changes: Mapping[str, Any]) -> Scenario:
    """The cluster's scenario with keys changed; of the schedule's only those that it reads, and
    without the table of faults, which no search reads."""
    data = cluster.content
    data.pop("search", None)
    data.pop("faults", None)
    name = changes["schedule.name"]
    given = data.get("schedule", {})
    kept = {k: v for k, v in given.items() if k in systems()[name].keys}
    data["schedule"] = {"name": name, **kept}
    for key, value in changes.items():
        assign_key(data, key, copy.deepcopy(value), f"{cluster.path}: search.grid.{key}")
    return Scenario.of(data, cluster.path)


def _partitions(cluster: Cluster, scenario: Scenario) -> Iterator[tuple[PartitionRule, Scenario]]:
    rules = cluster.search.partitions
    try:
        uneven = [rule for rule in rules if rule != "even"]
        dealt = uneven_partitions(scenario, uneven, cluster.search.limits.memory_share)
    except UserError:
        dealt = {}  # it cannot be laid out at all; the even partition says why
    if "even" in rules or not dealt:
        yield "even", scenario  # where all devices are alike, that is the balanced one, too
    for rule, counts in dealt.items():
        content = scenario.content
        for pipeline, layers in zip(content["pipelines"], counts, strict=True):
            pipeline["stages"] = with_layers(pipeline["stages"], layers)
        yield rule, Scenario.of(content, scenario.path)


def _shown(value: Any) -> str:
    """
    >>> _shown((2, 1, 1)), _shown(True), _shown("l40")
    ('2,1,1', 'true', 'l40')
    """
    if isinstance(value, list | tuple):
        return ",".join(_shown(each) for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
