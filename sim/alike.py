"""Deployments that differ in numbers only, simulated together in lanes (``lanes.py``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import fields, is_dataclass, replace
from itertools import compress
from typing import Any

import numpy as np

from treepipe.core.draft_work import Turn
from treepipe.core.errors import RunError
from treepipe.physics.timing import TimeTable
from treepipe.results.trace import Span, Trace
from treepipe.scenario.deployment import Deployment
from treepipe.sim.acceptance import AcceptanceSource
from treepipe.sim.lanes import Floats, Kept, LaneClock, Times
from treepipe.sim.world import Simulation, simulate

FEWEST = 3
"""Lanes that a simulation in lanes must answer for, or else the rest are simulated alone."""
ASIDE = {"name", "path", "warnings", "estimates", "new_schedule", "key"}
"""Fields of deployments on which a simulation's numbers do not depend, and the schedule, which the
caller compares."""


class NotAlikeError(Exception):
    """Deployments differ in more than numbers."""


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
    if not all(each == first or _points(each) == _points(first) != None for each in values):  # noqa: E711
        raise NotAlikeError
    return first


def _points(value: Any) -> Any:
    return getattr(value, "points", None)


def _merged_tables(tables: Sequence[TimeTable], kept: Kept) -> TimeTable:
    if len({table.last_context for table in tables}) > 1:
        raise NotAlikeError
    contents = [getattr(table, "by_context", None) or table.points for table in tables]
    flat = [{key: _points(each) or each for key, each in content.items()} for content in contents]
    return tables[0] if all(each == flat[0] for each in flat) else LaneTable(tables, kept)


def _merged_fields(values: Sequence[Any], kept: Kept) -> Any:
    first, changed = values[0], dict[str, Any]()
    for field in fields(first):
        name = field.name
        if name not in ASIDE:
            part = merged([getattr(each, name) for each in values], kept)
            if part is not getattr(first, name):
                changed[name] = part
    if not changed:
        return first
    found = copy(first)
    for name, part in changed.items():
        object.__setattr__(found, name, part)
    return found


def simulate_alike(
    deployments: Sequence[Deployment], source: AcceptanceSource
) -> list[Trace | RunError]:
    """Simulate deployments of the same schedules on the same texts, in lanes as far as possible.

    Each trace equals that of the deployment's own simulation, but for the order of its spans. A
    deployment that leaves lane 0's order is simulated again, with others that did, or alone; one
    that comes to a standstill has that error.
    """
    found: dict[int, Trace | RunError] = {}
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
    for each in waiting:
        try:
            found[each] = simulate(deployments[each], source)
        except RunError as error:
            found[each] = error
    return [found[each] for each in range(len(deployments))]


def _in_lanes(deployments: Sequence[Deployment], source: AcceptanceSource) -> list[Trace | None]:
    """Return the traces of the lanes that keep together with the first; None for the others."""
    if deployments[0].faults.injected:
        return [None] * len(deployments)
    kept = Kept(len(deployments))
    clock = LaneClock(kept)
    try:
        try:
            together = merged(deployments, kept)
        except NotAlikeError:
            return _with_the_first(deployments, source)
        trace = Simulation(together, source, record_spans=True, lanes=clock).run()
    except RunError:  # the error is told by the deployment's own simulation
        return [None] * len(deployments)
    return _traces(trace, clock, deployments)


def _with_the_first(
    deployments: Sequence[Deployment], source: AcceptanceSource
) -> list[Trace | None]:
    """Simulate those together that are like the first."""
    found: list[Trace | None] = [None] * len(deployments)
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


def _traces(
    trace: Trace, clock: LaneClock, deployments: Sequence[Deployment]
) -> list[Trace | None]:
    lanes, spans = len(deployments), trace.spans
    inside = clock.before_end(clock.spans.steps)
    fixed = [(span.device, span.kind, span.session, span.tokens) for span in spans]
    devices, kinds, sessions, tokens = zip(*fixed, strict=True) if fixed else ((), (), (), ())
    starts, ends = (
        _table(times, lanes)
        for times in ([span.start_ms for span in spans], [span.end_ms for span in spans])
    )
    emitted = [_table([at for at, _ in each.emitted], lanes) for each in trace.requests]
    limits = _table([at for r in trace.requests for at in (r.started_ms, r.finished_ms)], lanes)
    turned = _table(
        [at for t in trace.turns for at in (t.arrived_ms, t.started_ms, t.ended_ms)], lanes
    )
    assert clock.end is not None
    end_ms = clock.end.due
    found: list[Trace | None] = []
    for lane, deployment in enumerate(deployments):
        if not clock.kept.lanes[lane]:
            found.append(None)
            continue
        own = map(
            Span, devices, kinds, starts[:, lane].tolist(), ends[:, lane].tolist(), sessions, tokens
        )
        requests = [
            replace(
                request,
                started_ms=began,
                finished_ms=ended,
                emitted=tuple(
                    zip(times[:, lane].tolist(), [n for _, n in request.emitted], strict=True)
                ),
            )
            for request, times, (began, ended) in zip(
                trace.requests, emitted, limits[:, lane].reshape(-1, 2).tolist(), strict=True
            )
        ]
        turns = [
            Turn(turn.draft, turn.pipeline, *times)
            for turn, times in zip(
                trace.turns, turned[:, lane].reshape(-1, 3).tolist(), strict=True
            )
            if times[2] <= end_ms[lane]
        ]
        found.append(
            replace(
                trace,
                spans=list(compress(own, inside[:, lane].tolist())),
                requests=requests,
                turns=turns,
                warnings=list(trace.warnings),
                machines=deployment.roles.machines,
                slo=deployment.service.slo,
            )
        )
    return found


def _table(times: Sequence[Any], lanes: int) -> Floats:
    """Return times by lane: [times, lanes]."""
    found = np.empty((len(times), lanes))
    for row, each in enumerate(times):
        found[row] = each.of if type(each) is Times else each
    return found
