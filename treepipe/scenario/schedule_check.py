"""Whether a scenario's schedule can run on its cluster by its rule of verification.

Everything asked of a system is in its record (``core/system.py``).
"""

from __future__ import annotations

from treepipe.core.errors import UserError
from treepipe.core.schedules import systems
from treepipe.scenario.scenario import Scenario


def unused_warnings(scenario: Scenario) -> list[str]:
    """Of keys that were given and that the schedule does not read."""
    section = scenario.schedule
    return [
        f"key schedule.{key} has no effect on {section.name}"
        + (f" with schedule.{by}" if by else "")
        for key, by in sorted(section.unread.items())
    ]


def check_schedule(scenario: Scenario) -> None:
    """Raises ``UserError`` for parameters that contradict each other or the cluster."""
    section, system, path = scenario.schedule, scenario.schedule.system, scenario.path
    if system.in_lock_step:
        _check_lock_step(scenario, f"{path}: key schedule")
    rule, key = scenario.sampling.rule, f"{path}: key sampling.rule"
    if rule == "rejection" and not system.drawn:
        able = [each.name for each in systems().values() if each.drawn]
        raise UserError(
            f"{key} = 'rejection' needs drawn trees, but {section.name!r} takes the most probable "
            f"candidates; it is for {', '.join(able)}"
        )
    if rule == "adaptive" and not system.chains:
        able = [each.name for each in systems().values() if each.chains]
        raise UserError(
            f"{key} = 'adaptive' is for chains ({', '.join(able)}), not {section.name!r}"
        )
    if not system.drafts and rule != "exact":
        raise UserError(f"{key}: plain decoding has no drafted token to judge")


def _check_lock_step(scenario: Scenario, key: str) -> None:
    section, size = scenario.schedule, scenario.schedule.parameters.group_size
    for index, pipeline in enumerate(scenario.pipelines):
        stages = sum(stage.count for stage in pipeline.stages)
        if stages % size:
            raise UserError(
                f"{key}.group_size = {size} does not divide the {stages} stages of "
                f"pipelines.{index}"
            )
    drafts = sum(draft.count for draft in scenario.drafts)
    if drafts > 1:
        raise UserError(
            f"{key}.name = {section.name!r} uses one draft server, there are {drafts}: the steps "
            f"of a pipeline have one master"
        )
