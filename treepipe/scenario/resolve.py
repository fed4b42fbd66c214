"""Scenario -> plan: requests become numbers, schedules are made.

Who works where, and how long that takes, is in ``placement.py``; links are in ``links.py``.

Everything that can be wrong with a scenario beyond its shape is found here and ends in a
``UserError`` that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.core.front_desk import ServiceLevels
from treepipe.scenario.deployment import Plan, RequestSpec, Serving
from treepipe.scenario.links import link_estimates, named_link, pair_links
from treepipe.scenario.machines import running_warnings
from treepipe.scenario.memory import Footprint, Need, check_memory, memory_needs, unchecked_memory
from treepipe.scenario.placement import Placement
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schedule_check import check_schedule, unused_warnings
from treepipe.scenario.unread import unread_warnings
from treepipe.scenario.workload import draw_requests, workload_warnings


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
    plan, needs = lay_out(
        scenario,
        path,
        layers=layers,
        row_bytes=row_bytes,
        requests=requests,
        footprint=footprint,
        seed=seed,
    )
    check_memory(plan, needs, path)
    return replace(plan, warnings=(*plan.warnings, *unchecked_memory(plan, needs)))


def input_warnings(scenario: Scenario, plan: Plan) -> list[str]:
    """What every result of a plan has to say of its inputs, a sentence each; for all commands.

    Args: ``plan``: of the scenario; its own warnings are among them.
    """
    return [
        *plan.warnings,
        *unused_warnings(scenario),
        *workload_warnings(scenario),
        *unread_warnings(scenario, plan),
    ]


def lay_out(
    scenario: Scenario,
    path: Path,
    *,
    layers: int | None = None,
    row_bytes: int | None = None,
    requests: tuple[RequestSpec, ...] | None = None,
    footprint: Footprint | None = None,
    seed: int | None = None,
) -> tuple[Plan, list[Need]]:
    """A plan that may not fit its devices, and what each role needs of their memory.

    Args: as ``make_plan`` takes them. Needs are empty if nothing tells the target's size.
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
    plan = Plan(
        name=scenario.name,
        drafts=drafts,
        pipelines=pipelines,
        new_schedule=section.choose(drawn=scenario.sampling.rule == "rejection"),
        requests=requests,
        default_link=named_link(scenario.links.default, path, "links.default"),
        links=pair_links(scenario, path, names),
        local_link=named_link(scenario.links.local, path, "links.local"),
        row_bytes=row_bytes,
        serving=_serving(scenario, path, len(pipelines)),
        group_size=section.parameters.group_size,
        central_transfers=section.parameters.central_transfers,
        never_misses=scenario.sampling.rule == "relaxed_best",
        seed=seed,
        warnings=(
            *_uncertain({**placement.estimates, **link_estimates(scenario, path)}),
            *placement.warnings,
            *running_warnings(machines),
        ),
        machines=machines,
    )
    footprint = footprint or placement.footprint
    needs: list[Need] = []
    if footprint is not None:
        needs = memory_needs(plan, section, footprint, placement.draft_footprints)
    return plan, needs


def _uncertain(estimates: Mapping[str, float]) -> list[str]:
    """Args: ``estimates``: relative uncertainty by what it is of."""
    if not estimates:
        return []
    each = ", ".join(f"{name} ±{share * 100:.3g} %" for name, share in estimates.items())
    return [f"inputs are estimates: {each}; no interval includes this"]


def _serving(scenario: Scenario, path: Path, pipelines: int) -> Serving:
    given, section = scenario.serving, scenario.schedule
    for key, values in (("weights", given.weights), ("deadlines_ms", given.deadlines_ms)):
        if len(values) > pipelines:
            raise UserError(
                f"{path}: key serving.{key} has {len(values)} values for {pipelines} pipelines"
            )
    own = section.system.places(section.parameters)
    places = [n for n in (own, given.places) if n is not None]
    return Serving(
        scenario.workload.concurrency,
        min(places, default=None),
        given.admission,
        given.queue,
        ServiceLevels(given.weights, given.deadlines_ms),
    )
