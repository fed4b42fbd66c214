"""The study ``flowspec-table``: FlowSpec's tables, fitted to a few cells and predicted elsewhere.

Its sentences are in ``flowspec.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, hypot, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from treepipe.progress import Progress
from treepipe.results.statistics import Interval
from treepipe.studies import flowspec_fit as fitting
from treepipe.studies import reproduction
from treepipe.studies.flowspec_fit import (
    FITTED_MODEL,
    METHODS,
    MODELS,
    PROMPT_TOKENS,
    ROWS,
    TEMPERATURES,
    Case,
    Cells,
    Curve,
    Fit,
    Rows,
    Size,
    Surrogate,
    prompt_tokens,
    size_of,
)
from treepipe.studies.plots import published_figure
from treepipe.studies.study import Entry, StudyResult, score

NAME = "flowspec-table"
PAGE = Path(__file__).with_name("flowspec.md")
SWEPT_MODEL = "llama2-chat-7b"
"""The model of Table 2, and of the bandwidth sweep (MT-bench, temperature 0)."""
BANDWIDTHS = (125, 250, 500, 1000)
"""Of the sweep, in Mbit/s; the last is the testbed's."""
SIZE_METHODS: dict[Size, Sequence[str]] = {"7b": tuple(METHODS), "13b": ROWS}
DRAFTED = ROWS[1:]


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job: requests of 128 tokens per point, for the fit, the final curves and the
    bandwidth sweep."""

    fit_requests: int = 8
    curve_requests: int = 8
    sweep_requests: int = 8


SHORT, FULL = Settings(), Settings(12, 16, 12)


@dataclass(frozen=True, slots=True)
class FittedTestbed:
    """A testbed at its fitted times: time between tokens by method, prefills by prompt tokens.

    Attributes:
        one_row: the curves' end at which passes over one row need no unpacking; ``curves`` is the
            middle between it and the other, where they do.
    """

    times: fitting.Times
    curves: Mapping[str, Curve]
    prefills: Mapping[int, float]
    one_row: Mapping[str, Curve]

    def end_spread(self, method: str, top1: float) -> float:
        """Return the distance of the ends from the middle, as a logarithm."""
        return abs(log(self.curves[method](top1) / self.one_row[method](top1)))

    def cell(self, method: str, naive: float, prompt: int) -> tuple[float, float]:
        """Predict a method's tokens per second, and the accuracy, from naive_pp's ``naive``."""
        prefill = self.prefills[prompt]
        top1 = self.curves["naive_pp"].accuracy(fitting.tbt_of(naive, prefill))
        return fitting.tokens_per_s(self.curves[method](top1), prefill), top1


@dataclass(frozen=True, slots=True)
class Predictor:
    """The fits, testbeds and spreads that predict a cell of the tables.

    Attributes:
        forms: fits with every depth loss; the first one is used.
        spreads: half-widths of 95 % intervals of the predictions' logarithms, by size and method.
    """

    surrogate: Surrogate
    forms: Sequence[Fit]
    clusters: Mapping[Size, FittedTestbed]
    spreads: Mapping[Size, Mapping[str, float]]

    def interval(self, model: str, method: str, naive: float, dataset: str) -> Interval:
        """Predict a cell, with its interval, at the accuracy where naive_pp has ``naive``."""
        size, prompt = size_of(model), prompt_tokens(model, dataset)
        value, top1 = self.clusters[size].cell(method, naive, prompt)
        half = self.spreads[size].get(method)
        if half is not None:
            moved = fitting.form_spread(self.surrogate, self.forms, naive, prompt)
            moved_by = moved["pipedec" if method == "pipedec" else "flowspec"]
            ends = self.clusters[size].end_spread(method, top1)
            half = hypot(half, moved_by if size == "7b" else ends)
        return Interval.within_factor(value, half)

    def entries(
        self, key: str, model: str, methods: Sequence[str], known: Rows, fitted: bool = False
    ) -> list[Entry]:
        """Predict every method's cells from naive_pp's, which ``known`` must contain."""
        return [
            reproduction.predicted(
                f"{key}/{method}/{dataset}",
                "tokens/s",
                self.interval(model, method, naive, dataset),
                known.get(method, {}).get(dataset),
                fitted or method == "naive_pp",
            )
            for method in methods
            for dataset, naive in known["naive_pp"].items()
        ]


def study(settings: Settings, say: Progress) -> StudyResult:
    """Fit, predict and report."""
    facts = reproduction.published()["flowspec"]
    table: Rows = facts["table1"]
    predictor, crossed = _fitted(settings, table, say)
    main, ablation, third = _tables(predictor, facts)
    resampled = _resampled(table, [*ablation, *third])
    sweep = _sweep(settings, predictor, table, reproduction.missed(resampled), say)
    others = (*(e for e in main if "13b" in e.key), *ablation, *third)
    known = [e for e in others if e.published is not None]
    made = reproduction.Reproduction(NAME, PAGE)
    made.add(main, "cells", "Table 1: tokens per second (prefill included)")
    made.add([*ablation, *third])
    title = "Llama 2 Chat 7B, MT-bench, temperature 0: link bandwidth in Mbit/s"
    made.add(sweep, "bandwidth", title)
    made.add(_parameters(predictor))
    made.leave_out({"flowspec/naive_pp": resampled})
    for method in METHODS:
        made.leave_out({f"flowspec/{method}": [e for e in crossed if f"/{method}/" in e.key]})
        made.leave_out({f"flowspec/{method}": [e for e in known if f"/{method}/" in e.key]}, True)
    made.trivial = _constant_ratio([*crossed, *known], table)
    scores = {of: [score(each), score(each, made.trivial)] for of, each in made.left_out.items()}
    return made.result({**_fit_fields(predictor), "scores": scores}, _figure(main))


def _tables(
    predictor: Predictor, facts: Mapping[str, Any]
) -> tuple[list[Entry], list[Entry], list[Entry]]:
    """Predict Table 1, the ablation, and Table 3 (other samples of MT-bench and accuracies)."""
    main, ablation, third = list[Entry](), list[Entry](), list[Entry]()
    for model, t in product(MODELS, TEMPERATURES):
        row, fitted = f"{model}/{t}", model == FITTED_MODEL
        rates = {m: facts["table1"].get(f"{row}/{m}", {}) for m in ROWS}
        main += predictor.entries(row, model, ROWS, rates, fitted)
    methods = [method for method in METHODS if method != "pipedec"]
    for t in TEMPERATURES:
        ablation += predictor.entries(f"ablation/{t}", SWEPT_MODEL, methods, facts[f"table2_{t}"])
    for row, own in facts["table3"].items():
        rates = {method: {"mt_bench": rate} for method, rate in own.items()}
        third += predictor.entries(f"table3/{row}", row.split("/")[0], ROWS, rates)
    return main, ablation, third


# --- predictions ---------------------------------------------------------------------------------


def _fitted(settings: Settings, table: Rows, say: Progress) -> tuple[Predictor, list[Entry]]:
    """Fit the testbeds, and predict cells whose dataset was left out of the fit."""
    prompts = [prompt_tokens(model, d) for model in MODELS for d in PROMPT_TOKENS]
    surrogate = Surrogate.learn(fitting.LOSSES, prompts, settings.fit_requests, say)
    forms = fitting.fits(surrogate, table, list(PROMPT_TOKENS))
    left_out = fitting.leave_one_out(surrogate, table)
    loss, requests = forms[0].depth_loss, settings.curve_requests
    unpack_ms = fitting.unpacking_ms(surrogate, table, forms[0])
    sized: dict[Size, fitting.Times] = {
        "7b": forms[0].times,
        "13b": fitting.larger(forms[0].times, unpack_ms),
    }
    clusters: dict[Size, FittedTestbed] = {}
    for size, times in sized.items():
        cases = {m: Case(m, size, times, loss, requests) for m in SIZE_METHODS[size]}
        other = {m: replace(case, one_row=False) for m, case in cases.items() if size == "13b"}
        title = f"{size}, stages of {times.stage_ms:.0f} ms"
        ends = [fitting.simulate_curves(each, say, title) for each in (cases, other) if each]
        one_row, curves = (
            {m: Curve(fitting.TOP1, tbts) for m, tbts in each.items()}
            for each in (ends[0], {m: np.sqrt(ends[0][m] * ends[-1][m]) for m in cases})
        )
        prefills = fitting.simulate_prefills(size, times, prompts, say)
        clusters[size] = FittedTestbed(times, curves, prefills, one_row)
    spread = _spread(left_out)
    spreads: dict[Size, Mapping[str, float]] = {
        "7b": spread,
        "13b": _spread_13b(clusters["13b"], table, spread),
    }
    rows = fitting.fitted_rows(table)
    crossed = [
        reproduction.predicted(
            f"left-out/{FITTED_MODEL}/t0/{m}/{d}", "tokens/s", rows[m][d] * (1 + e), rows[m][d]
        )
        for (m, d), e in left_out.items()
    ]
    return Predictor(surrogate, forms, clusters, spreads), crossed


def _spread(left_out: Cells) -> dict[str, float]:
    """Return the 7B models' spreads from the errors of left-out cells, which contain the published
    samples' noise as well as the model's error. Pruned PP and the ablation's FlowSpec take
    FlowSpec's."""
    halves = {
        method: reproduction.t_spread([e for (m, _), e in left_out.items() if m == method])
        for method in DRAFTED
    }
    others = {m: halves["flowspec"] for m in METHODS if m not in ("naive_pp", *halves)}
    return {**halves, **others}


