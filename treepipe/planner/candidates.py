"""Candidates of a cluster: all schedules, settings and partitions; impossible ones are listed with
a reason. A schedule's grid is a list of blocks, each the product of its keys' values, which keeps
parameters together that only make sense together (a tree and its expansion)."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import comb, inf, prod
from typing import Any

from treepipe.core.errors import UserError
from treepipe.core.layers import PartitionRule
from treepipe.core.schedules import systems
from treepipe.core.system import Block, Load
from treepipe.files.reading import counted
from treepipe.planner.cluster import Cluster
from treepipe.planner.layouts import Layout, layouts, placements
from treepipe.planner.limits import LimitError, check_limits, check_price, stated_prices
from treepipe.planner.partition import partitions
from treepipe.planner.split_question import slow_splits
from treepipe.planner.splits import splits, tries_splits
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.memory import fitted, memory_needs
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario, assign_key
from treepipe.scenario.schema import ScheduleName
from treepipe.scenario.workload import draw_requests
from treepipe.sim.theory.closed_form import batched_form, closed_form, resolve_admission

MOST_COMBINATIONS, MANY_COMBINATIONS = 100_000, 2_000
"""Most combinations that a search tries, and the number from which it says beforehand how many: one
takes some milliseconds to make and to check, and then its first runs."""


@dataclass(frozen=True, slots=True)
class Combination:
    """A schedule, its settings by dotted key of the scenario, and the rule that assigns layers to
    stages; "even" also covers equal devices."""

    schedule: ScheduleName
    settings: Mapping[str, Any]
    partition: PartitionRule

    def as_dict(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule,
            "settings": dict(self.settings),
            "partition": self.partition,
        }


@dataclass(frozen=True, slots=True)
class Candidate(Combination):
    """A plan that can be simulated.

    Attributes:
        layers: number of layers of every stage, per pipeline.
        prices: ``price_usd`` of the purchase and ``price_usd_per_hour`` of all devices, if stated.
        by_form: the goal by the closed form; None where none has it.
        groups: in how many groups a pipeline's requests pass a stage, and the rows of a group's
            usual segments; None where requests are alone, step together, or come and go (arrivals).
        same: other candidates with equal figures, to nine digits, in every run of both.
    """

    layers: tuple[tuple[int, ...], ...]
    scenario: Scenario
    prices: Mapping[str, float] = field(default_factory=dict)
    by_form: float | None = None
    groups: tuple[int, int] | None = None
    same: tuple[Candidate, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        shared = {} if self.groups is None else {"groups": self.groups[0], "rows": self.groups[1]}
        layers = [list(counts) for counts in self.layers]
        return {**Combination.as_dict(self), "layers": layers, **shared}

    @property
    def parameters(self) -> int:
        """Number of the schedule's parameters; fewer is simpler."""
        return len(systems()[self.schedule].keys)

    @property
    def label(self) -> str:
        """Schedule and settings as a table shows them."""
        return " ".join([self.schedule, *self.chosen])

    @property
    def chosen(self) -> list[str]:
        """The settings as a table shows them, and the partition unless it is the even one."""
        settings = [
            f"{key.removeprefix('schedule.')}={_shown(v)}" for key, v in self.settings.items()
        ]
        return settings if self.partition == "even" else [*settings, self.partition]


@dataclass(frozen=True, slots=True)
class Refused(Combination):
    """A plan that is impossible or breaks a limit, with the reason in one sentence.

    Attributes:
        excess: by which share of it a limit is broken; infinite for any other reason.
    """

    reason: str
    excess: float = inf


def count_combinations(cluster: Cluster) -> int:
    """Return how many combinations a search tries at most, by multiplication alone.

    Raises ``UserError`` if they are more than ``MOST_COMBINATIONS``.
    """
    search, total, layouts_tried = cluster.search, 0, 0
    drafts = sum(1 for _ in placements(cluster, sum(each.count for each in cluster.pipelines)))
    for stages, rows in _rows(cluster):
        layouts_tried += rows * drafts
        for name in dict.fromkeys(search.schedules):
            tried = {"serving.batch": _batches(name, stages, cluster), **_around(cluster)}
            fixed = dict.fromkeys(_fixed(name, cluster), (None,))
            blocks = _default_grid(name, stages, cluster)
            whole = _whole_blocks(blocks, {**fixed, **_instead(name, cluster)})
            settings = sum(prod(map(len, each.values())) for each in whole)
            total += rows * drafts * prod(map(len, tried.values())) * settings
    total *= len(search.partitions)
    if total > MOST_COMBINATIONS:
        factors = {"search.schedules": len({*search.schedules}), "layouts": layouts_tried}
        factors |= {f"search.grid.{key}": len(values) for key, values in search.grid.items()}
        most = sorted(factors, key=lambda key: -factors[key])[:3]
        raise UserError(
            f"{cluster.path}: table [search] asks for {counted(total)} combinations, of which a "
            f"search takes at most {MOST_COMBINATIONS:,}; give fewer values: "
            f"{', '.join(f'{key} has {counted(factors[key])}' for key in most if factors[key] > 1)}"
        )
    return total


