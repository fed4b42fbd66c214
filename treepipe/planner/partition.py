"""Which stage holds how many layers: rules for pipelines of unequal devices.

Layers are alike, so that a stage takes a fixed time and a time per layer; both come from the
service times of ``profiles/service.py``. A device that states its whole role's times says nothing
about a layer, so there layers are only dealt evenly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from treepipe.planner.cluster import PartitionRule
from treepipe.profiles.library import resolve_device, shape_of
from treepipe.profiles.schema import Device, Hardware
from treepipe.profiles.service import ServedModel, ServiceTimes
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.memory import Need, cache_entries, memory_needs
from treepipe.scenario.placement import place
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schedule_check import ends_of
from treepipe.scenario.schema import Pipeline
from treepipe.scenario.workload import draw_requests


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of a stage, at the tokens and the context that its schedule gives it.

    Attributes:
        call_ms, layer_ms: of a pass, and of each layer in it.
        most: layers that fit its device; None: unknown.
        layers: as the file says it; None: open.
    """

    call_ms: float
    layer_ms: float
    most: int | None = None
    layers: int | None = None

    def has_room(self, count: int) -> bool:
        return self.layers is None and (self.most is None or count < self.most)


def deal(rule: PartitionRule, stages: Sequence[StageCost], total: int) -> list[int] | None:
    """Layers per stage, at least one each; None if they do not fit.

    "balanced" makes the slowest stage as fast as possible (always giving the next layer to the
    stage that is done first with it is optimal, as a stage's time only grows); "fastest_first"
    makes the sum of all stages' times as small as possible.

    >>> slow, fast = StageCost(0.0, 3.0), StageCost(0.0, 1.0, most=6)
    >>> deal("balanced", [slow, fast], 8), deal("fastest_first", [slow, fast], 8)
    ([2, 6], [2, 6])
    >>> deal("balanced", [slow, slow, fast], 9), deal("fastest_first", [slow, slow, fast], 9)
    ([2, 2, 5], [2, 1, 6])
    """
    counts = [1 if stage.layers is None else stage.layers for stage in stages]
    for _ in range(total - sum(counts)):
        free = [i for i, stage in enumerate(stages) if stage.has_room(counts[i])]
        if not free:
            return None

        def cost(i: int) -> float:
            layers = counts[i] + 1 if rule == "balanced" else 1
            return stages[i].layer_ms * layers + stages[i].call_ms * (rule == "balanced")

        counts[min(free, key=cost)] += 1
    return counts if sum(counts) == total else None


def uneven_partitions(
    scenario: Scenario, rules: Sequence[PartitionRule], share: float
) -> dict[PartitionRule, list[list[int]]]:
    """Layers of every stage of every ``[[pipelines]]``, by rule; only where devices differ.

    Args:
        share: of a device's memory that may be taken.

    Raises:
        UserError: the scenario cannot be laid out, whatever the partition.
    """
    devices = [_stages(pipeline, scenario.path) for pipeline in scenario.pipelines]
    hardware = [stage.device for stages in devices for stage in stages]
    if not all(isinstance(device, Hardware) for device in hardware) or not any(
        _matters(stages) for stages in devices
    ):
        return {}
    target = place(scenario, ends_of(scenario)).target
    assert target is not None, "hardware was named"
    deployment = resolve(scenario).asked(draw_requests(scenario, scenario.seed))
    rooms = _most_layers(deployment, memory_needs(deployment), share)
    firsts = [sum(p.count for p in scenario.pipelines[:i]) for i in range(len(devices))]
    placed = [deployment.pipelines[first] for first in firsts]
    longest = max(len(stages) for stages in deployment.pipelines)
    section = scenario.schedule
    tokens = section.system.segment_tokens(section.parameters, longest)
    context = cache_entries(deployment, 0) // 2
    costs = [
        [
            _cost(stage, target, tokens, context, rooms.get(place.name))
            for stage, place in zip(stages, places, strict=True)
        ]
        for stages, places in zip(devices, placed, strict=True)
    ]
    if deployment.ends == "pipeline":
        for of_pipeline, places in zip(costs, placed, strict=True):
            times, last = places[-1].times, of_pipeline[-1]
            verified_ms = times.evaluate(tokens) + times.decide
            of_pipeline[-1] = replace(last, call_ms=last.call_ms + verified_ms)
    found: dict[PartitionRule, list[list[int]]] = {}
    even = [[len(place.layers) for place in places] for places in placed]
    for rule in rules:
        dealt = [deal(rule, stages, target.shape.layers) for stages in costs]
        whole = [counts for counts in dealt if counts is not None]
        if len(whole) == len(dealt) and whole != even and whole not in found.values():
            found[rule] = whole
    return found


def with_layers(stages: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> list[dict[str, Any]]:
    """A pipeline's stages as a file says them, with their layers; equal neighbours in one.

    >>> with_layers([{"device": "a", "count": 2}, {"device": "b"}], [3, 3, 2])
    [{'device': 'a', 'count': 2, 'layers': 3}, {'device': 'b', 'layers': 2}]
    """
    single = [
        {key: value for key, value in stage.items() if key != "count"}
        for stage in stages
        for _ in range(stage.get("count", 1))
    ]
    merged: list[dict[str, Any]] = []
    for stage, layers in zip(single, counts, strict=True):
        whole = {**stage, "layers": layers}
        if merged and {k: v for k, v in merged[-1].items() if k != "count"} == whole:
            merged[-1]["count"] = merged[-1].get("count", 1) + 1
        else:
            merged.append(whole)
    return [
        {k: stage[k] for k in ("device", "count", "layers", *stage) if k in stage}
        for stage in merged
    ]


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage as the file says it: its device, and its layers if given."""

    device: Device | Hardware
    layers: int | None


def _stages(pipeline: Pipeline, path: Path) -> list[_Stage]:
    asked_by = f"{path}: a stage's device"
    return [
        _Stage(resolve_device(stage.device, asked_by, path.parent), stage.layers)
        for stage in pipeline.stages
        for _ in range(stage.count)
    ]


def _matters(stages: Sequence[_Stage]) -> bool:
    """Whether layers of a pipeline can be dealt otherwise than evenly, and to unequal devices."""
    differ = any(stage.device != stages[0].device for stage in stages)
    return differ and any(stage.layers is None for stage in stages)


def _most_layers(deployment: Deployment, needs: Sequence[Need], share: float) -> dict[str, int]:
    """The layers that fit a stage beside the other roles of its machine, where that is known."""
    found = {}
    for machine in deployment.machines:
        own = [need for need in needs if need.role in machine.roles]
        if machine.memory_mib is None:
            continue
        for need in own:
            others = sum(other.total for other in own if other is not need)
            fixed = need.buffers + need.ends + need.runtime
            room = share * machine.memory_mib - others - fixed
            found[need.role] = int(room / ((need.weights + need.caches) / need.layers))
    return found


def _cost(
    stage: _Stage, target: ServedModel, tokens: int, context: int, most: int | None
) -> StageCost:
    assert isinstance(stage.device, Hardware)
    service = ServiceTimes("of a stage", stage.device, shape_of, [])
    one, two = (service.stage(target, count)(tokens, context) for count in (1, 2))
    return StageCost(2 * one - two, two - one, most, stage.layers)
