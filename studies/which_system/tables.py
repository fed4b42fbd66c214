"""The study's tables."""

from __future__ import annotations

from treepipe.planner.halving import Found, Ranked
from treepipe.results.sheet import Column, Sheet
from treepipe.studies.reproduction import cells, estimate
from treepipe.studies.which_system.gains import (
    Results,
    best_in,
    draft_busy,
    gain,
    geometric_mean,
    rivals,
    shares_of,
)
from treepipe.studies.which_system.places import METRICS, NAME, Goal, Settings

_GAIN = (
    *estimate("ms or tokens/s", shown=".4g"),
    *estimate("times pp", shown=".2f", ends="times pp, "),
)


def _gain_cells(found: Found, ranked: Ranked, goal: Goal) -> tuple[float | None, ...]:
    """What stands below ``_GAIN``."""
    over = gain(found, ranked.candidate.schedule)
    return *cells(ranked.outcome.metrics[METRICS[goal]]), *cells(over)


def winners(found: Results) -> Sheet:
    sheet = Sheet(
        NAME,
        "Who wins where: every system with its best parameters, against plain decoding (pp)",
        [
            Column("cluster"),
            Column("goal"),
            Column("best plan"),
            *_GAIN,
            Column("best in cases", shown=".0%"),
            Column("not distinguishable from it (95 %)"),
            Column("next system"),
        ],
    )
    for (place, goal), each in found.items():
        sheet.add(
            place.name,
            goal,
            each.best.candidate.label,
            *_gain_cells(each, each.best, goal),
            best_in(each),
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
            *_GAIN,
            Column("draft busy", shown=".0%"),
        ],
    )
    for (place, goal), each in found.items():
        for ranked in each.best_of_each.values():
            sheet.add(
                place.name,
                goal,
                ranked.candidate.label,
                *_gain_cells(each, ranked, goal),
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
        row: list[float | None] = []
        for goal in settings.amounts:
            shares = shares_of(found, schedule, goal)
            row += [geometric_mean(shares), min(shares)] if shares else [None, None]
        sheet.add(schedule, *row)
    return sheet
