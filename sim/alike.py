"""Deployments that differ in numbers only, simulated together in lanes (``lanes.py``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from treepipe.core.errors import RunError
from treepipe.physics.timing import TimeTable
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment
from treepipe.sim.acceptance import AcceptanceSource
from treepipe.sim.lane_results import LaneResults
from treepipe.sim.lane_world import LaneSimulation
from treepipe.sim.lanes import Kept, NotAlikeError, Times
from treepipe.sim.world import simulate

FEWEST = 3
"""Lanes that a simulation in lanes must answer for, or else the rest are simulated alone."""
ASIDE = {"name", "path", "warnings", "estimates", "new_schedule", "key"}
"""Fields of deployments on which a simulation's numbers do not depend, and the schedule, which the
caller compares."""


LaneTrace: TypeAlias = Callable[[], Trace]


class LaneTable(TimeTable):
    """A table of times per lane."""

    def __init__(self, tables: Sequence[TimeTable], kept: Kept) -> None:
        self._tables, self._kept = tables, kept
        self.points = tables[0].points
        self._known: dict[Any, Times] = {}

    def __call__(self, tokens: int, context: int = 0) -> Any:
        return self._ask((tokens, context), lambda table: table(tokens, context))

    def over(self, parts: Sequence[tuple[int, int]]) -> Any:
        return self._ask(tuple(parts), lambda table: table.over(parts))

    @property
    def last_context(self) -> int | None:
        return self._tables[0].last_context

    @property
    def by_parts(self) -> bool:
        return any(table.by_parts for table in self._tables)

    def _ask(self, question: Any, answer: Callable[[TimeTable], float]) -> Times:
        known = self._known.get(question)
        if known is None:
            of = np.array([answer(table) for table in self._tables], float)
            known = self._known[question] = Times(of, self._kept)
        return known


def merged(values: Sequence[Any], kept: Kept) -> Any:
    """Return one value of many: ``Times`` where numbers differ.

    Raises:
        NotAlikeError: anything else differs.
    """
    first = values[0]
    if all(each is first for each in values):
        return first
    kinds = {type(each) for each in values}
    if kinds <= {int, float} and float in kinds:
        same = all(each == first for each in values)
        return first if same else Times(np.array(values, float), kept)
    if issubclass(type(first), TimeTable) and all(isinstance(each, TimeTable) for each in values):
        return _merged_tables(values, kept)
    if len(kinds) > 1:
        raise NotAlikeError
    if is_dataclass(first):
        return _merged_fields(values, kept)
    if isinstance(first, tuple | list) and len({len(each) for each in values}) == 1:
        parts = [merged(part, kept) for part in zip(*values, strict=True)]
        if all(a is b for a, b in zip(parts, first, strict=True)):
            return first
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, Mapping) and all(each.keys() == first.keys() for each in values):
        return {key: merged([each[key] for each in values], kept) for key in first}
    points = _points(first)
    if all(each == first or (points is not None and _points(each) == points) for each in values):
        return first
    raise NotAlikeError


def _points(value: Any) -> Any:
    return getattr(value, "points", None)


def _merged_tables(tables: Sequence[TimeTable], kept: Kept) -> TimeTable:
    if len({table.last_context for table in tables}) > 1:
        raise NotAlikeError
    contents = [getattr(table, "by_context", None) or table.points for table in tables]
    flat = [{key: _points(each) or each for key, each in content.items()} for content in contents]
    of_requests = {table.request_ms for table in tables}
    same = len(of_requests) == 1 and all(each == flat[0] for each in flat)
    return tables[0] if same else LaneTable(tables, kept)


def _merged_fields(values: Sequence[Any], kept: Kept) -> Any:
    first, changed = values[0], dict[str, Any]()
    for field in fields(first):
        name = field.name
        if name not in ASIDE:
            part = merged([getattr(each, name) for each in values], kept)
            if part is not getattr(first, name):
                changed[name] = part
    return replace(first, **changed) if changed else first


def simulate_alike(deployments: Sequence[Deployment], source: AcceptanceSource) -> list[LaneTrace]:
    """Simulate deployments of the same schedules on the same texts, in lanes as far as possible.

    A deployment that leaves lane 0's order is simulated again, with others that did, or alone.

    Returns:
        For each a function that returns its trace when called, since many traces take much memory:
        that of its own simulation, but for the order of spans. It raises ``RunError`` where that
        simulation comes to a standstill.
    """
    found: dict[int, LaneTrace] = {}
    waiting = [*range(len(deployments))]
    while len(waiting) >= FEWEST:
        middle = len(waiting) // 2  # of a range of values, it is nearest to the others
        lanes = [*waiting[middle:], *waiting[:middle]]
        traces = _in_lanes([deployments[each] for each in lanes], source)
        answered = {each: trace for each, trace in zip(lanes, traces, strict=True) if trace}
        found |= answered
        waiting = [each for each in waiting if each not in found]
        if len(answered) < FEWEST:
            break
    alone = {each: partial(simulate, deployments[each], source) for each in waiting}
    return [(alone.get(each) or found[each]) for each in range(len(deployments))]


def _in_lanes(
    deployments: Sequence[Deployment], source: AcceptanceSource
) -> list[LaneTrace | None]:
    """Return the traces of the lanes that keep together with the first; None for the others."""
    roles, cancels = deployments[0].roles, deployments[0].service.cancels
    if cancels or deployments[0].faults.injected or len(roles.heads) < len(roles.drafts):
        return [None] * len(deployments)
    kept = Kept(len(deployments))
    try:
        try:
            together = merged(deployments, kept)
        except NotAlikeError:
            return _with_the_first(deployments, source)
        simulation = LaneSimulation(together, source, kept)
        trace = simulation.run()
    except (NotAlikeError, RunError):  # its own simulation has the number, or tells the error
        return [None] * len(deployments)
    results = LaneResults(trace, simulation.clock, deployments)
    each = enumerate(kept.lanes.tolist())
    return [partial(results.trace, lane) if answered else None for lane, answered in each]


def _with_the_first(
    deployments: Sequence[Deployment], source: AcceptanceSource
) -> list[LaneTrace | None]:
    """Simulate those together that are like the first."""
    found: list[LaneTrace | None] = [None] * len(deployments)
    like = [0]
    for number, each in enumerate(deployments[1:], start=1):
        with suppress(NotAlikeError):
            merged([deployments[0], each], Kept(2))
            like.append(number)
    if len(like) >= FEWEST:
        traces = _in_lanes([deployments[number] for number in like], source)
        for number, trace in zip(like, traces, strict=True):
            found[number] = trace
    return found
