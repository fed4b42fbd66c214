"""Passes over rows that nobody measured or gave: their default uncertainty, and what is told of it.

What is asked of a device's tables is known where an answer is made: from a simulation's spans, from
the rows of a formula. The tables know which rows they rest on (``TimeTable.unknown``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from treepipe.physics.timing import TimeTable
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.scale import Estimated

GROWTH = 2.5
"""Relative uncertainty of the time of such a pass beside that of the nearest known one: of 22
published curves of quantized models 95 % grow up to 3.3 times from 1 row to 8
(docs/physical-model.md)."""
MEASURE = (
    "`llama-bench -m MODEL.gguf -p 1,2,4,8,16 -o json > rows.json` and `treepipe profiles import "
    "llama-bench rows.json --config MODEL` would settle it"
)


class AskedRows(NamedTuple):
    """A role's table, and the fewest and most rows that it was asked for.

    Attributes:
        work: kind of work, as of a span.
    """

    role: str
    work: str
    table: TimeTable
    least: int
    most: int


def rows_of_formula(deployment: Deployment, most: int) -> list[AskedRows]:
    """Return the tables that a formula asks for 1 to ``most`` rows."""
    roles = deployment.roles
    stages = [stage for pipeline in roles.pipelines for stage in pipeline]
    found = [AskedRows(each.name, "compute", each.times.stage, 1, most) for each in stages]
    found += [AskedRows(each.name, "draft", each.times.draft, 1, most) for each in roles.drafts]
    ends = stages if roles.ends == "pipeline" else roles.drafts
    return [
        *found,
        *(AskedRows(each.name, "evaluate", each.times.evaluate, 1, most) for each in ends),
    ]


def with_guessed_rows(deployment: Deployment, asked: Iterable[AskedRows]) -> Deployment:
    """Return the deployment with the uncertainty of rows that were asked for and are guesses, and a
    warning of those that no table's last slope explains (a prediction tells of these)."""
    guesses: dict[tuple[tuple[int, int], ...], list[str]] = {}
    doubts = set[float]()
    for each in asked:
        found = each.table.guessed(each.least, each.most)
        if found:
            doubts.add(GROWTH if each.table.doubt is None else each.table.doubt)
        if untold := tuple(rows for rows in found if not each.table.extrapolates(rows[0])):
            guesses.setdefault(untold, []).append(f"{each.role} ({each.work})")
    if not doubts:
        return deployment
    doubt = max(doubts)
    estimates = {**deployment.estimates, Estimated("rows"): doubt}
    told = [f"{', '.join(roles)} over {_shown(rows)} rows" for rows, roles in guesses.items()]
    sentence = (
        f"nobody measured or gave passes of {'; '.join(told)}: they may take {1 + doubt:g} times "
        f"as long, and then fewer drafted tokens pay; {MEASURE}"
    )
    return replace(deployment, estimates=estimates).warned(*[sentence] * bool(told))


def _shown(rows: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{low}" if low == high else f"{low} to {high}" for low, high in rows)
