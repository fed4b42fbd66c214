"""What a simulation in lanes tells of each lane: its trace, and the metrics of all lanes at once.

The metrics are those of ``LaneSums``, the sums of a run with a place per lane. Every operation is
that of the lane's own sums, so each value is equal to its own to the last bit; a lane in which a
comparison of times turns out otherwise than in lane 0 has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from treepipe.core.draft_work import Turn
from treepipe.core.requests import RequestTrace
from treepipe.results.metric import Ratio, Sums, Windows
from treepipe.results.metrics import PERCENTILES, metric_ratios, metrics_of_run, utilization_ratios
from treepipe.results.trace import Deferred, Figures, Numbers, SpanColumns, Spans, Trace
from treepipe.scenario.deployment import Deployment
from treepipe.sim.lanes import Flags, Floats, LaneClock, NotAlikeError, Times

TURN = ("arrived_ms", "started_ms", "ended_ms")
"""Times of a ``Turn``."""


class LaneResults:
    """The results of a simulation in lanes, by lane."""

    def __init__(self, trace: Trace, clock: LaneClock, deployments: Sequence[Deployment]) -> None:
        assert clock.end is not None
        lanes = len(deployments)
        self._whole, self._deployments, self._kept = trace, deployments, clock.kept
        self._inside = clock.before_end(clock.spans.steps)
        self._what = [(s.device, s.kind, s.session, s.tokens) for s in trace.spans]
        self._columns = dict[bytes, SpanColumns]()  # by which spans they are
        times = [s.start_ms for s in trace.spans] + [s.end_ms for s in trace.spans]
        self._spans = stacked(times, lanes).reshape(2, -1, lanes)
        self._requests = [stacked(_times(each), lanes) for each in trace.requests]
        self._turned = [t.draft for t in trace.turns], [t.pipeline for t in trace.turns]
        turns = [getattr(turn, name) for name in TURN for turn in trace.turns]
        self._turns = stacked(turns, lanes).reshape(3, -1, lanes)
        self._ended = self._which_ended(clock.turns, clock.end.due)

    def _which_ended(self, known: int, end_ms: Floats) -> Flags:
        """Return which turns ended before the end: [turns, lanes]; give up doubtful lanes, in which
        a turn that is not among lane 0's first ``known`` ones ends at the time of the end."""
        ended: Flags = self._turns[2] < end_ms
        tied: Flags = self._turns[2] == end_ms
        first = np.arange(len(ended)) < known
        doubtful: Flags = np.any(tied[~first], axis=0)
        self._kept.lanes[1:] &= ~doubtful[1:]
        ended[first] |= tied[first]
        return ended

    def trace(self, lane: int) -> Trace:
        """Return the trace of a lane that kept together."""
        whole, deployment = self._whole, self._deployments[lane]
        columns, inside = self._columns_of(lane)
        requests = zip(whole.requests, self._requests, strict=True)
        turns = Deferred(partial(self._turns_of, lane))
        found = replace(
            whole,
            spans=Spans(columns, self._spans[:, inside, lane]),
            requests=[_at(request, times[:, lane].tolist()) for request, times in requests],
            turns=turns,
            warnings=list(whole.warnings),
            machines=deployment.roles.machines,
            slo=deployment.service.slo,
        )
        found.figures = partial(self._figures_of, lane, found)
        return found

    def _turns_of(self, lane: int) -> Iterator[Turn]:
        columns = zip(*self._turned, *self._turns[:, :, lane].tolist(), strict=True)
        for row, ended in zip(columns, self._ended[:, lane], strict=True):
            if ended:
                yield Turn(*row)

    def _columns_of(self, lane: int) -> tuple[SpanColumns, Flags]:
        """Return which spans a lane has; many lanes have the same."""
        inside = self._inside[:, lane]
        key = inside.tobytes()
        if key not in self._columns:
            self._columns[key] = SpanColumns(
                what for what, within in zip(self._what, inside, strict=True) if within
            )
        return self._columns[key], inside

    def _figures_of(self, lane: int, trace: Trace) -> Figures | None:
        *figures, right = self._figures
        if not right[lane]:
            return None
        metrics, shares = (
            {name: float(values[lane]) for name, values in each.items()} for each in figures
        )
        return metrics | metrics_of_run(Windows.of(trace)), shares

    @cached_property
    def _figures(self) -> tuple[dict[str, Floats], dict[str, Floats], Flags]:
        """Metrics and utilization, [lanes] by name, and the lanes for which they are right."""
        kept, ended = self._kept, self._ended
        before, whole = kept.lanes.copy(), self._whole
        busy, *_ = SpanColumns(self._what).busy
        times = self._spans[:, busy]
        times[0, ~self._inside[busy]] = np.inf  # a span outside covers nothing
        spans = Spans(SpanColumns([self._what[place] for place in busy]), times)
        turns = [turn for turn, over in zip(whole.turns, ended[:, 0], strict=True) if over]
        try:
            sums = LaneSums(replace(whole, spans=spans, turns=turns), len(before))
            metrics, shares = sums.metrics, sums.values(utilization_ratios(sums))
        except NotAlikeError:
            return {}, {}, np.zeros_like(before)
        else:
            right = kept.lanes & (ended == ended[:, :1]).all(axis=0)
            for values in (*metrics.values(), *shares.values()):
                right &= np.isfinite(values)
            return metrics, shares, right
        finally:
            kept.lanes = before


