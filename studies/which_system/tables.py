"""The study's tables."""

from __future__ import annotations

from treepipe.planner.halving import Found
from treepipe.results.sheet import Column, Sheet
from treepipe.studies.which_system.gains import (
    Results,
    draft_busy,
    gain,
    geometric_mean,
    rivals,
    shares_of,
)
from treepipe.studies.which_system.places import METRICS, NAME, PLAIN, Settings


def winners(found: Results) -> Sheet:
    sheet = Sheet(
        NAME,
        "Who wins where: every system with its best parameters, against plain decoding (pp)",
        [
            Column("cluster"),
            Column("goal"),
            Column("best plan"),
            Column("ms or tokens/s", shown=".4g"),
            Column("low", shown=".4g"),
            Column("high", shown=".4g"),
            Column("times pp", shown=".2f"),
            Column("times pp, low", shown=".2f"),
            Column("times pp, high", shown=".2f"),
            Column("not distinguishable from it (95 %)"),
            Column("next system"),
        ],
    )
    for (place, goal), each in found.items():
        metric, systems = METRICS[goal], each.best_of_each
        value = each.best.outcome.metrics[metric]
        over = gain(each.best, systems[PLAIN], metric)
        sheet.add(
            place.name,
            goal,
            each.best.candidate.label,
            *(value.mean, value.low, value.high, over.mean, over.low, over.high),
            ", ".join(rivals(each)) or "-",
            _next(each),
        )
    return sheet


def _next(found: Found) -> str:
    """The second system, and how far behind: beyond doubt is not always much."""
    others = [each for each in found.best_of_each.values() if each.gap is not None]
    if not others or others[0].gap is None:
        return "-"
    return f"{others[0].candidate.schedule} ({others[0].gap.mean:+.1%})"


def all_plans(found: Results) -> Sheet:
    sheet = Sheet(
        f"{NAME}-all",
        "Every system's best plan",
        [
            Column("cluster"),
            Column("goal"),
            Column("plan"),
            Column("ms or tokens/s", shown=".4g"),
            Column("low", shown=".4g"),
            Column("high", shown=".4g"),
            Column("times pp", shown=".2f"),
            Column("times pp, low", shown=".2f"),
            Column("times pp, high", shown=".2f"),
            Column("draft busy", shown=".0%"),
        ],
    )
    for (place, goal), each in found.items():
        metric, systems = METRICS[goal], each.best_of_each
        for ranked in systems.values():
            value, over = ranked.outcome.metrics[metric], gain(ranked, systems[PLAIN], metric)
            sheet.add(
                place.name,
                goal,
                ranked.candidate.label,
                *(value.mean, value.low, value.high, over.mean, over.low, over.high),
                draft_busy(ranked),
            )
    return sheet


def one_everywhere(settings: Settings, found: Results) -> Sheet:
    """The advice without a planner: always the same system."""
    sheet = Sheet(
        f"{NAME}-everywhere",
        "One system for all clusters: what share of the winner's speed it reaches",
        [
            Column("system"),
            *(
                Column(f"{goal}, {what}", shown=".0%")
                for goal in settings.amounts
                for what in ("mean", "worst")
            ),
        ],
    )
    for schedule in settings.schedules:
        cells: list[float | None] = []
        for goal in settings.amounts:
            shares = shares_of(found, schedule, goal)
            cells += [geometric_mean(shares), min(shares)] if shares else [None, None]
        sheet.add(schedule, *cells)
    return sheet
