"""The record of a metric, and the sums of a run from which metrics are computed.

Nearly every metric is a ratio of two sums over the run (time over tokens, tokens over rounds), so
the sums are kept per window of the run: one window gives a run's metric, many (``estimates.py``)
its interval. Windows follow each other, and their sums add up to the run's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from treepipe.core.draft_work import Turn
from treepipe.core.requests import RequestTrace
from treepipe.results.statistics import POSITIVE, Range
from treepipe.results.trace import Numbers, Spans, Trace
from treepipe.scenario.deployment import Machine

Floats: TypeAlias = npt.NDArray[np.float64]
Ratio: TypeAlias = tuple[Floats, Floats]
"""[windows] numerators and denominators."""


@dataclass(frozen=True, slots=True)
class Windows:
    """A run cut into windows of successive requests.

    Counts per request belong to the request's window, counts over time to the window that contains
    the time. A window ends when all requests up to its last one are finished.

    Attributes:
        requests: per window, the requests that have a token.
        edges: [windows + 1] times (ms) at which they begin and end.
        whole: whether they start at the run's very beginning.
        all_requests: per window, also those without a token.
    """

    requests: tuple[tuple[RequestTrace, ...], ...]
    edges: Floats
    whole: bool
    all_requests: tuple[tuple[RequestTrace, ...], ...]

    @classmethod
    def of(cls, trace: Trace, count: int = 1, warmup: int = 0) -> Windows:
        """Cut ``count`` windows of (nearly) equal numbers of requests, without the first
        ``warmup``.

        The trace must have more than ``warmup`` requests.
        """
        requests = sorted(trace.requests, key=lambda request: request.session)
        firsts = np.linspace(warmup, len(requests), count + 1).round().astype(int)
        finished = np.maximum.accumulate([request.finished_ms for request in requests])
        edges = np.array([finished[first - 1] for first in firsts if first], float)
        if not warmup:
            edges = np.insert(edges, 0, min(request.started_ms for request in requests))
        groups = tuple(tuple(requests[a:b]) for a, b in itertools.pairwise(firsts))
        served = tuple(tuple(each for each in group if each.emitted) for group in groups)
        return cls(served, edges, not warmup, groups)

    @property
    def answered(self) -> bool:
        """Whether any request of the windows has a token."""
        return any(self.requests)


class Sums:
    """Sums of a run per window, [windows] each.

    Attributes:
        time_ms, time_s: length of the windows.
        all_requests, answered: requests, and those that have a token.
        new_tokens, decoding_ms: counts after the first token of each request, which belongs to
            prefill; zero time where no request has a second one.
        emitted: tokens emitted in the time of a window.
        rounds, steps, committed, fed, accepted: sums over requests' rounds (see ``RoundRecord``);
            all zero where no round has a token.
        turns, turn_ms, wait_ms, idle_ms: draft servers' turns that answer a pipeline, each in the
            window in which it ends (StarSD, section 5 and Table 1).
        server_s: time from a draft server's first turn to its last one, averaged over the servers.
        pipelines: number of pipelines that the turns answer.
        busy_ms: busy time of every device.
    """

    def __init__(self, trace: Trace, windows: Windows) -> None:
        self.trace, self.windows = trace, windows
        self.time_ms: Floats = np.diff(windows.edges, axis=0)
        self.time_s = self.time_ms / 1e3
        self.all_requests = np.array([len(each) for each in windows.all_requests], float)
        self.answered = self.over_requests(lambda request: 1)
        self.new_tokens = self.over_requests(lambda request: len(request.tokens) - 1)
        decoding = self.over_requests(lambda request: request.finished_ms - request.first_token_ms)
        self.decoding_ms = decoding * bool(self.new_tokens.sum())
        rounds = np.array([_added(each) for each in windows.requests], float)
        rounds *= bool(rounds[:, 0].sum())
        self.committed, self.rounds, self.steps, self.fed, self.accepted = rounds.T
        edges = windows.edges.copy()  # a whole run has nothing outside its edges
        edges[0], edges[-1] = (-np.inf if windows.whole else edges[0]), np.inf
        emissions = [each for request in trace.requests for each in request.emitted]
        counts = np.array([count for _, count in emissions], float)
        self.emitted = self._counts(self._array([at for at, _ in emissions]), edges, counts)
        self._add_turns([turn for turn in trace.turns if turn.pipeline is not None], edges)
        spans = Spans.of(trace.spans)
        places, groups, names = spans.columns.busy
        starts, ends = spans.times[:, places]
        busy_ms = self._covered(starts, ends, windows.edges, groups, len(names))
        found, idle = dict(zip(names, busy_ms, strict=True)), np.zeros_like(self.time_ms)
        self.busy_ms = {name: found.get(name, idle) for name in trace.devices}

    def over_requests(self, figure: Callable[[RequestTrace], float]) -> Floats:
        """Sum a figure over the requests that have a token."""
        groups = self.windows.requests
        return self._array([sum([figure(request) for request in each]) for each in groups])

    def busy_together_ms(self, machine: Machine) -> Floats:
        """Add up the busy times of all roles on a machine, whatever its name."""
        return np.asarray(np.sum([self.busy_ms[role] for role in machine.roles], axis=0), float)

    def _add_turns(self, turns: Sequence[Turn], edges: Floats) -> None:
        arrived, started, ended = (
            self._array([getattr(turn, name) for turn in turns])
            for name in ("arrived_ms", "started_ms", "ended_ms")
        )
        self.turns = self._counts(ended, edges, np.ones(len(turns)))
        self.turn_ms = self._counts(ended, edges, ended - started)
        self.wait_ms = self._counts(ended, edges, started - arrived)
        firsts, lasts = {t.draft: t for t in reversed(turns)}, {t.draft: t for t in turns}
        begun = self._array([firsts[draft].started_ms for draft in lasts])
        left = self._array([last.ended_ms for last in lasts.values()])
        (served_ms,) = self._covered(begun, left, edges, np.zeros(len(lasts), int), 1)
        (busy_ms,) = self._covered(started, ended, edges, np.zeros(len(turns), int), 1)
        self.idle_ms = np.maximum(served_ms - busy_ms, 0.0)  # not below 0 by rounding
        self.server_s = served_ms / max(1, len(lasts)) / 1e3
        self.pipelines = len({turn.pipeline for turn in turns})

    def _covered(
        self, starts: Floats, ends: Floats, edges: Floats, groups: Numbers, count: int
    ) -> Floats:
        """Measure how much of the spans of each of ``count`` groups lies in every (edge, next
        edge]: [groups, windows]."""
        lengths = np.maximum(ends - starts, 0.0)
        until = [
            self._by_group(groups, np.minimum(np.maximum(edge - starts, 0.0), lengths), count)
            for edge in edges
        ]
        found: Floats = np.diff(until, axis=0).swapaxes(0, 1)
        return found

    # What ``LaneSums`` (``sim/lane_results.py``) does for all lanes at once.

    def _array(self, values: Sequence[float]) -> Floats:
        return np.array(values, float)

    def _by_group(self, groups: Numbers, values: Floats, count: int) -> Floats:
        """Sum the values of every group."""
        found: Floats = np.bincount(groups, values, count).astype(float)
        return found

    def _counts(self, times: Floats, edges: Floats, weights: Floats) -> Floats:
        """Sum the weights of the times in every (edge, next edge]."""
        place = np.searchsorted(edges, times, side="left") - 1
        inside = (place >= 0) & (place < len(edges) - 1)
        return self._by_group(place[inside], weights[inside], len(edges) - 1)


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile, a metric that is no ratio of sums.

    Attributes:
        share: per cent of the figures that are at most as large as the metric.
        figures: gaps between tokens, or one figure of each request.
        least: fewest figures from which it is computed.
        of_requests: whether there is one figure of each request.
    """

    share: int
    figures: Callable[[Iterable[RequestTrace]], Floats]
    least: int
    of_requests: bool = True


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a run, or the price of a plan's devices.

    Attributes:
        ratio: the two sums whose ratio it is; None where it does not apply to the run. A run whose
            denominators are all 0 has no such metric.
        better: which values are better. Such a metric can be a plan's goal, and be bounded.
        words: its name in a sentence, without the unit, where ``name`` does not give it.
        percentile: the percentile that it is, if any.
        of_run: its value over all windows together, for a metric that is neither.
    """

    name: str
    unit: str
    ratio: Callable[[Sums], Ratio | None] | None = None
    better: Literal["less", "more"] | None = None
    words: str = ""
    range: Range = POSITIVE
    percentile: Percentile | None = None
    of_run: Callable[[Windows], float | None] | None = None

    @property
    def less_is_better(self) -> bool:
        return self.better == "less"

    def cost(self, value: float) -> float:
        """Return the value or its negative, so that less is better."""
        return value if self.less_is_better else -value

    @property
    def in_unit(self) -> str:
        """The unit in sentences and headings."""
        return "of 1" if self.unit == "1" else self.unit

    @property
    def in_words(self) -> str:
        """The metric's name in a sentence.

        >>> Metric("hit_rate", "1").in_words, Metric("slo_attainment", "1", words="kept").in_words
        ('hit rate', 'kept')
        """
        return self.words or self.name.removesuffix("_ms").replace("_", " ")


def _added(requests: Iterable[RequestTrace]) -> list[int]:
    """Add up the requests' rounds: tokens, rounds, steps, nodes fed and accepted."""
    rounds = [(r.tokens, 1, r.steps, r.fed, r.accepted) for each in requests for r in each.rounds]
    return [sum(column) for column in zip(*rounds, strict=True)] or [0] * 5
