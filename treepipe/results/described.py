"""What a notebook shows of a scenario or a cluster: its devices before anything is simulated."""

from __future__ import annotations

from treepipe.core.errors import UserError
from treepipe.results.screen import Screen
from treepipe.results.sheet import Sheet, columns, figures, words
from treepipe.scenario.making import taken_as_exact
from treepipe.scenario.resolve import estimate_warnings, resolve
from treepipe.scenario.scenario import Scenario


def scenario_screen(scenario: Scenario) -> Screen:
    """Make the screen of a scenario."""
    try:
        deployment = resolve(scenario)
    except UserError as error:
        return Screen(f"{scenario.name}: {error}")
    roles, table = deployment.roles, columns("a pass over one row (ms)|.4g")
    sheet = Sheet("", [*words("role"), *figures("layers"), *table])
    passes = {each: each.times.stage(1) for row in roles.pipelines for each in row}
    for each in roles.placed:
        ms = passes.get(each, each.times.draft(1))
        sheet.add(each.name, f"{len(each.layers)}" if each.layers else "", ms)
    slowest = max(passes, key=passes.__getitem__)
    whole = sum(passes[each] for row in roles.pipelines if slowest in row for each in row)
    share, named = passes[slowest] / (whole or 1.0), scenario.content.get("schedule", {})
    schedule = f"schedule {named['name']}" if "name" in named else "its schedule open"
    return Screen(
        f"{scenario.name}: {schedule}, stages: {len(passes)}, draft servers: {len(roles.drafts)}",
        sheet,
        [f"Binds a plain pass: {slowest.name}, {share:.0%} of its stages' time."],
        [*estimate_warnings(deployment), *deployment.warnings],
        taken_as_exact(scenario),
    )
