"""StarSD's testbed as a scenario, its fit to columns of table 1, and the table's counting.

The testbed is a draft server, targets beside it, and targets behind a network. Invariant: only the
columns passed in are used, so that leaving one out tests the rest. Most parameters follow from a
column by arithmetic (a round consists of service, waiting and return time); jitter and uneven
targets, which follow from waiting times, and the column behind the network need the simulator.
Times are in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, least_squares

from treepipe.files.toml_file import read_toml
from treepipe.progress import Progress
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim import points
from treepipe.sim.theory.starsd import Cycle
from treepipe.studies.reproduction import published

SCENARIO = Path(__file__).with_name("starsd.toml")
LAYERS = 7
"""Draft passes of a round: S is 7.7 t_s in the columns N = 1..3; the rest is overhead."""
BESIDE = 3
"""Targets on the draft's own server; further ones are behind the network (section 5.2)."""
COLD_FROM_MS, COLD_AT_MS = 22.0, 30.6
"""Idle gaps at which the draft begins to slow down, and at which it has the cold factor."""
ROUNDING_MS = 1e-9
_MEAN, _SPREAD = math.sqrt(2 / math.pi), math.sqrt(2 * (1 - 2 / math.pi))
"""Mean of a half-normal delay of scale 1, and standard deviation of the sum of two."""


@dataclass(frozen=True, slots=True)
class SecondServer:
    """The effect of targets behind the network: a factor on the draft's times, additions to the
    return time of every target, and of those behind the network, and the part of the factor that a
    pass has (the rest is overhead: messages are packed for the network)."""

    slow: float = 1.0
    everywhere_ms: float = 0.0
    behind_ms: float = 0.0
    step_share: float = 1.0


@dataclass(frozen=True, slots=True)
class Testbed:
    """Parameters of the cluster.

    Attributes:
        step_ms: t_s, a draft pass of a busy draft.
        service_ms: S of a busy draft.
        cold: factor on both after ``COLD_AT_MS`` of idling.
        return_ms: Z of the first target.
        uneven_ms: difference by which Z of the other targets beside the draft is shorter.
        jitter_ms: scale of the half-normal delay in each direction.
        tokens: tokens of a round, with the target's own token.
        turns: turns of the draft per simulated run.
    """

    step_ms: float
    service_ms: float
    cold: float
    return_ms: float
    tokens: float
    uneven_ms: float = 0.0
    jitter_ms: float = 0.0
    second: SecondServer = SecondServer()
    turns: int = 4000

    @property
    def jitter_cv(self) -> float:
        """Coefficient of variation of the return time."""
        return self.jitter_ms * _SPREAD / self.return_ms

    def cycle(self) -> Cycle:
        """Return the closed form's testbed: even targets beside a busy draft, without jitter."""
        return Cycle(self.return_ms, self.service_ms, self.tokens)

    def returns_ms(self, targets: int) -> list[float]:
        """Return the mean return time of each target."""
        more = self.second.everywhere_ms if targets > BESIDE else 0.0
        beside = [self.return_ms] + [self.return_ms - self.uneven_ms] * (targets - 1)
        behind = self.return_ms + self.second.behind_ms
        return [(z if n < BESIDE else behind) + more for n, z in enumerate(beside)]

    def scenario(self, targets: int, runs: int) -> Scenario:
        """Return the scenario of ``targets`` targets."""
        slow = self.second.slow if targets > BESIDE else 1.0
        # The server only drafts; its overhead per round is counted with the passes.
        draft = {
            "draft_ms": {1: slow * self.service_ms / LAYERS},
            "idle_factor": {0.0: 1.0, COLD_FROM_MS: 1.0, COLD_AT_MS: self.cold},
        }
        stages = [z - 2 * _MEAN * self.jitter_ms for z in self.returns_ms(targets)]
        changes = {
            "drafts": [{"device": draft}],
            "pipelines": [{"stages": [{"device": {"stage_ms": {1: ms}}}]} for ms in stages],
            "links.default.jitter_ms": self.jitter_ms,
            "schedule.gamma": LAYERS,
            "acceptance.beta": layer_hit(self.tokens),
            "workload.requests": targets,
            "workload.concurrency": targets,
            "workload.new_tokens": round(self.turns / targets * self.tokens),
            "runs": runs,
        }
        return Scenario.load(SCENARIO).with_(**changes)


def layer_hit(tokens: float) -> float:
    """Return β with which ``LAYERS`` layers yield ``tokens`` tokens: (1 - β^(d+1)) / (1 - β).

    >>> round(layer_hit(1 + 0.5 + 0.25 + 0.125 + 1 / 16 + 1 / 32 + 1 / 64 + 1 / 128), 6)
    0.5
    """
    found: float = brentq(lambda b: sum(b**k for k in range(LAYERS + 1)) - tokens, 0.0, 1.0)
    return found


