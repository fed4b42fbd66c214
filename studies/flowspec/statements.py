"""All that the study ``flowspec-table`` found, and the fields of its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Any

from treepipe.studies.flowspec.curves import Curves
from treepipe.studies.flowspec.fit import ROWS, Fit
from treepipe.studies.flowspec.testbed import (
    PROMPT_TOKENS,
    TEMPLATE_TOKENS,
    Size,
    Times,
    roofline_times,
)
from treepipe.studies.study import Entry


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the study found.

    Attributes:
        left_out: errors of Vicuna 7B's cells at temperature 0 whose dataset was not fitted to.
        times, curves: by the models' size.
        own_slowdown: the 13B models' factor if only one model's cell is taken.
        table, ablation, third, sweep: entries of Tables 1, 2, 3 and of the bandwidths.
        grid: FlowSpec's tokens per second by d0 and d_exp.
    """

    fit: Fit
    left_out: Mapping[tuple[str, str], float]
    times: Mapping[Size, Times]
    own_slowdown: Mapping[str, float]
    curves: Mapping[Size, Curves]
    table: Sequence[Entry]
    ablation: Sequence[Entry]
    third: Sequence[Entry]
    sweep: Sequence[Entry]
    grid: Mapping[tuple[int, int], float]


def fields(found: Findings, noise: float) -> dict[str, Any]:
    """What the page says beyond the entries."""
    small, large = found.times["7b"], found.times["13b"]
    return {
        "small": small,
        "large": large,
        "factor": large.stage_ms / small.stage_ms,
        "roofline": roofline_times(),
        "rms": sqrt(fmean(error**2 for error in found.fit.errors.values())),
        "fitted_cells": len(ROWS) * len(PROMPT_TOKENS),
        "depth_loss": found.fit.depth_loss,
        "own": ", ".join(f"{model} {factor:.2f}" for model, factor in found.own_slowdown.items()),
        "prompts": ", ".join(f"{name} {tokens}" for name, tokens in PROMPT_TOKENS.items()),
        "templates": TEMPLATE_TOKENS,
        "noise": noise,
    }
