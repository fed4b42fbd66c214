"""Partitions: rules that assign layers to the stages of pipelines with unequal devices.

A stage takes a fixed time and a time per layer, both from the service times of
``profiles/service.py``. A device that states its whole role's times has no time per layer; such
pipelines are only partitioned evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from treepipe.core.errors import UserError
from treepipe.core.layers import PartitionRule, StageCost, deal
from treepipe.planner.cluster import Cluster
from treepipe.planner.splits import tries_splits
from treepipe.profiles.library import resolve_device, shape_of
from treepipe.profiles.schema import Device, Hardware
from treepipe.profiles.service import ServedModel, ServiceTimes
from treepipe.scenario.deployment import Deployment, Placed
from treepipe.scenario.memory import cache_entries, memory_needs, most_layers
from treepipe.scenario.placement import place
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Pipeline
from treepipe.scenario.workload import draw_requests
from treepipe.sim.theory.closed_form import resolve_admission

Written: TypeAlias = tuple[Device | Hardware, int | None]
"""A stage as in the file: its device, and its layers if given."""


def uneven_partitions(
    scenario: Scenario, rules: Sequence[PartitionRule], share: float
) -> dict[PartitionRule, list[list[int]]]:
    """Return layers of every stage of every ``[[pipelines]]`` by rule, if devices differ.

    ``share`` is the usable part of a device's memory. Raises ``UserError`` if the scenario is
    invalid with any partition.
    """
    devices = [_stages(pipeline, scenario.path) for pipeline in scenario.pipelines]
    by_layer = all(isinstance(device, Hardware) for stages in devices for device, _ in stages)
    shared = {d.host for d in scenario.drafts if scenario.schedule.system.drafts} - {None}
    drafting = any(s.host in shared for pipeline in scenario.pipelines for s in pipeline.stages)
    if not (by_layer and any(_matters(stages, drafting=drafting) for stages in devices)):
        return {}
    placement = place(scenario)
    target = placement.target
    assert target is not None, "hardware was named"
    deployment = resolve(scenario, placement).asked(draw_requests(scenario, scenario.seed))
    rooms = most_layers(deployment, memory_needs(deployment), share)
    firsts = [sum(p.count for p in scenario.pipelines[:i]) for i in range(len(devices))]
    placed = [deployment.roles.pipelines[first] for first in firsts]
    tokens = deployment.service.bounds.segment_tokens
    context = cache_entries(deployment, 0) // 2
    costs = [
        [
            _cost(*stage, place, deployment, target, context, rooms.get(place.name))
            for stage, place in zip(stages, places, strict=True)
        ]
        for stages, places in zip(devices, placed, strict=True)
    ]
    if deployment.roles.ends == "pipeline":
        for of_pipeline, places in zip(costs, placed, strict=True):
            times, last = places[-1].times, of_pipeline[-1]
            verified_ms = times.verify(tokens, 1) + times.decide
            of_pipeline[-1] = replace(last, call_ms=last.call_ms + verified_ms)
    for of_pipeline, places in zip(costs, placed, strict=True):
        for number, stage in enumerate(places):
            more_ms = _draft_servers_ms(scenario, deployment, stage.name, tokens)
            of_pipeline[number] = replace(
                of_pipeline[number], call_ms=of_pipeline[number].call_ms + more_ms
            )
    found: dict[PartitionRule, list[list[int]]] = {}
    even = [[len(place.layers) for place in places] for places in placed]
    for rule in rules:
        dealt = [deal(rule, stages, target.shape.layers) for stages in costs]
        whole = [counts for counts in dealt if counts is not None]
        if len(whole) == len(dealt) and whole != even and whole not in found.values():
            found[rule] = whole
    return found


def partitions(cluster: Cluster, scenario: Scenario) -> Iterator[tuple[PartitionRule, Scenario]]:
    """Yield the scenario with the layers that each of the search's rules deals out; where splits
    are tried and the file names no rule, "balanced" alone."""
    rules = cluster.search.partitions
    if tries_splits(cluster) and "partitions" not in cluster.search.model_fields_set:
        rules = ("balanced",)
    try:
        uneven = [rule for rule in rules if rule != "even"]
        dealt = uneven_partitions(
            resolve_admission(scenario), uneven, cluster.search.limits.memory_share
        )
    except UserError:
        dealt = {}  # invalid; the even partition gives the reason
    if "even" in rules or not dealt:
        yield "even", scenario  # with equal devices also the balanced one
    for rule, counts in dealt.items():
        content = scenario.content
        for pipeline, layers in zip(content["pipelines"], counts, strict=True):
            pipeline["stages"] = with_layers(pipeline["stages"], layers)
        yield rule, Scenario.of(content, scenario.path)


def with_layers(stages: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> list[dict[str, Any]]:
    """Write a pipeline's stages as in a file, with their layers; equal neighbours are merged.

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


def _stages(pipeline: Pipeline, path: Path) -> list[Written]:
    asked_by = f"{path}: a stage's device"
    return [
        (resolve_device(stage.device, asked_by, path.parent), stage.layers)
        for stage in pipeline.stages
        for _ in range(stage.count)
    ]


def _matters(stages: Sequence[Written], *, drafting: bool) -> bool:
    """Return whether the pipeline's layers are not fixed, and its devices are unequal or also
    ``drafting``."""
    devices, layers = zip(*stages, strict=True)
    return None in layers and (drafting or any(device != devices[0] for device in devices))


def _draft_servers_ms(scenario: Scenario, deployment: Deployment, stage: str, tokens: int) -> float:
    """Return how long draft servers keep a stage's device in a round: as many passes as the
    schedule drafts tokens in a row, and the verification of ``tokens`` if it is theirs."""
    roles, machine = deployment.roles, deployment.roles.machine(stage)
    if machine.capacity >= len(machine.roles) or not scenario.schedule.system.drafts:
        return 0.0
    passes = max(scenario.schedule.parameters.lengths().values(), default=1)
    times = [draft.times for draft in roles.drafts if draft.name in machine.roles]
    verifies = roles.ends == "draft"
    return sum(
        passes * each.draft(1) + verifies * (each.verify(tokens, 1) + each.decide) for each in times
    )


def _cost(
    device: Device | Hardware,
    layers: int | None,
    place: Placed,
    deployment: Deployment,
    target: ServedModel,
    context: int,
    most: int | None,
) -> StageCost:
    assert isinstance(device, Hardware)
    service, part = ServiceTimes("of a stage", device, shape_of, []), target.shared(place.tensor)
    tokens = deployment.service.bounds.segment_tokens
    one, two = (service.stage(part, count)(tokens, context) for count in (1, 2))
    layer_ms = two - one + deployment.all_reduces_ms(place, tokens)
    return StageCost(2 * one - two, layer_ms, most, layers)
