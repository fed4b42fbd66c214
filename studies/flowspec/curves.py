"""Time between tokens against the draft's accuracy: simulated at a few points, smooth in between.

Law of this file: what a published figure is, is not known here. A cell of the table is a curve's
time per token at the cell's accuracy, and a prefill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from treepipe.results.metrics import METRIC
from treepipe.results.show import Say
from treepipe.studies.flowspec.testbed import (
    NEW_TOKENS,
    Case,
    Size,
    Times,
    prefill,
)
from treepipe.studies.reproduction import simulated

Floats: TypeAlias = npt.NDArray[np.float64]

TOP1 = (0.15, 0.3, 0.45, 0.6, 0.75, 0.87, 0.95)
"""Accuracies that are simulated: as far as the recorded pool can be tilted."""
DEGREE = 2
BEYOND = 0.5
"""Of accuracy: how far curves are continued."""
STEP = 1.25
"""Factor on one time parameter, to see what depends on it."""
BASE = Times(80.0, 20.0, 15.0)


def tokens_per_s(tbt_ms: float, prefill_ms: float) -> float:
    """New tokens over wall time with prefill, as the paper counts."""
    return 1e3 * NEW_TOKENS / (prefill_ms + (NEW_TOKENS - 1) * tbt_ms)


def tbt_of(xi: float, prefill_ms: float) -> float:
    """The inverse of ``tokens_per_s``."""
    return (1e3 * NEW_TOKENS / xi - prefill_ms) / (NEW_TOKENS - 1)


class Curve:
    """Milliseconds between tokens against top-1 accuracy: a parabola through the logarithms.

    Beyond the accuracies that were simulated it goes on along its tangents; "accuracy" there is
    only a number that all methods share.
    """

    def __init__(self, top1: Sequence[float], tbt_ms: Sequence[float] | Floats) -> None:
        logs = np.log(np.asarray(tbt_ms, float))
        parabola = np.polynomial.Polynomial.fit(np.asarray(top1, float), logs, DEGREE)
        ends = np.array([min(top1), max(top1)])
        fine = np.linspace(ends[0], ends[1], 400)
        tangents = parabola(ends) + np.array([-BEYOND, BEYOND]) * parabola.deriv()(ends)
        self._fine = np.array([ends[0] - BEYOND, *fine, ends[1] + BEYOND])
        self._logs = np.array([tangents[0], *parabola(fine), tangents[1]])
        self.points = list(zip(top1, np.exp(logs).tolist(), strict=True))

    def __call__(self, top1: float) -> float:
        return float(np.exp(np.interp(top1, self._fine, self._logs)))

    def accuracy(self, tbt_ms: float) -> float:
        """The accuracy at which the curve has this time (it falls with accuracy)."""
        falling = np.minimum.accumulate(self._logs)
        return float(np.interp(-np.log(tbt_ms), -falling, self._fine))

    def outside(self, tbt_ms: float) -> float:
        """The part of a time's logarithm that is beyond what was simulated; 0 if it is not."""
        slowest, fastest = self._logs[1], self._logs[-2]
        value = float(np.log(tbt_ms))
        return value - float(np.clip(value, fastest, slowest))


Curves: TypeAlias = dict[str, Curve]
"""By method."""


def simulate_curves(
    methods: Sequence[str], size: Size, times: Times, depth_loss: float, requests: int, say: Say
) -> Curves:
    """One curve per method at given times."""
    cases = {
        f"{method} {top1}": Case(method, size, times, top1, depth_loss, requests)
        for method in methods
        for top1 in TOP1
    }
    found = _simulate(cases, say, f"{size}, stages of {times.stage_ms:.0f} ms")
    return {m: Curve(TOP1, [found[f"{m} {top1}"] for top1 in TOP1]) for m in methods}


