"""From a cluster to candidates: all schedules, settings and partitions, and what is refused.

Law of this file: nothing is dropped silently; what cannot be is listed with its reason.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from treepipe.core.errors import UserError
from treepipe.core.schedules import systems
from treepipe.files.toml_file import validated
from treepipe.planner.cluster import ClusterFile, PartitionRule
from treepipe.planner.grids import default_grid, settings_of
from treepipe.planner.limits import LimitError, check_limits
from treepipe.planner.partition import uneven_partitions, with_layers
from treepipe.scenario.memory import check_memory
from treepipe.scenario.resolve import lay_out
from treepipe.scenario.scenario import Scenario, assign_key, take_acceptance
from treepipe.scenario.schema import ScheduleName

Content: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that can be simulated.

    Attributes:
        settings: what was chosen, by dotted key of the scenario.
        partition: how layers were dealt; "even" is also where all devices are alike.
        layers: of every stage, per pipeline.
        data: the scenario's file.
        scenario: the same, validated.
    """

    schedule: ScheduleName
    settings: Mapping[str, Any]
    partition: PartitionRule
    layers: tuple[tuple[int, ...], ...]
    data: Content
    scenario: Scenario

    @property
    def label(self) -> str:
        """Schedule and settings, as a table shows them."""
        chosen = [
            f"{key.removeprefix('schedule.')}={_shown(v)}" for key, v in self.settings.items()
        ]
        dealt = [] if self.partition == "even" else [self.partition]
        return " ".join([self.schedule, *chosen, *dealt])


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


def find_candidates(file: ClusterFile) -> tuple[list[Candidate], list[Refused]]:
    """All candidates, and what was refused before anything was simulated.

    Raises:
        UserError: the file is wrong, or no candidate is possible.
    """
    found, refused = list[Candidate](), list[Refused]()
    for name, settings, data, scenario in _scenarios(file):
        for partition, dealt in _partitions(file, data, scenario):
            each = _scenario(dealt, file.path) if partition != "even" else scenario
            try:
                plan, needs = lay_out(each, file.path)
                check_memory(plan, needs, file.path)
                check_limits(plan, needs, file.search)
            except UserError as error:
                reason = str(error).removeprefix(f"{file.path}: ")
                excess = error.excess if isinstance(error, LimitError) else inf
                refused.append(Refused(name, settings, partition, reason, excess))
                continue
            layers = tuple(tuple(len(s.layers) for s in stages) for stages in plan.pipelines)
            found.append(Candidate(name, settings, partition, layers, dealt, each))
    if not found:
        nearest = min(refused, key=lambda each: (each.excess, each.reason))
        more = f" ({len(refused)} candidates were tried)" if len(refused) > 1 else ""
        raise UserError(f"{file.path}: {nearest.reason}{more}")
    return found, refused


def _scenarios(
    file: ClusterFile,
) -> Iterator[tuple[ScheduleName, dict[str, Any], Content, Scenario]]:
    """Schedule, settings, content and scenario of every combination, layers as the file says."""
    search = file.search
    cluster = {k: v for k, v in search.grid.items() if not k.startswith("schedule.")}
    for name in dict.fromkeys(search.schedules):
        instead = {
            key.removeprefix("schedule."): values
            for key, values in search.grid.items()
            if key.removeprefix("schedule.") in systems()[name].keys
        }
        for values in itertools.product(*cluster.values()):
            around = dict(zip(cluster, values, strict=True))
            base = _with(file, {**around, "schedule.name": name})
            fixed = {
                key: (base["schedule"][key],)
                for key in file.fixed & systems()[name].keys - {"prefill_chunk"}
            }
            blocks = default_grid(name, _scenario(base, file.path))
            for settings in settings_of(blocks, {**fixed, **instead}):
                chosen = {
                    **around,
                    **{f"schedule.{k}": v for k, v in settings.items() if k not in fixed},
                }
                data = _with(file, {**chosen, "schedule.name": name})
                yield name, chosen, data, _scenario(data, file.path)


def _with(file: ClusterFile, changes: Mapping[str, Any]) -> Content:
    """The file's content with keys changed; of the schedule's only those that it reads."""
    data = copy.deepcopy(dict(file.data))
    name = changes["schedule.name"]
    given = data.get("schedule", {})
    kept = {k: v for k, v in given.items() if k in systems()[name].keys}
    data["schedule"] = {"name": name, **kept}
    for key, value in changes.items():
        assign_key(data, key, copy.deepcopy(value), f"{file.path}: search.grid.{key}")
    return data


def _scenario(data: Content, path: Path) -> Scenario:
    content = dict(data)
    take_acceptance(content, path)
    return validated(Scenario, content, path)


def _partitions(
    file: ClusterFile, data: Content, scenario: Scenario
) -> Iterator[tuple[PartitionRule, Content]]:
    rules = file.search.partitions
    try:
        uneven = [rule for rule in rules if rule != "even"]
        share = file.search.limits.memory_share
        dealt = uneven_partitions(scenario, file.path, uneven, share)
    except UserError:
        dealt = {}  # it cannot be laid out at all; the even partition says why
    if "even" in rules or not dealt:
        yield "even", data  # where all devices are alike, that is the balanced one, too
    for rule, counts in dealt.items():
        content = copy.deepcopy(data)
        for pipeline, layers in zip(content["pipelines"], counts, strict=True):
            pipeline["stages"] = with_layers(pipeline["stages"], layers)
        yield rule, content


def _shown(value: Any) -> str:
    """
    >>> _shown((2, 1, 1)), _shown(True), _shown("l40")
    ('2,1,1', 'true', 'l40')
    """
    if isinstance(value, list | tuple):
        return ",".join(_shown(each) for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
