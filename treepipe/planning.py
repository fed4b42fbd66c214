"""Scenario -> plan: names become numbers, layers are dealt out, schedules are made.

Everything that can be wrong with a scenario beyond its shape is found here and ends in a
``UserError`` that names the key.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from treepipe.errors import UserError
from treepipe.plan import Placed, Plan, RequestSpec
from treepipe.profiles.library import find_profile
from treepipe.protocol import Schedule
from treepipe.scenario import Device, Link, Scenario, ScheduleSection
from treepipe.schedules.autoregressive import Autoregressive
from treepipe.schedules.continuous import Continuous, Expansion
from treepipe.schedules.static_tree import StaticTree
from treepipe.schedules.tree_schedule import TreeParameters
from treepipe.timing import DeviceTimes, LinkTimes, TimeTable
from treepipe.tree import split


def new_schedule(section: ScheduleSection, stages: int, session: int) -> Schedule:
    """A fresh schedule of one request on a pipeline of ``stages`` stages."""
    if section.name == "pp":
        return Autoregressive(session, section.prefill_chunk)
    score_order = section.score_order
    if score_order is None:
        score_order = section.name != "naive_pp"
    parameters = TreeParameters(
        section.tree_size, section.tree_depth, section.top_k, section.segment_tokens, score_order
    )
    if section.name == "naive_pp":
        return StaticTree(session, section.prefill_chunk, parameters, stages + 1)
    expansion = Expansion(
        section.expand_size,
        section.expand_depth,
        section.context_aware,
        section.score_aware,
        section.score_aware_size,
        section.score_aware_depth,
    )
    return Continuous(
        session,
        section.prefill_chunk,
        parameters,
        stages + 1,
        expansion if section.name == "flowspec" else None,
    )


def make_plan(
    scenario: Scenario,
    path: Path,
    *,
    layers: int | None = None,
    row_bytes: int | None = None,
    requests: tuple[RequestSpec, ...] | None = None,
) -> Plan:
    """Resolve a scenario.

    Args:
        path: of the scenario, for errors.
        layers, row_bytes: of the target's checkpoint, where one was opened.
        requests: real prompts; None makes the workload's number of prompts of its length.
    """
    stages = _place_stages(scenario, path, layers)
    draft = Placed("draft0", _device_times(scenario.drafts[0].device, path, "drafts.0.device"))
    names = {draft.name, *(stage.name for stage in stages)}
    workload = scenario.workload
    if requests is None:
        prompt = (0,) * workload.prompt_tokens
        requests = (RequestSpec(prompt, workload.new_tokens),) * workload.requests
    if row_bytes is None:
        row_bytes = 4 * (scenario.target.hidden_size or 0)
    return Plan(
        name=scenario.name,
        draft=draft,
        stages=stages,
        new_schedule=partial(new_schedule, scenario.schedule, len(stages)),
        requests=requests,
        default_link=_link_times(scenario.links.default, path, "links.default"),
        links=_pair_links(scenario, path, names),
        row_bytes=row_bytes,
        seed=scenario.seed,
    )


def _place_stages(scenario: Scenario, path: Path, layers: int | None) -> tuple[Placed, ...]:
    known = scenario.target.layers
    if layers is not None and known is not None and known != layers:
        raise UserError(
            f"{path}: key target.layers = {known}, but the checkpoint has {layers} layers"
        )
    sections = [
        (index, stage)
        for index, stage in enumerate(scenario.pipelines[0].stages)
        for _ in range(stage.count)
    ]
    total = layers if layers is not None else known
    counts = _deal_layers([stage.layers for _, stage in sections], total, path)
    placed, first = [], 0
    for number, ((index, stage), count) in enumerate(zip(sections, counts, strict=True), start=1):
        times = _device_times(stage.device, path, f"pipelines.0.stages.{index}.device")
        placed.append(Placed(f"pipeline0.stage{number}", times, range(first, first + count)))
        first += count
    return tuple(placed)


def _deal_layers(given: list[int | None], total: int | None, path: Path) -> list[int]:
    """Layers per stage: as given, and the rest as evenly as possible, larger shares last."""
    key = f"{path}: key pipelines.0.stages"
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


def _device_times(device: Device | str, path: Path, key: str) -> DeviceTimes:
    if isinstance(device, str):
        device = find_profile("devices", device, Device, f"{path}: key {key}")
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