@dataclass(frozen=True, slots=True)
class Simulated:
    """The simulator's counts of N targets: the draft's rounds per second, and per turn the
    draft's service and idle time and a target's waiting for it."""

    targets: int
    rounds: Interval
    service: Interval
    idle: Interval
    wait: Interval

    @property
    def load(self) -> Interval:
        """Share of its time in which the draft serves."""
        service = self.service.mean
        return self.idle.shifted(service).inverse(service)


def _whole(value: Interval) -> Interval:
    """Set rounding errors of a zero, and of its interval, to 0."""
    return Interval(0.0, None, None, "all equal") if abs(value.mean) < ROUNDING_MS else value


def simulate(
    beds: Mapping[str, tuple[Testbed, int]], runs: int, say: Progress, title: str = "simulating"
) -> dict[str, Simulated]:
    """Simulate testbeds with a number of targets each; figures are of the steady part of runs."""
    trials = [points.Point(k, bed.scenario(n, runs), steady=True) for k, (bed, n) in beds.items()]
    counted = [f"draft_{each}" for each in ("rounds_s", "service_ms", "idle_ms", "wait_ms")]
    return {
        label: Simulated(beds[label][1], *(_whole(outcome.metrics[name]) for name in counted))
        for label, outcome in points.simulate_points(trials, say, title).items()
    }


def simulate_columns(
    bed: Testbed, columns: Sequence[int], runs: int, say: Progress, title: str = "simulating"
) -> dict[int, Simulated]:
    """Simulate one testbed with several numbers of targets."""
    found = simulate({str(n): (bed, n) for n in columns}, runs, say, title)
    return {n: found[str(n)] for n in columns}


START_JITTER, START_SECOND = 0.05, (0.05, 0.2)
"""Initial values as shares of the return time: jitter and unevenness; everywhere and behind."""
FIT_TOKENS = 4.0
"""Tokens per round while fitting; neither rates nor waits depend on them."""
METRICS: Mapping[str, Mapping[str, Any]] = read_toml(
    Path(__file__).with_name("starsd-metrics.toml")
)
"""Metrics of a column, with their units and uses."""
DEPLOYMENTS = ("one target", "one server", "two servers")
"""Deployments, on which the table's own ratios depend."""
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Effort:
    """The size of a fit: runs of a trial, turns of the draft in each, and the maximum of steps."""

    runs: int = 2
    turns: int = 2000
    steps: int = 4


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the paper's table for N targets, by our metrics' names."""

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
        """S: a turn without its idle time: the passes, and what each turn adds to them."""
        return 1e3 / self.draft_rounds_s - self.draft_idle_ms

    @property
    def return_ms(self) -> float:
        """Z: the part of a target's round without service and waiting, averaged over turns."""
        return self.n * 1e3 / self.draft_rounds_s - self.service_ms - self.draft_wait_ms

    @property
    def attended(self) -> float:
        """Rounds of a target times targets over the draft's rounds."""
        return self.n * self.target_rounds_s / self.draft_rounds_s

    @property
    def passes_load(self) -> float:
        """The load as the other rows of the table imply it (``load``)."""
        return load(self.t_s_ms, Interval(self.draft_idle_ms, None, None)).mean

    @property
    def deployment(self) -> str:
        return DEPLOYMENTS[_place(self.n)]

    @property
    def figures(self) -> dict[str, float]:
        """The column by metric."""
        return {metric: getattr(self, metric) for metric in METRICS}


def load(step_ms: float, idle: Interval) -> Interval:
    """Return the draft's load as the paper's columns have it: its passes, S(d) = d t_s (equation
    5), over passes and idle time, without a turn's overhead (messages, caches by tag); without idle
    time it is 1. No number is fitted to it."""
    passes = LAYERS * step_ms
    return idle.shifted(passes).inverse(passes)


def _place(targets: int) -> int:
    return 0 if targets == 1 else 1 if targets <= BESIDE else 2


def columns() -> dict[int, Column]:
    """Return the published columns by N."""
    table = published()["starsd"]["table1"]
    rows = zip(*(table[each.name] for each in fields(Column)), strict=True)
    return {row[0]: Column(*row) for row in rows}


def linear(given: Sequence[Column], n: int) -> dict[str, float]:
    """Predict trivially: scale the rates of the nearest column (the smaller of two) with N."""
    nearest = min(given, key=lambda column: (abs(column.n - n), column.n))
    values = nearest.figures
    for metric, facts in METRICS.items():
        values[metric] *= n / nearest.n if "grows" in facts else 1.0
    values["draft_load"] = min(1.0, values["draft_load"])
    return values