def _spread_13b(
    cluster: FittedTestbed, table: Rows, spread: Mapping[str, float]
) -> dict[str, float]:
    """Return the 13B models' spreads from all their known cells, none of which was fitted to; at
    least those of the 7B models."""
    errors = []
    for model, method in product(MODELS, DRAFTED):
        if size_of(model) == "13b":
            for dataset, fact in table.get(f"{model}/t0/{method}", {}).items():
                naive = table[f"{model}/t0/naive_pp"][dataset]
                value, _ = cluster.cell(method, naive, prompt_tokens(model, dataset))
                errors.append(value / fact - 1)
    return {method: max(half, reproduction.t_spread(errors)) for method, half in spread.items()}


def _resampled(table: Rows, others: Sequence[Entry]) -> list[Entry]:
    """Predict naive_pp's figures on the other tables' samples by those of Table 1."""
    entries = []
    for entry in (each for each in others if "/naive_pp/" in each.key and each.published):
        _, *model, t, _, dataset = entry.key.split("/")
        rate = table[f"{(model or [SWEPT_MODEL])[0]}/{t}/naive_pp"][dataset]
        key = f"left-out/{entry.key}"
        entries.append(reproduction.predicted(key, "tokens/s", rate, entry.published))
    return entries


def _sweep(
    settings: Settings, predictor: Predictor, table: Rows, samples: float, say: Progress
) -> list[Entry]:
    """Predict the swept cell by bandwidth: its figure times the simulated ratio. naive_pp itself
    differs by the noise of another sample (``samples``, half-width of its logarithm)."""
    times, loss = predictor.forms[0].times, predictor.forms[0].depth_loss
    naive = table[f"{SWEPT_MODEL}/t0/naive_pp"]["mt_bench"]
    prompt = prompt_tokens(SWEPT_MODEL, "mt_bench")
    base = {method: predictor.clusters["7b"].cell(method, naive, prompt) for method in ROWS}
    scenarios = {}
    for rate, method in product(BANDWIDTHS, ROWS):
        extra = {"links.default.bandwidth_mbit_s": rate, "workload.prompt_tokens": prompt}
        case = Case(method, "7b", times, loss, settings.sweep_requests, extra)
        top1 = min(max(base[method][1], fitting.TOP1[0]), fitting.TOP1[-1])
        scenarios[f"bandwidth={rate}/{method}"] = case.scenario(top1)
    outcomes, entries = reproduction.simulated(scenarios, say, "link bandwidths"), []
    reached = {key: each.metrics["throughput_tokens_s"].mean for key, each in outcomes.items()}
    for key in scenarios:
        method = key.split("/")[1]
        ratio = reached[key] / reached[f"bandwidth={BANDWIDTHS[-1]}/{method}"]
        spread = predictor.spreads["7b"].get(method, samples)
        value = Interval.within_factor(base[method][0] * ratio, spread)
        entries.append(reproduction.predicted(key, "tokens/s", value))
    return entries