def simulate_prefills(
    size: Size, times: Times, prompts: Sequence[int], say: Say
) -> dict[int, float]:
    """Milliseconds to the first token by prompt tokens."""
    asked = {str(tokens): prefill(size, times, tokens) for tokens in sorted(set(prompts))}
    found = simulated(asked, say, f"{size}, prefills")
    return {int(label): o.metrics["time_to_first_token_ms"].mean for label, o in found.items()}


def _simulate(cases: Mapping[str, Case], say: Say, title: str) -> dict[str, float]:
    found = simulated({label: case.scenario() for label, case in cases.items()}, say, title)
    return {label: outcome.metrics[METRIC].mean for label, outcome in found.items()}


@dataclass(frozen=True, slots=True)
class Linear:
    """A figure that is linear in the service times (as long as the same party is the slower one).

    Attributes:
        at_base: its values at ``BASE``.
        slopes: per millisecond of the stage's, the synchronisation's and the draft's time.
    """

    at_base: Floats
    slopes: tuple[Floats, Floats, Floats]

    def __call__(self, times: Times) -> Floats:
        away = zip(_parameters(times), _parameters(BASE), self.slopes, strict=True)
        total: Floats = self.at_base.copy()
        for now, then, slope in away:
            total += (now - then) * slope
        return total

    @classmethod
    def through(cls, values: Sequence[Floats]) -> Linear:
        """Args: ``values``: at each of ``designs``."""
        base, *moved = values
        slopes = [
            (v - base) / ((STEP - 1) * t) for v, t in zip(moved, _parameters(BASE), strict=True)
        ]
        return cls(base, (slopes[0], slopes[1], slopes[2]))


def _parameters(times: Times) -> tuple[float, float, float]:
    return times.stage_ms, times.sync_ms, times.draft_ms


def designs() -> list[Times]:
    """``BASE``, and each time parameter on its own moved by ``STEP``."""
    return [
        BASE,
        replace(BASE, stage_ms=BASE.stage_ms * STEP),
        replace(BASE, sync_ms=BASE.sync_ms * STEP),
        replace(BASE, draft_ms=BASE.draft_ms * STEP),
    ]


class Surrogate:
    """Curves and prefills of the 7B models at any service times, without simulating them.

    The same random texts are simulated at each of ``designs``; what comes of them does not depend
    on the times in lock-step schedules, so that all times are linear in the parameters.
    """

    def __init__(
        self, tables: Mapping[tuple[str, float], Linear], prefills: Mapping[int, Linear]
    ) -> None:
        """Args: ``tables``: by method and depth loss; ``prefills``: by prompt tokens."""
        self._tables, self._prefills = tables, prefills

    def curve(self, method: str, times: Times, depth_loss: float) -> Curve:
        key = (method, depth_loss) if method == "pipedec" else (method, 0.0)
        return Curve(TOP1, np.maximum(self._tables[key](times), 1e-3))

    def prefill(self, prompt_tokens: int, times: Times) -> float:
        return float(self._prefills[prompt_tokens](times)[0])

    @classmethod
    def learn(
        cls, losses: Sequence[float], prompts: Sequence[int], requests: int, say: Say
    ) -> Surrogate:
        """Simulate what it needs; only PipeDec's trees ever reach beyond recorded depths."""
        keys = [("naive_pp", 0.0), ("flowspec", 0.0), *(("pipedec", loss) for loss in losses)]
        cases = {
            f"{method} {loss} {number} {top1}": Case(method, "7b", times, top1, loss, requests)
            for method, loss in keys
            for number, times in enumerate(designs())
            for top1 in TOP1
        }
        found = _simulate(cases, say, "curves for the fit")
        tables = {
            (method, loss): Linear.through(
                [
                    np.array([found[f"{method} {loss} {number} {top1}"] for top1 in TOP1])
                    for number in range(len(designs()))
                ]
            )
            for method, loss in keys
        }
        timed = [simulate_prefills("7b", times, prompts, say) for times in designs()]
        linear = {n: Linear.through([np.array([each[n]]) for each in timed]) for n in timed[0]}
        return cls(tables, linear)
