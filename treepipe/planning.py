"""Scenario -> plan: links and requests become numbers, schedules are made.

Who works where, and how long that takes, is in ``placement.py``.

Everything that can be wrong with a scenario beyond its shape is found here and ends in a
``UserError`` that names the key.
"""

from __future__ import annotations

from pathlib import Path

from treepipe.errors import UserError
from treepipe.memory import Footprint, check_memory
from treepipe.placement import Placement
from treepipe.plan import Plan, RequestSpec, Serving
from treepipe.profiles.library import find_link
from treepipe.profiles.schema import Link
from treepipe.scenario import Scenario
from treepipe.schedule_factory import (
    LAYERED,
    ScheduleFactory,
    check_schedule,
    most_tree_tokens,
)
from treepipe.schedules.shared_draft import ServiceLevels
from treepipe.timing import LinkTimes, TimeTable
from treepipe.workload import draw_requests


def make_plan(
    scenario: Scenario,
    path: Path,
    *,
    layers: int | None = None,
    row_bytes: int | None = None,
    requests: tuple[RequestSpec, ...] | None = None,
    footprint: Footprint | None = None,
    seed: int | None = None,
) -> Plan:
    """Resolve a scenario.

    Args:
        path: of the scenario, for errors.
        layers, row_bytes, footprint: of the target's checkpoint, where one was opened.
        requests: with real prompts, or recorded ones; None draws the workload's.
        seed: of the run; None is the scenario's.
    """
    check_schedule(scenario, path)
    placement = Placement(scenario, path, layers)
    drafts, pipelines = placement.drafts(), placement.pipelines()
    machines = placement.machines()
    names = {placed.name for placed in (*drafts, *(s for stages in pipelines for s in stages))}
    section = scenario.schedule
    seed = scenario.seed if seed is None else seed
    if requests is None:
        requests = draw_requests(scenario, path, seed)
    if row_bytes is None:
        row_bytes = placement.row_bytes
    warnings = placement.warnings
    plan = Plan(
        name=scenario.name,
        drafts=drafts,
        pipelines=pipelines,
        new_schedule=ScheduleFactory(section, scenario.sampling),
        requests=requests,
        default_link=_link_times(scenario.links.default, path, "links.default", warnings),
        links=_pair_links(scenario, path, names, warnings),
        row_bytes=row_bytes,
        serving=_serving(scenario, path, len(pipelines)),
        group_size=section.group_size,
        central_transfers=section.central_transfers and section.name in LAYERED,
        never_misses=scenario.sampling.rule == "relaxed_best",
        seed=seed,
        warnings=tuple(warnings),
        machines=machines,
    )
    footprint = footprint or placement.footprint
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
    places = [n for n in (limits.get(section.name), given.places) if n is not None]
    return Serving(
        scenario.workload.concurrency,
        min(places, default=None),
        given.admission,
        given.queue,
        ServiceLevels(given.weights, given.deadlines_ms),
    )


def _link_times(link: Link | str, path: Path, key: str, warnings: list[str]) -> LinkTimes:
    """Args: ``warnings``: gets what the worlds do not do of what the link says."""
    name = f"{path}: key {key}"
    if isinstance(link, str):
        link, name = find_link(link, name, path.parent), f"link {link}"
    if link.duplex == "half":
        warnings.append(f"{name}: half duplex is not modelled, both directions are free")
    if link.jitter_ms and link.jitter != "half_normal":
        warnings.append(f"{name}: jitter is drawn from |normal|, not as {link.jitter}")
    transfer = None if link.transfer_ms is None else TimeTable(link.transfer_ms)
    return LinkTimes(
        link.latency_ms, link.bandwidth_mbit_s, link.jitter_ms, link.message_ms, transfer
    )


def _pair_links(
    scenario: Scenario, path: Path, names: set[str], warnings: list[str]
) -> dict[tuple[str, str], LinkTimes]:
    links = {}
    for index, pair in enumerate(scenario.links.pairs):
        for end in pair.ends:
            if end not in names:
                raise UserError(
                    f"{path}: key links.pairs.{index}.ends names {end!r}; "
                    f"there are {', '.join(sorted(names))}"
                )
        times = _link_times(pair, path, f"links.pairs.{index}", warnings)
        links[pair.ends] = times
        if not pair.one_way:
            links[pair.ends[::-1]] = times
    return links
