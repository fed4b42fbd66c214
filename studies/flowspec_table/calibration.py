"""The few parameters that are fitted: service times, the draft's loss with depth, its accuracy.

Law of this file: only what ``published.toml`` holds goes in, and each parameter has a meaning. The
7B models' times come from the three rows of Vicuna 7B at temperature 0, a 13B model's stage time
from its one PipeDec cell, and each cell's accuracy from its naive_pp figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy import optimize

from treepipe.studies.flowspec_table.curves import (
    BASE,
    Surrogate,
    tbt_of,
    tokens_per_s,
)
from treepipe.studies.flowspec_table.testbed import (
    Times,
    draft_ratio,
    prompt_tokens,
)

Rows: TypeAlias = Mapping[str, Mapping[str, float]]
"""Tokens per second by method, by dataset."""

FITTED_MODEL = "vicuna-7b-v1.3"
ROWS = ("naive_pp", "pipedec", "flowspec")
LOSSES = (0.0, 0.03, 0.1)
"""Of positions per unverified token beyond recorded depths; the one that fits best is taken."""
LOWEST, HIGHEST = Times(30.0, 0.0, 5.0), Times(200.0, 100.0, 60.0)
STAGES_13B = (200.0, 600.0)
"""Milliseconds, where it is looked for."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found from the rows of one model.

    Attributes:
        errors: predicted over published - 1, by method and dataset, of the cells fitted to.
        rms: of their logarithms.
    """

    times: Times
    depth_loss: float
    errors: Mapping[tuple[str, str], float]
    rms: float


def fit(surrogate: Surrogate, rows: Rows, datasets: Sequence[str]) -> Fit:
    """Times and depth loss with the least squared relative errors over these datasets' cells."""
    return min((_fit_times(surrogate, rows, datasets, loss) for loss in LOSSES), key=_rms)


def _rms(found: Fit) -> float:
    return found.rms


def _fit_times(surrogate: Surrogate, rows: Rows, datasets: Sequence[str], loss: float) -> Fit:
    def residuals(values: Sequence[float]) -> list[float]:
        cells = predict_rows(surrogate, Times(*values), loss, rows["naive_pp"], datasets)
        return [float(np.log(cells[m, d] / rows[m][d])) for m in ROWS for d in datasets]

    start = [BASE.stage_ms, BASE.sync_ms, BASE.draft_ms]
    low = [LOWEST.stage_ms, LOWEST.sync_ms, LOWEST.draft_ms]
    high = [HIGHEST.stage_ms, HIGHEST.sync_ms, HIGHEST.draft_ms]
    found = optimize.least_squares(
        residuals, start, bounds=(low, high), x_scale=start, diff_step=1e-3
    )
    times = Times(*(float(value) for value in found.x))
    keys = [(m, d) for m in ROWS for d in datasets]
    errors = {k: float(np.expm1(e)) for k, e in zip(keys, residuals(found.x), strict=True)}
    return Fit(times, loss, errors, float(np.sqrt(np.mean(np.square(found.fun)))))


def predict_rows(
    surrogate: Surrogate,
    times: Times,
    loss: float,
    naive: Mapping[str, float],
    datasets: Sequence[str],
) -> dict[tuple[str, str], float]:
    """Tokens per second by method and dataset, the accuracies from the naive_pp figures."""
    curves = {method: surrogate.curve(method, times, loss) for method in ROWS}
    cells = {}
    for dataset in datasets:
        prefill = surrogate.prefill(prompt_tokens(FITTED_MODEL, dataset), times)
        top1 = curves["naive_pp"].accuracy(tbt_of(naive[dataset], prefill))
        for method in ROWS:
            cells[method, dataset] = tokens_per_s(curves[method](top1), prefill)
    return cells


def leave_one_out(surrogate: Surrogate, rows: Rows) -> dict[tuple[str, str], float]:
    """Relative errors of pipedec and flowspec where their dataset was not in the fit."""
    datasets = list(rows["naive_pp"])
    errors = {}
    for left in datasets:
        found = fit(surrogate, rows, [d for d in datasets if d != left])
        cells = predict_rows(surrogate, found.times, found.depth_loss, rows["naive_pp"], [left])
        for method in ROWS[1:]:
            errors[method, left] = cells[method, left] / rows[method][left] - 1
    return errors


def fit_13b(surrogate: Surrogate, found: Fit, cells: Mapping[str, tuple[float, float]]) -> Times:
    """The 13B models' times: with the stage's, MT-bench's naive_pp and PipeDec figures agree best.

    Both models have the same layers on the same devices, so one time is found for all ``cells``;
    one cell gives its model's own. Synchronisation is the 7B models', the draft's pass longer by
    the roofline's ratio.

    Args: ``cells``: naive_pp and pipedec by model.
    """
    draft_ms = found.times.draft_ms * draft_ratio()

    def misfit(log_stage_ms: float) -> float:
        times = Times(float(np.exp(log_stage_ms)), found.times.sync_ms, draft_ms)
        return sum(
            _log_error(surrogate, found.depth_loss, times, model, *cell) ** 2
            for model, cell in cells.items()
        )

    bounds = tuple(np.log(STAGES_13B))
    best = optimize.minimize_scalar(misfit, bounds=bounds, method="bounded")
    return Times(float(np.exp(best.x)), found.times.sync_ms, draft_ms)


def _log_error(
    surrogate: Surrogate, loss: float, times: Times, model: str, naive: float, pipedec: float
) -> float:
    """Of PipeDec on MT-bench at these times, the accuracy from naive_pp."""
    prefill = surrogate.prefill(prompt_tokens(model, "mt_bench"), times)
    curve = surrogate.curve("naive_pp", times, loss)
    top1 = curve.accuracy(tbt_of(naive, prefill))
    reached = tokens_per_s(surrogate.curve("pipedec", times, loss)(top1), prefill)
    return float(np.log(reached / pipedec))