def _rows(cluster: Cluster) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the stages of each pipeline, and in how many ways devices are chosen for them."""
    devices, stages = cluster.search.devices, _lengths(cluster)
    if tries_splits(cluster):
        yield from (((each.stages,) * each.replicas, 1) for each in splits(cluster))
        return
    if devices is None:
        yield stages, 1
        return
    kinds = sum("stage" in kind.roles for kind in devices.kinds)
    for n in dict.fromkeys(devices.counts):
        yield (n,) * len(stages), comb(kinds + n - 1, n) if devices.mixed else kinds


def search_warnings(cluster: Cluster) -> list[str]:
    """Return a sentence on the size of a large search; empty otherwise. Raises ``UserError``."""
    size = count_combinations(cluster)
    if size <= MANY_COMBINATIONS:
        return []
    return [f"up to {size:,} combinations are to be tried (search.schedules, search.grid, devices)"]


def find_candidates(cluster: Cluster) -> tuple[list[Candidate], list[Refused]]:
    """Return all candidates and refused plans; raises ``UserError`` if no candidate is possible."""
    count_combinations(cluster)
    found, refused = list[Candidate](), list[Refused]()
    for layout, name, settings, scenario in _scenarios(cluster, refused):
        for partition, each in partitions(cluster, scenario):
            try:
                each = resolve_admission(each)
                requests = draw_requests(each, each.seed)
                (deployment,) = fitted([resolve(each).asked(requests)])
                check_limits(deployment, memory_needs(deployment), cluster.search)
            except UserError as error:
                reason = str(error).removeprefix(f"{cluster.path}: ")
                excess = error.excess if isinstance(error, LimitError) else inf
                refused.append(Refused(name, settings, partition, reason, excess))
                continue
            layers = tuple(
                tuple(len(s.layers) for s in stages) for stages in deployment.roles.pipelines
            )
            prices = stated_prices(deployment, layout.price_usd)
            form = _by_form(each, deployment, cluster.search.goal)
            groups = _groups(each, deployment)
            found.append(Candidate(name, settings, partition, layers, each, prices, form, groups))
    if not found:
        nearest = min(refused, key=lambda each: (each.excess, each.reason))
        more = f" ({len(refused)} candidates were tried)" if len(refused) > 1 else ""
        raise UserError(f"{cluster.path}: {nearest.reason}{more}")
    return found, refused


def _groups(scenario: Scenario, deployment: Deployment) -> tuple[int, int] | None:
    most = max(map(deployment.most_open, range(len(deployment.roles.pipelines))))
    if most == 1 or deployment.arrivals_ms or scenario.schedule.system.in_lock_step:
        return None
    groups = -(-most // deployment.service.pass_requests)
    bound = deployment.service.bounds.segment_tokens  # also of what leaves at once behind a miss
    rows = getattr(scenario.schedule.parameters, "segment_tokens", bound)
    return groups, -(-most // groups) * min(rows, bound)


def _by_form(scenario: Scenario, deployment: Deployment, goal: str) -> float | None:
    if scenario.schedule.system.closed_form is None:
        return None
    with suppress(UserError, ArithmeticError):  # none applies, or all of its times are 0
        if groups := _groups(scenario, deployment):
            return batched_form(scenario, deployment, groups[0]).get(goal)
        return closed_form(scenario, deployment).metrics.get(goal)
    return None


def _scenarios(
    cluster: Cluster, refused: list[Refused]
) -> Iterator[tuple[Layout, ScheduleName, dict[str, Any], Scenario]]:
    """Yield layout, schedule, settings and scenario of every combination, with the file's layers;
    append layouts that cost too much, or whose split is slow, to ``refused``, once for each
    schedule."""
    slow = slow_splits(cluster) if tries_splits(cluster) else {}
    for layout in layouts(cluster):
        split = layout.settings.get("split", "")
        for name in dict.fromkeys(cluster.search.schedules):
            if split in slow:
                refused.append(Refused(name, layout.settings, "even", slow[split]))
                continue
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
    """Yield settings and scenario of every combination of a schedule in a layout."""
    instead = _instead(name, cluster)
    tried = _around(cluster)
    for values in itertools.product(*tried.values()):
        around = dict(zip(tried, values, strict=True))
        base = _with(cluster, {**layout.changes, **around, "schedule.name": name})
        fixed = {key: (base.content["schedule"][key],) for key in _fixed(name, cluster)}
        stages = _lengths(base)
        chosen_settings = _settings_of(_default_grid(name, stages, base), {**fixed, **instead})
        for batch, settings in itertools.product(_batches(name, stages, base), chosen_settings):
            chosen = {
                **batch,
                **around,
                **{f"schedule.{k}": v for k, v in settings.items() if k not in fixed},
            }
            yield chosen, _with(cluster, {**layout.changes, **chosen, "schedule.name": name})


def _around(cluster: Cluster) -> Block:
    """Return the grid's keys that are not the schedule's."""
    return {k: v for k, v in cluster.search.grid.items() if not k.startswith("schedule.")}


def _instead(schedule: str, cluster: Cluster) -> Block:
    """Return the grid's keys that this schedule reads."""
    keys = {key.removeprefix("schedule."): v for key, v in cluster.search.grid.items()}
    return {key: values for key, values in keys.items() if key in systems()[schedule].keys}