# --- entries, scores, fields and plots -----------------------------------------------------------


def _parameters(predictor: Predictor) -> list[Entry]:
    return [
        reproduction.predicted("fit/depth_loss", "1", predictor.forms[0].depth_loss),
        *(
            reproduction.predicted(f"fit/{size}/{name}", "ms", ms)
            for size, cluster in predictor.clusters.items()
            for name, ms in cluster.times._asdict().items()
        ),
    ]


def _constant_ratio(judged: Sequence[Entry], rows: Rows) -> dict[str, float]:
    """Predict trivially: a constant ratio to naive_pp, that of Vicuna 7B at temperature 0, without
    the dataset that is left out."""
    fitted = fitting.fitted_rows(rows)
    naive = {e.key: e.published or 0.0 for e in judged if "/naive_pp/" in e.key}
    naive |= {f"left-out/{FITTED_MODEL}/t0/naive_pp/{d}": v for d, v in fitted["naive_pp"].items()}
    guesses = {}
    for method, entry in product(DRAFTED, judged):
        logs = {d: log(v / fitted["naive_pp"][d]) for d, v in fitted[method].items()}
        if f"/{method}/" in entry.key:
            left = entry.key.split("/")[-1] if entry.key.startswith("left-out/") else ""
            ratio = exp(fmean(value for d, value in logs.items() if d != left))
            guesses[entry.key] = ratio * naive[entry.key.replace(f"/{method}/", "/naive_pp/")]
    return guesses


def _fit_fields(predictor: Predictor) -> dict[str, Any]:
    times = {size: cluster.times for size, cluster in predictor.clusters.items()}
    unpack_ms = times["13b"].stage_ms - fitting.larger(times["7b"], 0.0).stage_ms
    return {
        "times": times,
        "unpack_ms": unpack_ms,
        "operations": fitting.operations(unpack_ms),
        "roofline": fitting.roofline_times(),
        "rms": sqrt(fmean(error**2 for error in predictor.forms[0].errors.values())),
        "fitted_cells": len(ROWS) * len(PROMPT_TOKENS),
    }


def _figure(main: Sequence[Entry]) -> Figure:
    keys = {entry.key: entry for entry in main}
    first = {
        f"{model}, T = {t[1:]}": {
            m: {d: keys[f"{model}/{t}/{m}/{d}"] for d in PROMPT_TOKENS} for m in ROWS
        }
        for model, t in product(MODELS, TEMPERATURES)
    }
    title = "FlowSpec's Table 1 (T: temperature)"
    return published_figure(title, "tokens per second", first, columns=4)
