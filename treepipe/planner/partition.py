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

from treepipe.core.layers import PartitionRule, StageCost, deal
from treepipe.profiles.library import resolve_device, shape_of
from treepipe.profiles.schema import Device, Hardware
from treepipe.profiles.service import ServedModel, ServiceTimes
from treepipe.scenario.memory import cache_entries, memory_needs, most_layers
from treepipe.scenario.placement import place
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schedule_check import ends_of
from treepipe.scenario.schema import Pipeline
from treepipe.scenario.workload import draw_requests


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
    rooms = most_layers(deployment, memory_needs(deployment), share)
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


def _cost(
    stage: _Stage, target: ServedModel, tokens: int, context: int, most: int | None
) -> StageCost:
    assert isinstance(stage.device, Hardware)
    service = ServiceTimes("of a stage", stage.device, shape_of, [])
    one, two = (service.stage(target, count)(tokens, context) for count in (1, 2))
    return StageCost(2 * one - two, two - one, most, stage.layers)
