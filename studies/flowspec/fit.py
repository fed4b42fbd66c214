"""The few parameters that are fitted: service times, the draft's loss with depth, its accuracy.

Law of this file: only what ``published.toml`` holds goes in, and each parameter has a meaning. The
7B models' times come from the three rows of Vicuna 7B at temperature 0, the 13B models' from them
by the bytes of a pass (``testbed.py``), and each cell's accuracy from its naive_pp figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import TypeAlias

import numpy as np
from scipy import optimize

from treepipe.studies.flowspec.curves import (
    BASE,
    Surrogate,
    tbt_of,
    tokens_per_s,
)
from treepipe.studies.flowspec.testbed import (
    MODELS,
    Times,
    prompt_tokens,
)

Rows: TypeAlias = Mapping[str, Mapping[str, float]]
"""Tokens per second by method, by dataset."""

FITTED_MODEL = "vicuna-7b-v1.3"
ROWS = ("naive_pp", "pipedec", "flowspec")
LOSSES = (0.0, 0.03, 0.1)
"""Of positions per unverified token beyond recorded depths; the one that fits best is taken."""
LOWEST, HIGHEST = Times(30.0, 0.0, 5.0), Times(200.0, 100.0, 60.0)


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found from the rows of one model.

    Attributes:
        errors: predicted over published - 1, by method and dataset, of the cells fitted to.
        misfit: half the sum of squares that was minimized.
    """

    times: Times
    depth_loss: float
    errors: Mapping[tuple[str, str], float]
    misfit: float


def fits(surrogate: Surrogate, table: Rows, datasets: Sequence[str]) -> list[Fit]:
    """Times with the least squared relative errors over these datasets' cells, for every depth
    loss; the best one first.

    They must also let the draft reach every naive_pp figure of the 7B models: what lies beyond the
    accuracies that the recorded pool can be tilted to counts as an error.

    Args: ``table``: Table 1 by ``MODEL/tT/METHOD``.
    """
    found = [_fit_times(surrogate, table, datasets, loss) for loss in LOSSES]
    return sorted(found, key=_misfit)


def fitted_rows(table: Rows) -> Rows:
    """The rows of Table 1 that the times are fitted to, by method."""
    return {method: table[f"{FITTED_MODEL}/t0/{method}"] for method in ROWS}


def _misfit(found: Fit) -> float:
    return found.misfit


def _fit_times(surrogate: Surrogate, table: Rows, datasets: Sequence[str], loss: float) -> Fit:
    rows, keys = fitted_rows(table), [(m, d) for m in ROWS[1:] for d in datasets]

    def residuals(values: Sequence[float]) -> list[float]:
        times = Times(*values)
        cells = predict_rows(surrogate, times, loss, rows["naive_pp"], datasets)
        errors = [float(np.log(cells[m, d] / rows[m][d])) for m, d in keys]
        return errors + _out_of_reach(surrogate, table, times, loss)

    start = [BASE.stage_ms, BASE.sync_ms, BASE.draft_ms]
    low = [LOWEST.stage_ms, LOWEST.sync_ms, LOWEST.draft_ms]
    high = [HIGHEST.stage_ms, HIGHEST.sync_ms, HIGHEST.draft_ms]
    found = optimize.least_squares(
        residuals, start, bounds=(low, high), x_scale=start, diff_step=1e-3
    )
    errors = dict(zip(keys, np.expm1(found.fun[: len(keys)]).tolist(), strict=True))
    times = Times(*(float(value) for value in found.x))
    return Fit(times, loss, errors, float(found.cost))


def _out_of_reach(surrogate: Surrogate, table: Rows, times: Times, loss: float) -> list[float]:
    """How far each naive_pp figure of the 7B models lies beyond the curve's ends."""
    curve = surrogate.curve("naive_pp", times, loss)
    found = []
    for row, figures in table.items():
        model, _, method = row.split("/")
        if method == "naive_pp" and MODELS[model][0] == "7b":
            for dataset, xi in figures.items():
                prefill = surrogate.prefill(prompt_tokens(model, dataset), times)
                found.append(curve.outside(tbt_of(xi, prefill)))
    return found


def predict_rows(
    surrogate: Surrogate,
    times: Times,
    loss: float,
    naive: Mapping[str, float],
    datasets: Sequence[str],
) -> dict[tuple[str, str], float]:
    """Tokens per second by method and dataset, the accuracies from the naive_pp figures."""
    cells = {}
    for dataset in datasets:
        prompt = prompt_tokens(FITTED_MODEL, dataset)
        found = predict_cells(surrogate, times, loss, naive[dataset], prompt)
        cells.update({(method, dataset): value for method, value in found.items()})
    return cells


def predict_cells(
    surrogate: Surrogate, times: Times, loss: float, naive: float, prompt: int
) -> dict[str, float]:
    """Tokens per second by method, the accuracy from naive_pp's."""
    prefill = surrogate.prefill(prompt, times)
    curves = {method: surrogate.curve(method, times, loss) for method in ROWS}
    top1 = curves["naive_pp"].accuracy(tbt_of(naive, prefill))
    return {method: tokens_per_s(curve(top1), prefill) for method, curve in curves.items()}


def form_spread(
    surrogate: Surrogate, found: Sequence[Fit], naive: float, prompt: int
) -> dict[str, float]:
    """How far, by method, the logarithm of a 7B cell's prediction moves at most if another depth
    loss is taken, with the times that fit best then.

    Args: ``found``: as ``fits`` returns them.
    """
    best, *others = (predict_cells(surrogate, f.times, f.depth_loss, naive, prompt) for f in found)
    return {m: max((abs(log(o[m] / best[m])) for o in others), default=0.0) for m in ROWS}


def leave_one_out(surrogate: Surrogate, table: Rows) -> dict[tuple[str, str], float]:
    """Relative errors of pipedec and flowspec where their dataset was not in the fit."""
    rows, datasets = fitted_rows(table), list(table[f"{FITTED_MODEL}/t0/naive_pp"])
    errors = {}
    for left in datasets:
        found = fits(surrogate, table, [d for d in datasets if d != left])[0]
        cells = predict_rows(surrogate, found.times, found.depth_loss, rows["naive_pp"], [left])
        for method in ROWS[1:]:
            errors[method, left] = cells[method, left] / rows[method][left] - 1
    return errors
