"""StarSD's testbed as a scenario: a draft server, targets beside it, targets behind a network.

The parameters come from ``fit.py``. Times are in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.optimize import brentq

from treepipe.progress import Progress
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim import points
from treepipe.sim.theory.starsd import Cycle

SCENARIO = Path(__file__).with_name("testbed.toml")
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
        slow_motion: factor on all times, which changes no ratio.
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
    slow_motion: float = 1.0

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
        pace = self.slow_motion
        slow = pace * (self.second.slow if targets > BESIDE else 1.0)
        # The server only drafts; its overhead per round is counted with the passes.
        draft = {
            "draft_ms": {1: slow * self.service_ms / LAYERS},
            "idle_factor": {0.0: 1.0, pace * COLD_FROM_MS: 1.0, pace * COLD_AT_MS: self.cold},
        }
        stages = [pace * (z - 2 * _MEAN * self.jitter_ms) for z in self.returns_ms(targets)]
        changes = {
            "drafts": [{"device": draft}],
            "pipelines": [{"stages": [{"device": {"stage_ms": {1: ms}}}]} for ms in stages],
            "links.default.jitter_ms": pace * self.jitter_ms,
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