def _fixed(schedule: str, cluster: Cluster) -> set[str]:
    """Return the schedule's keys that the file fixes for all candidates."""
    return cluster.fixed & systems()[schedule].keys - {"prefill_chunk"}


def _default_grid(schedule: str, stages: tuple[int, ...], scenario: Scenario) -> Sequence[Block]:
    """Return values of a schedule's parameters that suit pipelines of so many stages, and the
    scenario's requests."""
    workload = scenario.workload
    load = Load(stages, min(workload.concurrency, workload.requests))
    return systems()[schedule].grid(load)


def _lengths(scenario: Scenario) -> tuple[int, ...]:
    """Return the number of stages of every pipeline."""
    return tuple(each.length for each in scenario.pipelines for _ in range(each.count))


def _batches(schedule: str, stages: tuple[int, ...], scenario: Scenario) -> list[dict[str, Any]]:
    """Return settings of ``serving.batch``, if the file has none and requests can share a pass: 1,
    as in the papers, the number that fills the stages, and of a closed loop those of a single
    group, of half as many groups as stages, and of twice as many."""
    workload = scenario.workload
    users = min(workload.concurrency, workload.requests)
    alone = not workload.arriving and users == 1
    if alone or systems()[schedule].in_lock_step or "batch" in scenario.serving.model_fields_set:
        return [{}]
    share, longest = -(-users // len(stages)), max(stages)
    groups = () if workload.arriving else (1, max(1, longest // 2), 2 * longest)
    sizes = {-(-share // min(each, share)) for each in groups}
    more = sorted(sizes - {1, -(-share // longest)})
    return [{"serving.batch": size} for size in (1, "auto", *more)]


def _settings_of(blocks: Sequence[Block], instead: Block) -> list[dict[str, Any]]:
    """Return all distinct combinations. Values of ``instead`` replace a key's in the blocks that
    have it; a key that no block has is added to all.

    >>> _settings_of([{"a": (1, 2)}, {"a": (3,), "b": (4,)}], {"a": (5,), "c": (6,)})
    [{'a': 5, 'c': 6}, {'a': 5, 'b': 4, 'c': 6}]
    """
    found: dict[object, dict[str, Any]] = {}
    for whole in _whole_blocks(blocks, instead):
        for values in itertools.product(*whole.values()):
            settings = dict(zip(whole, values, strict=True))
            found.setdefault(frozenset((k, _hashable(v)) for k, v in settings.items()), settings)
    return [*found.values()]


def _whole_blocks(blocks: Sequence[Block], instead: Block) -> Iterator[dict[str, Sequence[Any]]]:
    known = {key for block in blocks for key in block}
    for block in blocks:
        yield {**block, **{k: v for k, v in instead.items() if k in block or k not in known}}


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, (list, tuple, dict)) else value


def _with(cluster: Cluster, changes: Mapping[str, Any]) -> Scenario:
    """Change keys of the cluster's scenario; drop schedule keys that the schedule does not read,
    and the table of faults, which no search reads."""
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


def _shown(value: Any) -> str:
    """
    >>> _shown((2, 1, 1)), _shown(True), _shown("l40")
    ('2,1,1', 'true', 'l40')
    """
    if isinstance(value, list | tuple):
        return ",".join(_shown(each) for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
