"""Checks that a scenario's schedule can run on its cluster with its verification rule.

A system's requirements are in its record (``core/system.py``).
"""

from __future__ import annotations

from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.core.schedules import systems
from treepipe.core.system import Ends, Parameters, System
from treepipe.core.verification import DRAWN, RULES
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import HIT_RATIOS, Bernoulli

MOST_ROLES = 10_000
MOST_NODES = 1_000_000
"""Most nodes of one request's tree, far beyond what any target verifies at once."""


def unused_warnings(scenario: Scenario) -> list[str]:
    """Return warnings of keys that were given but that the schedule does not read."""
    section = scenario.schedule
    return [
        f"key schedule.{key} has no effect on {section.name}"
        + (f" with schedule.{by}" if by else "")
        for key, by in sorted(section.unread.items())
    ]


def ends_of(scenario: Scenario) -> Ends:
    """Return the location of the target's ends: the scenario's choice, else the published one,
    unless the verification rule needs the tree, which only the draft has."""
    section, rule = scenario.schedule, scenario.sampling.rule
    if "ends" not in section.model_fields_set and RULES[rule].needs_tree:
        return "draft"
    ends: Ends = section.parameters.ends
    return ends


def ends_warnings(scenario: Scenario) -> list[str]:
    """Return a warning if the verification rule moves the ends from their published location."""
    section, rule = scenario.schedule, scenario.sampling.rule
    if ends_of(scenario) == section.parameters.ends:
        return []
    return [
        f"sampling.rule = {rule!r} needs the drafted tree, so embedding, projection and "
        f"verification are the draft server's (schedule.ends = 'draft'), not the pipeline's as "
        f"published for {section.name}"
    ]


def prefill_warnings(scenario: Scenario) -> list[str]:
    """Return a warning if the scenario asks for parallel prefill and its draft cannot do it."""
    section = scenario.schedule
    asked = "parallel_prefill" in section.model_fields_set and section.parameters.parallel_prefill
    sources = sorted({each.source for each in scenario.drafts if each.drafter.reads_states})
    if not (asked and sources):
        return []
    return [
        f"key schedule.parallel_prefill has no effect on a draft of source "
        f"{' or '.join(map(repr, sources))}, which reads the target's states of the prompt"
    ]


def least_probabilities(scenario: Scenario) -> tuple[float, ...]:
    """Return each draft server's least probability of a candidate; empty if no limit."""
    given = [each.least_probability for each in scenario.drafts for _ in range(each.count)]
    return tuple(given) if scenario.schedule.system.drafts and any(given) else ()


def _check_least(scenario: Scenario) -> None:
    """Refuse a least probability with a rule or a pool that ignores omitted candidates."""
    if not least_probabilities(scenario):
        return
    key = f"{scenario.path}: key drafts.least_probability"
    if scenario.sampling.rule in DRAWN:
        raise UserError(
            f"{key} contradicts sampling.rule = {scenario.sampling.rule!r}, which judges every "
            f"drawn candidate"
        )
    if isinstance(scenario.acceptance, Bernoulli | HIT_RATIOS):
        raise UserError(
            f"{key} asks for a draft's own probabilities, which acceptance.source = "
            f"{scenario.acceptance.source!r} does not have; a recorded pool has them"
        )


def _in_turn(parameters: Parameters) -> bool:
    return not parameters.drafts_ahead and max(parameters.candidates().values(), default=1) == 1


def _check_in_turn(scenario: Scenario) -> None:
    """Refuse a draft that works in turn with the target where a schedule wants more of it."""
    system, parameters = scenario.schedule.system, scenario.schedule.parameters
    heads = [each for each in scenario.drafts if each.drafter.in_turn]
    if not heads or not system.drafts or _in_turn(parameters):
        return
    able = [n for n, s in systems().items() if s.drafts and _in_turn(s.parameters())]
    raise UserError(
        f"{scenario.path}: key drafts.source = {heads[0].source!r}: {heads[0].drafter.summary} "
        f"drafts one chain, in turn with the target, whose state behind the newest token it reads; "
        f"so it serves no trees and nothing that is drafted ahead, but {', '.join(able)}"
    )


def _check_lookup(scenario: Scenario) -> None:
    """Refuse prompt lookup, or another draft, in front of a draft whose pass does not check a chain
    of tokens."""
    levels = any(each.agreement is not None for each in scenario.drafts)
    key = "schedule.lookup" if scenario.schedule.parameters.lookup else "drafts.agreement"
    for each in scenario.drafts if levels or scenario.schedule.parameters.lookup else ():
        if each.drafter.drafts_blocks or each.drafter.reads_states:
            raise UserError(
                f"{scenario.path}: key {key} is for drafts that read tokens alone, one "
                f"row for each, not for source {each.source!r}"
            )