class LaneSums(Sums):
    """Sums of a whole run, which is one window: [1, lanes] each, or [1] where lanes do not differ.

    Args:
        trace: has times in lanes.
    """

    def __init__(self, trace: Trace, lanes: int) -> None:
        self._lanes = lanes
        asked = tuple(sorted(trace.requests, key=lambda request: request.session))
        starts = self._array([request.started_ms for request in asked]).min(axis=0)
        ends = self._array([request.finished_ms for request in asked]).max(axis=0)
        served = tuple([request for request in asked if request.emitted])
        super().__init__(trace, Windows((served,), np.array([starts, ends]), True, (asked,)))

    @property
    def metrics(self) -> dict[str, Floats]:
        """Ratios and percentiles, [lanes] each. Raises ``NotAlikeError``: one of them needs single
        numbers."""
        (served,) = self.windows.requests
        found = self.values(metric_ratios(self)) if served else {}
        for name, asked in PERCENTILES.items():
            figures = asked.figures(served)
            if len(figures) >= asked.least:
                found[name] = np.percentile(self._array([*figures]), asked.share, axis=0)
        return found

    def values(self, ratios: Mapping[str, Ratio]) -> dict[str, Floats]:
        """Divide sums, [lanes] each."""
        with np.errstate(all="ignore"):
            return {
                name: self._array([above / below])[0] for name, (above, below) in ratios.items()
            }

    def _array(self, values: Sequence[Any]) -> Floats:
        return stacked(values, self._lanes)

    def _by_group(self, groups: Numbers, values: Floats, count: int) -> Floats:
        return np.array([values[groups == group].sum(axis=0) for group in range(count)])

    def _counts(self, times: Floats, edges: Floats, weights: Floats) -> Floats:
        whole: Floats = weights.sum(axis=0, keepdims=True)  # a whole run has them all
        return whole


def stacked(values: Sequence[Any], lanes: int) -> Floats:
    """Return numbers, or times in lanes, as an array: [values, lanes]."""
    found = np.empty((len(values), lanes))
    for row, each in zip(found, values, strict=True):
        row[:] = each.of if type(each) is Times else each
    return found


def _times(request: RequestTrace) -> list[Any]:
    """Return all times of a request, in the order of ``_at``."""
    return [request.started_ms, request.finished_ms, *[at for at, _ in request.emitted]]


def _at(request: RequestTrace, times: Sequence[float]) -> RequestTrace:
    """Return the request with other times."""
    started, finished, *emitted = times
    counts = [count for _, count in request.emitted]
    made = tuple(zip(emitted, counts, strict=True))
    return replace(request, started_ms=started, finished_ms=finished, emitted=made)
