"""From columns of StarSD's table 1 to the testbed's parameters, on whichever columns are given.

Law of this file: only the columns asked for are looked at, so that leaving one out tests the rest.
Most parameters follow from a column by arithmetic (its round is served, waits, and is away); what
waits say about jitter and uneven targets, and the column behind the network, need the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from treepipe.studies.reproduction import published
from treepipe.studies.starsd.testbed import (
    BESIDE,
    Say,
    SecondServer,
    Simulated,
    Testbed,
    simulate,
)

START_JITTER, START_SECOND = 0.05, (0.05, 0.2)
"""Where the fits begin, as shares of the return time: jitter and unevenness; everywhere, behind."""
FIT_TOKENS = 4.0
"""Tokens per round while fitting; neither rates nor waits depend on them."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The size of a fit: runs of a trial, turns of the draft in each, and steps at most."""

    runs: int = 2
    turns: int = 2000
    steps: int = 4


@dataclass(frozen=True, slots=True)
class Column:
    """What the paper's table says about N targets, by our metrics' names."""

    n: int
    throughput_tokens_s: float
    per_target_tokens_s: float
    t_s_ms: float
    draft_wait_ms: float
    draft_idle_ms: float
    draft_rounds_s: float
    target_rounds_s: float
    draft_load: float

    @property
    def service_ms(self) -> float:
        """S: a turn without its idle time (the table's load says up to 8 % less: ``Yield``)."""
        return 1e3 / self.draft_rounds_s - self.draft_idle_ms

    @property
    def return_ms(self) -> float:
        """Z, averaged over turns: of a target's round what is neither served nor waited."""
        return self.n * 1e3 / self.draft_rounds_s - self.service_ms - self.draft_wait_ms

    @property
    def served(self) -> float:
        """Share of a turn in which the draft does not idle."""
        return self.service_ms * self.draft_rounds_s / 1e3

    @property
    def attended(self) -> float:
        """Rounds of a target times targets over the draft's rounds."""
        return self.n * self.target_rounds_s / self.draft_rounds_s

    @property
    def deployment(self) -> str:
        """What the table's own ratios depend on."""
        if self.n == 1:
            return "one target"
        return "one server" if self.n <= BESIDE else "two servers"


@dataclass(frozen=True, slots=True)
class Yield:
    """Three ratios of the paper's own counters, which its model has no words for.

    Attributes:
        counted: throughput over the draft's rounds and tokens per round (below 1: throughput
            holds time in which nothing is decoded).
        attended: rounds of a target times targets over the draft's rounds.
        loaded: the draft's load over the share of a turn in which it does not idle.
    """

    counted: float
    attended: float
    loaded: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A testbed, and how the paper counts by deployment."""

    bed: Testbed
    yields: Mapping[str, Yield]

    def yield_of(self, targets: int) -> Yield:
        """The yield of the deployment, or of the nearest one that was calibrated on."""
        names = ["one target", "one server", "two servers"]
        place = 0 if targets == 1 else 1 if targets <= BESIDE else 2
        known = [i for i, name in enumerate(names) if name in self.yields]
        return self.yields[names[min(known, key=lambda i: (abs(i - place), i))]]


def columns() -> dict[int, Column]:
    """The published ones."""
    table = published()["starsd"]["table1"]
    rows = zip(*(table[each.name] for each in fields(Column)), strict=True)
    return {row[0]: Column(*row) for row in rows}


def calibrate(given: Sequence[Column], say: Say, effort: Effort | None = None) -> Calibration:
    """Args: ``given``: columns, at least one of them with 2 or 3 targets."""
    fit = _Fit(say, effort or Effort())
    near = [c for c in given if 1 < c.n <= BESIDE]
    alone = [c for c in given if c.n == 1]
    tokens = fmean(c.per_target_tokens_s / c.target_rounds_s for c in given)
    service = fmean(c.service_ms for c in near)
    cold = alone[0].service_ms / service if alone else 1.0
    bed = Testbed(
        step_ms=fmean(c.t_s_ms for c in near),
        service_ms=service,
        cold=cold,
        return_ms=fmean(c.return_ms for c in (*alone, *near)),
        tokens=tokens,
    )
    bed = _with_jitter(bed, alone, near, fit)
    for far in [c for c in given if c.n > BESIDE]:
        bed = _with_second_server(bed, far, fit)
    return Calibration(bed, _yields(given, tokens))


def _yields(given: Sequence[Column], tokens: float) -> dict[str, Yield]:
    found = {}
    for name in {c.deployment for c in given}:
        same = [c for c in given if c.deployment == name]
        found[name] = Yield(
            fmean(c.throughput_tokens_s / c.draft_rounds_s / tokens for c in same),
            fmean(c.attended for c in same),
            fmean(c.draft_load * 1e3 / c.draft_rounds_s / c.service_ms for c in same),
        )
    return found


def _with_jitter(
    bed: Testbed, alone: Sequence[Column], near: Sequence[Column], fit: _Fit
) -> Testbed:
    """Jitter and unevenness from the waits; one wait alone cannot tell them apart: then jitter."""

    def made(x: npt.NDArray[np.float64]) -> Testbed:
        jitter, uneven = bed.return_ms * math.exp(x[0]), 0.0
        if len(x) > 1:
            uneven = bed.return_ms * math.exp(x[1])
        first = [c.return_ms for c in alone]
        first += [c.return_ms + uneven * (c.n - 1) / c.n for c in near]
        return replace(bed, jitter_ms=jitter, uneven_ms=uneven, return_ms=fmean(first))

    start = [math.log(START_JITTER)] * min(2, len(near))
    return fit(made, start, near, lambda c, s: [_log(s.wait.mean, c.draft_wait_ms)])


def _with_second_server(bed: Testbed, far: Column, fit: _Fit) -> Testbed:
    """What is slower with a target behind the network, so that rate and wait are the column's."""
    slow = far.service_ms / bed.service_ms

    def made(x: npt.NDArray[np.float64]) -> Testbed:
        return replace(bed, second=SecondServer(slow, *(bed.return_ms * x).tolist()))

    def residuals(column: Column, seen: Simulated) -> list[float]:
        rate = _log(seen.rounds.mean, column.draft_rounds_s)
        return [rate, _log(seen.wait.mean, column.draft_wait_ms) / 4]

    return fit(made, START_SECOND, [far], residuals)


@dataclass(frozen=True, slots=True)
class _Fit:
    """Least squares with the simulator; equal seeds make its noise common to all trials."""

    say: Say
    effort: Effort

    def __call__(
        self,
        made: Callable[[npt.NDArray[np.float64]], Testbed],
        start: Sequence[float],
        given: Sequence[Column],
        residuals: Callable[[Column, Simulated], list[float]],
    ) -> Testbed:
        """The testbed that ``made`` makes of the best parameters, from ``start`` on."""

        def miss(x: npt.NDArray[np.float64]) -> list[float]:
            bed = replace(made(x), turns=self.effort.turns, tokens=FIT_TOKENS)
            trial = {str(c.n): (bed, c.n) for c in given}
            found = simulate(trial, self.effort.runs, self.say, "calibrating")
            return [each for c in given for each in residuals(c, found[str(c.n)])]

        steps = self.effort.steps
        best = least_squares(
            miss, np.array(start), diff_step=0.1, xtol=1e-2, ftol=1e-2, max_nfev=steps
        )
        return made(best.x)


def _log(value: float, wanted: float) -> float:
    return math.log(max(value, 1e-3) / wanted)