def _check_levels(scenario: Scenario) -> None:
    """Refuse drafts of drafts where nothing would read what they draft, or how often."""
    drafts, section, rule = scenario.drafts, scenario.schedule, scenario.sampling.rule
    below = [n for n, draft in enumerate(drafts) if draft.agreement is not None]
    if not below:
        return
    key, able = f"{scenario.path}: key drafts.{below[0]}.agreement", systems().items()
    heads = sum(draft.count for draft in drafts[: below[0]])
    rows = sum(draft.count for draft in drafts[below[0] :])
    if not section.system.levels:
        others = ", ".join(name for name, each in able if each.levels)
        raise UserError(f"{key}: {section.name!r} has no drafts of drafts, but {others} has")
    if below != [*range(below[0], len(drafts))] or not heads or rows % heads:
        raise UserError(
            f"{key}: drafts of drafts stand behind all drafts of the target, in rows of as many; "
            f"there are {heads} of the target before it, and {rows} behind"
        )
    for wrong, why in (
        (not section.parameters.drafts_ahead, "schedule.draft_ahead = false: none works ahead"),
        (section.parameters.lookup, "schedule.lookup, a second draft of the same draft"),
        (rule != "exact", f"sampling.rule = {rule!r}"),
        (least_probabilities(scenario), "drafts.least_probability, of which no text tells"),
    ):
        if wrong:
            raise UserError(f"{key} contradicts {why}")


def check_schedule(scenario: Scenario) -> None:
    """Raise ``UserError`` for parameters that contradict each other or the cluster."""
    section, system, path = scenario.schedule, scenario.schedule.system, scenario.path
    _check_levels(scenario)
    _check_least(scenario)
    _check_in_turn(scenario)
    _check_lookup(scenario)
    _check_sizes(scenario, path)
    if system.in_lock_step:
        _check_lock_step(scenario, f"{path}: key schedule")
    rule, key = scenario.sampling.rule, f"{path}: key sampling.rule"
    if rule in DRAWN and not system.drawn:
        able = [each.name for each in systems().values() if each.drawn]
        raise UserError(
            f"{key} = {rule!r} needs drawn trees, but {section.name!r} takes the most probable "
            f"candidates; it is for {', '.join(able)}"
        )
    if rule in DRAWN and not section.parameters.drawable:
        raise UserError(
            f"{key} = {rule!r} needs drawn trees, but a dynamic one (schedule.tree_size) takes "
            f"the most probable candidates; a chain or schedule.branching would do"
        )
    if rule in DRAWN and section.parameters.cut:
        raise UserError(
            f"{key} = {rule!r} contradicts schedule.dynamic_length, which cuts chains by the "
            f"probabilities of their tokens: those of drawn ones depend on the draw, so the text "
            f"would lose the target's distribution; rule 'exact' keeps it"
        )
    whole = rule == "block"  # it judges a chain at once
    if rule in ("adaptive", "block") and not _is_chained(system, whole=whole):
        able = [each.name for each in systems().values() if _is_chained(each, whole=whole)]
        raise UserError(f"{key} = {rule!r} is for chains ({', '.join(able)}), not {section.name!r}")
    if ends_of(scenario) == "pipeline" and RULES[rule].needs_tree:
        raise UserError(
            f"{path}: key schedule.ends = 'pipeline' contradicts sampling.rule = {rule!r}, which "
            f"needs the drafted tree; 'draft' is where it can run"
        )
    if not system.drafts and rule != "exact":
        raise UserError(f"{key}: plain decoding has no drafted token to judge")


def _is_chained(system: System, *, whole: bool) -> bool:
    """Whether trees never branch, and with ``whole`` come back in one piece."""
    return system.chains and not (whole and system.in_lock_step)


def _check_sizes(scenario: Scenario, path: Path) -> None:
    """Refuse more roles or tree nodes than a simulation can hold, before building any."""
    roles = sum(draft.count for draft in scenario.drafts)
    roles += sum(pipeline.count * pipeline.length for pipeline in scenario.pipelines)
    if roles > MOST_ROLES:
        raise UserError(
            f"{path}: keys drafts and pipelines make {roles:,} roles by their count; there may be "
            f"{MOST_ROLES:,}"
        )
    section, stages = scenario.schedule, max(each.length for each in scenario.pipelines)
    bounds = section.system.bounds(section.parameters, stages)
    nodes = max(bounds.tree_tokens, bounds.scratch_tokens)
    if nodes > MOST_NODES:
        raise UserError(
            f"{path}: the keys of schedule make trees of up to {nodes:,} nodes on {section.name}; "
            f"there may be {MOST_NODES:,}"
        )


def _check_lock_step(scenario: Scenario, key: str) -> None:
    section, groups = scenario.schedule, scenario.schedule.parameters.groups
    for index, pipeline in enumerate(scenario.pipelines):
        stages = pipeline.length
        if isinstance(groups, tuple) and sum(groups) != stages:
            raise UserError(
                f"{key}.groups = {list(groups)} are groups of {sum(groups)} stages in all, "
                f"pipelines.{index} has {stages}"
            )
        if isinstance(groups, int) and groups > stages:
            raise UserError(
                f"{key}.groups = {groups} is more than the {stages} stages of pipelines.{index}"
            )
    drafts = sum(draft.count for draft in scenario.drafts)
    if drafts > 1:
        raise UserError(
            f"{key}.name = {section.name!r} uses one draft server, there are {drafts}: the steps "
            f"of a pipeline have one master"
        )