@dataclass(frozen=True, slots=True)
class Yield:
    """Two ratios of the paper's own counters, which the model does not explain.

    Attributes:
        counted: throughput over the draft's rounds and tokens per round (below 1: throughput
            includes time in which nothing is decoded).
        attended: rounds of a target times targets over the draft's rounds.
    """

    counted: float
    attended: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A testbed, and the paper's counting ratios by deployment."""

    bed: Testbed
    yields: Mapping[str, Yield]

    def counted(self, seen: Simulated) -> dict[str, Interval]:
        """Convert simulated figures to the paper's counting.

        Tokens are rounds times their expected tokens, without the noise of acceptance.
        """
        n, bed, counts = seen.targets, self.bed, self._yield_of(seen.targets)
        share = bed.second.step_share if n > BESIDE else 1.0
        step = seen.service.scaled(share * bed.step_ms / bed.service_ms)
        return {
            "throughput_tokens_s": seen.rounds.scaled(bed.tokens * counts.counted),
            "per_target_tokens_s": seen.rounds.scaled(bed.tokens * counts.attended / n),
            "draft_rounds_s": seen.rounds,
            "target_rounds_s": seen.rounds.scaled(counts.attended / n),
            "draft_idle_ms": seen.idle,
            "draft_wait_ms": seen.wait,
            "draft_load": load(step.mean, seen.idle),
            "t_s_ms": step,
        }

    def _yield_of(self, targets: int) -> Yield:
        """Return the yield of the deployment, or of the nearest calibrated one."""
        place = _place(targets)
        known = [i for i, name in enumerate(DEPLOYMENTS) if name in self.yields]
        return self.yields[DEPLOYMENTS[min(known, key=lambda i: (abs(i - place), i))]]


def calibrate(given: Sequence[Column], say: Progress, effort: Effort | None = None) -> Calibration:
    """Fit a testbed to columns, at least one of them with 2 or 3 targets."""
    fit = partial(_fit, say=say, effort=effort or Effort())
    near = [c for c in given if 1 < c.n <= BESIDE]
    alone = [c for c in given if c.n == 1]
    tokens = fmean(c.per_target_tokens_s / c.target_rounds_s for c in given)
    service = fmean(c.service_ms for c in near)
    bed = Testbed(
        step_ms=fmean(c.t_s_ms for c in near),
        service_ms=service,
        cold=alone[0].service_ms / service if alone else 1.0,
        return_ms=fmean(c.return_ms for c in (*alone, *near)),
        tokens=tokens,
    )
    # One wait cannot separate jitter from uneven targets: assume jitter.
    start = [math.log(START_JITTER)] * min(2, len(near))
    bed = fit(partial(_jittered, bed, alone, near), start, near, _wait)
    for far in [c for c in given if c.n > BESIDE]:
        slow = far.service_ms / bed.service_ms
        share = far.t_s_ms / bed.step_ms / slow
        made = partial(_with_second_server, bed, slow, share)
        bed = fit(made, START_SECOND, [far], _rate_and_wait)
    return Calibration(bed, _yields(given, tokens))


def _yields(given: Sequence[Column], tokens: float) -> dict[str, Yield]:
    found = {}
    for name in {c.deployment for c in given}:
        same = [c for c in given if c.deployment == name]
        found[name] = Yield(
            fmean(c.throughput_tokens_s / c.draft_rounds_s / tokens for c in same),
            fmean(c.attended for c in same),
        )
    return found


def _jittered(bed: Testbed, alone: Sequence[Column], near: Sequence[Column], x: Floats) -> Testbed:
    """Return the testbed with jitter and unevenness, as logarithms of shares of its return time."""
    jitter, uneven = (bed.return_ms * math.exp(value) for value in (*x, -math.inf)[:2])
    first = [c.return_ms for c in alone]
    first += [c.return_ms + uneven * (c.n - 1) / c.n for c in near]
    return replace(bed, jitter_ms=jitter, uneven_ms=uneven, return_ms=fmean(first))


def _with_second_server(bed: Testbed, slow: float, share: float, x: Floats) -> Testbed:
    """Return the testbed with a second server's additions, given as shares of its return time."""
    everywhere_ms, behind_ms = (bed.return_ms * x).tolist()
    return replace(bed, second=SecondServer(slow, everywhere_ms, behind_ms, share))


def _wait(column: Column, seen: Simulated) -> list[float]:
    return [_log(seen.wait.mean, column.draft_wait_ms)]


def _rate_and_wait(column: Column, seen: Simulated) -> list[float]:
    return [_log(seen.rounds.mean, column.draft_rounds_s), _wait(column, seen)[0] / 4]


def _fit(
    made: Callable[[Floats], Testbed],
    start: Sequence[float],
    given: Sequence[Column],
    residuals: Callable[[Column, Simulated], list[float]],
    say: Progress,
    effort: Effort,
) -> Testbed:
    """Find the testbed, as ``made`` from parameters, with the least squared residuals; equal seeds
    make the simulator's noise common to all trials."""

    def miss(x: Floats) -> list[float]:
        bed = replace(made(x), turns=effort.turns, tokens=FIT_TOKENS)
        trial = {str(c.n): (bed, c.n) for c in given}
        found = simulate(trial, effort.runs, say, "calibrating")
        return [each for c in given for each in residuals(c, found[str(c.n)])]

    bounds = {"diff_step": 0.1, "xtol": 1e-2, "ftol": 1e-2, "max_nfev": effort.steps}
    return made(least_squares(miss, np.array(start), **bounds).x)


def _log(value: float, wanted: float) -> float:
    return math.log(max(value, 1e-3) / wanted)
