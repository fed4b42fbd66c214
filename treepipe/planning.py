"""Scenario -> plan: names become numbers, layers are dealt out, schedules are made.

Everything that can be wrong with a scenario beyond its shape is found here and ends in a
``UserError`` that names the key.
"""

from __future__ import annotations

from pathlib import Path

from treepipe.errors import UserError
from treepipe.memory import Footprint, check_memory
from treepipe.plan import Placed, Plan, RequestSpec, Serving
from treepipe.profiles.library import find_profile
from treepipe.profiles.schema import AnyDevice, Device, Hardware, Link
from treepipe.scenario import Pipeline, Scenario
from treepipe.schedule_factory import (
    LAYERED,
    ScheduleFactory,
    check_schedule,
    most_tree_tokens,
)
from treepipe.schedules.shared_draft import ServiceLevels
from treepipe.timing import DeviceTimes, LinkTimes, TimeTable
from treepipe.tree import split


def make_plan(
    scenario: Scenario,
    path: Path,
    *,
    layers: int | None = None,
    row_bytes: int | None = None,
    requests: tuple[RequestSpec, ...] | None = None,
    footprint: Footprint | None = None,
) -> Plan:
    """Resolve a scenario.

    Args:
        path: of the scenario, for errors.
        layers, row_bytes, footprint: of the target's checkpoint, where one was opened.
        requests: real prompts; None makes the workload's number of prompts of its length.
    """
    check_schedule(scenario, path)
    drafts = _place_drafts(scenario, path)
    pipelines = _place_pipelines(scenario, path, layers)
    names = {placed.name for placed in (*drafts, *(s for stages in pipelines for s in stages))}
    workload, section = scenario.workload, scenario.schedule
    if requests is None:
        prompt = (0,) * workload.prompt_tokens
        requests = (RequestSpec(prompt, workload.new_tokens),) * workload.requests
    if row_bytes is None:
        row_bytes = 4 * (scenario.target.hidden_size or 0)
    plan = Plan(
        name=scenario.name,
        drafts=drafts,
        pipelines=pipelines,
        new_schedule=ScheduleFactory(section, scenario.sampling),
        requests=requests,
        default_link=_link_times(scenario.links.default, path, "links.default"),
        links=_pair_links(scenario, path, names),
        row_bytes=row_bytes,
        serving=_serving(scenario, path, len(pipelines)),
        group_size=section.group_size,
        central_transfers=section.central_transfers and section.name in LAYERED,
        never_misses=scenario.sampling.rule == "relaxed_best",
        seed=scenario.seed,
    )
    footprint = footprint or Footprint.of(scenario.target)
    if footprint is not None:
        longest = max(len(stages) for stages in pipelines)
        check_memory(plan, footprint, most_tree_tokens(section, longest), path)
    return plan


def _serving(scenario: Scenario, path: Path, pipelines: int) -> Serving:
    given, section = scenario.serving, scenario.schedule
    for key, values in (("weights", given.weights), ("deadlines_ms", given.deadlines_ms)):
        if len(values) > pipelines:
            raise UserError(
                f"{path}: key serving.{key} has {len(values)} values for {pipelines} pipelines"
            )
    limits = {"pipedec": 1, "specpipe": 1, "specpipe_db": section.batch}
    return Serving(
        scenario.workload.concurrency,
        limits.get(section.name),
        given.admission,
        given.queue,
        ServiceLevels(given.weights, given.deadlines_ms),
    )


def _place_drafts(scenario: Scenario, path: Path) -> tuple[Placed, ...]:
    placed: list[Placed] = []
    for index, draft in enumerate(scenario.drafts):
        times = _device_times(_device(draft.device, path, f"drafts.{index}.device"))
        for _ in range(draft.count):
            placed.append(Placed(f"draft{len(placed)}", times))
    return tuple(placed)


def _place_pipelines(
    scenario: Scenario, path: Path, layers: int | None
) -> tuple[tuple[Placed, ...], ...]:
    known = scenario.target.layers
    if layers is not None and known is not None and known != layers:
        raise UserError(
            f"{path}: key target.layers = {known}, but the checkpoint has {layers} layers"
        )
    total = layers if layers is not None else known
    pipelines: list[tuple[Placed, ...]] = []
    for index, pipeline in enumerate(scenario.pipelines):
        for _ in range(pipeline.count):
            name = f"pipeline{len(pipelines)}"
            pipelines.append(_place_stages(pipeline, name, f"pipelines.{index}", path, total))
    return tuple(pipelines)


def _place_stages(
    pipeline: Pipeline, name: str, key: str, path: Path, total: int | None
) -> tuple[Placed, ...]:
    """Args: ``name``: of the pipeline's first copy or a further one; ``key``: in the file."""
    sections = [
        (index, stage) for index, stage in enumerate(pipeline.stages) for _ in range(stage.count)
    ]
    counts = _deal_layers([stage.layers for _, stage in sections], total, f"{path}: key {key}")
    placed, first = [], 0
    for number, ((index, stage), count) in enumerate(zip(sections, counts, strict=True), start=1):
        device = _device(stage.device, path, f"{key}.stages.{index}.device")
        layers = range(first, first + count)
        times = _device_times(device)
        placed.append(Placed(f"{name}.stage{number}", times, layers, device.memory_mib))
        first += count
    return tuple(placed)


def _deal_layers(given: list[int | None], total: int | None, pipeline: str) -> list[int]:
    """Layers per stage: as given, and the rest as evenly as possible, larger shares last."""
    key = f"{pipeline}.stages"
    fixed = sum(count for count in given if count is not None)
    open_stages = given.count(None)
    if total is None:
        total = fixed + open_stages
    if fixed > total or (not open_stages and fixed != total):
        raise UserError(f"{key}: the stages' layers add up to {fixed}, the target has {total}")
    if open_stages > total - fixed:
        raise UserError(
            f"{key}: {total - fixed} layers are left for {open_stages} stages without a number; "
            f"every stage needs at least one"
        )
    shares = iter(split(total - fixed, open_stages, total) if open_stages else [])
    return [next(shares) if count is None else count for count in given]


def _device(device: AnyDevice, path: Path, key: str) -> Device:
    if isinstance(device, Hardware):
        raise UserError(f"{path}: key {key}: a device by its layers is not resolved yet")
    if isinstance(device, str):
        return find_profile("devices", device, Device, f"{path}: key {key}")
    return device


def _device_times(device: Device) -> DeviceTimes:
    return DeviceTimes(
        TimeTable(device.stage_ms),
        TimeTable(device.draft_ms),
        TimeTable(device.evaluate_ms),
        device.decide_ms,
        device.prune_ms,
    )


def _link_times(link: Link | str, path: Path, key: str) -> LinkTimes:
    if isinstance(link, str):
        link = find_profile("links", link, Link, f"{path}: key {key}")
    return LinkTimes(link.latency_ms, link.bandwidth_mbit_s, link.jitter_ms)


def _pair_links(
    scenario: Scenario, path: Path, names: set[str]
) -> dict[tuple[str, str], LinkTimes]:
    links = {}
    for index, pair in enumerate(scenario.links.pairs):
        for end in pair.ends:
            if end not in names:
                raise UserError(
                    f"{path}: key links.pairs.{index}.ends names {end!r}; "
                    f"there are {', '.join(sorted(names))}"
                )
        times = _link_times(pair, path, "links.pairs")
        links[pair.ends] = times
        if not pair.one_way:
            links[pair.ends[::-1]] = times
    return links
