"""What the study ``flowspec-table`` says: entries, scores beside a trivial predictor's, tables.

Law of this file: nothing is simulated or fitted here. Sentences are in ``page.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from treepipe.studies.flowspec.fit import FITTED_MODEL, ROWS, Fit, Rows
from treepipe.studies.flowspec.testbed import (
    MODELS,
    PROMPT_TOKENS,
    TEMPERATURES,
    TEMPLATE_TOKENS,
    UNPACKING,
    WITHOUT_SLIP,
    Size,
    Times,
    roofline_times,
)
from treepipe.studies.plots import Panel, line_figure, published_figure, shaded
from treepipe.studies.reproduction import (
    Reproduction,
    ScoreSheet,
    predicted,
    relative_error,
    score,
)
from treepipe.studies.study import Entry, StudyResult

NAME = "flowspec-table"
PAGE = Path(__file__).with_name("page.md")
METHODS = ROWS[1:]
KNOWN = {"13b": "13B models", "ablation": "Table 2", "table3": "Table 3"}
"""Where else figures are known, by what their entries' keys contain."""


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the study found.

    Attributes:
        left_out: errors of Vicuna 7B's cells at temperature 0 whose dataset was not fitted to.
        times: by the models' size.
        table, ablation, third, sweep: entries of Tables 1, 2, 3 and of the bandwidths.
        grid: FlowSpec's tokens per second by d0 and d_exp.
    """

    fit: Fit
    left_out: Mapping[tuple[str, str], float]
    times: Mapping[Size, Times]
    table: Sequence[Entry]
    ablation: Sequence[Entry]
    third: Sequence[Entry]
    sweep: Sequence[Entry]
    grid: Mapping[tuple[int, int], float]


def report(found: Findings, facts: Mapping[str, Any]) -> StudyResult:
    """Entries, tables, plots and sentences."""
    rows = facts["table1"]
    crossed = _crossed(found, rows)
    larger = [e for e in found.table if "13b" in e.key]
    known = [e for e in (*larger, *found.ablation, *found.third) if e.published is not None]
    grid = [
        predicted(f"d0={d0}/d_exp={d_exp}/flowspec", "tokens/s", value)
        for (d0, d_exp), value in sorted(found.grid.items())
    ]
    scores = _scores(crossed, known, rows)
    made = Reproduction(NAME, PAGE)
    made.add(found.table, "cells", "Table 1: tokens per second (prefill included)")
    made.add([*_over_naive(found.table), *found.ablation, *found.third])
    made.add(
        found.sweep,
        "bandwidth",
        "Llama 2 Chat 7B, MT-bench, temperature 0: link bandwidth in Mbit/s",
    )
    made.add([*grid, *_parameters(found)])
    made.table(scores.sheet())
    made.show(
        crossed,
        "cross-validation",
        "Vicuna 7B, temperature 0: each dataset predicted from a fit to the other five",
    )
    made.show(
        known,
        "known",
        "13B models, Tables 2 (ablation) and 3 (other samples): accuracy from naive_pp, the rest "
        "predicted",
    )
    return made.result(_fields(found, crossed, scores, _noise(facts)), _figures(found))


def _figures(found: Findings) -> dict[str, Figure]:
    """Table 1 and the ablation beside what is published, and throughput against bandwidth."""
    keys = {entry.key: entry for entry in [*found.table, *found.ablation, *found.sweep]}
    sampled = list(product(MODELS, TEMPERATURES))
    ablated = [e.key.split("/")[2:] for e in found.ablation]
    datasets = list(dict.fromkeys(dataset for _, dataset in ablated))
    rates = list(dict.fromkeys(e.key.split("/")[0] for e in found.sweep))
    swept = {
        method: {
            int(rate.split("=")[1]): keys[f"{rate}/{method}"].predicted or 0.0 for rate in rates
        }
        for method in ROWS
    }
    return {
        NAME: published_figure(
            "FlowSpec's Table 1 (T: temperature)",
            "tokens per second",
            {
                f"{model}, T = {t[1:]}": {
                    method: {d: keys[f"{model}/{t}/{method}/{d}"] for d in PROMPT_TOKENS}
                    for method in ROWS
                }
                for model, t in sampled
            },
            columns=4,
        ),
        f"{NAME}-ablation": published_figure(
            "FlowSpec's ablation, llama2-chat-7b",
            "tokens per second",
            {
                f"T = {t[1:]}": {
                    method: {d: keys[f"ablation/{t}/{method}/{d}"] for d in datasets}
                    for method in dict.fromkeys(method for method, _ in ablated)
                }
                for t in TEMPERATURES
            },
            columns=2,
        ),
        f"{NAME}-bandwidth": line_figure(
            "llama2-chat-7b, MT-bench, T = 0",
            "link bandwidth (Mbit/s)",
            [Panel("tokens per second", shaded(swept))],
            log=True,
        ),
    }


def _fields(
    found: Findings, crossed: Sequence[Entry], scores: ScoreSheet, noise: float
) -> dict[str, Any]:
    """What the page says beyond the entries."""
    pairs = _pairs(found.table)
    ahead = [pair[0].key.replace("/pipedec/", " ") for pair in pairs if _is_ahead(pair)]
    larger = [e for e in found.table if "13b" in e.key]
    known = [
        pair for pair in _pairs([*crossed, *found.third, *larger]) if all(e.published for e in pair)
    ]
    sampled = {
        method: [e for e in found.table if e.key.startswith(f"{FITTED_MODEL}/t1/{method}/")]
        for method in METHODS
    }
    return {
        "found": found,
        "scores": dict(scores.rows),
        "known": len(known),
        "right": sum(_is_ahead(pair) == _is_ahead(pair, "published") for pair in known),
        "flowspec_faster": sum(not _is_ahead(pair, "published") for pair in known),
        "cells": len(pairs),
        "ahead": len(ahead),
        "where_ahead": ", ".join(ahead) or "none",
        "sampled": {m: fmean(e.predicted or 0.0 for e in each) for m, each in sampled.items()},
        "without_slip": _without_slip(found.table),
        "best": max(found.grid, key=lambda depths: found.grid[depths]),
        "best_rate": max(found.grid.values()),
        "factor": found.times["13b"].stage_ms / found.times["7b"].stage_ms,
        "unpacking": UNPACKING,
        "larger": {
            method: " and ".join(
                f"{relative_error(e):+.1%}"
                for e in larger
                if e.published and f"/{method}/" in e.key
            )
            for method in METHODS
        },
        "roofline": roofline_times(),
        "rms": sqrt(fmean(error**2 for error in found.fit.errors.values())),
        "fitted_cells": len(ROWS) * len(PROMPT_TOKENS),
        "prompts": PROMPT_TOKENS,
        "templates": TEMPLATE_TOKENS,
        "noise": noise,
    }


def _pairs(entries: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """PipeDec's and FlowSpec's entries of the same cells."""
    cells = {e.key: e for e in entries}
    others = {key: cells.get(key.replace("/pipedec/", "/flowspec/")) for key in cells}
    return [(cells[k], other) for k, other in others.items() if other and "/pipedec/" in k]


def _without_slip(entries: Sequence[Entry]) -> tuple[float, float]:
    """Least and greatest gain of PipeDec over what its draft's index slip leaves it."""
    cells = {e.key: e.predicted for e in entries}
    right = [key for key in cells if f"/{WITHOUT_SLIP}/" in key]
    gains = [_ratio(cells[k], cells[k.replace(WITHOUT_SLIP, "pipedec")]) for k in right]
    found = [gain - 1 for gain in gains if gain is not None]
    return min(found), max(found)


def _is_ahead(pair: tuple[Entry, Entry], figure: str = "predicted") -> bool:
    """Whether the first one has more tokens per second."""
    one, other = (getattr(entry, figure) for entry in pair)
    return bool(one > other)


# --- scores --------------------------------------------------------------------------------------


def _crossed(found: Findings, rows: Rows) -> list[Entry]:
    """The cells that were left out of the fit, as true predictions."""
    entries = []
    for (method, dataset), error in found.left_out.items():
        fact = rows[f"{FITTED_MODEL}/t0/{method}"][dataset]
        key = f"left-out/{FITTED_MODEL}/t0/{method}/{dataset}"
        entries.append(predicted(key, "tokens/s", fact * (1 + error), fact))
    return entries


def _scores(crossed: Sequence[Entry], known: Sequence[Entry], rows: Rows) -> ScoreSheet:
    """Ours beside a constant ratio to naive_pp, method by method."""
    sheet = ScoreSheet(f"{NAME}-scores")
    for method in METHODS:
        mine = [e for e in crossed if f"/{method}/" in e.key]
        trivial = {e.key: _ratio_without(rows, method, e.key.split("/")[-1]) for e in mine}
        sheet.add(f"{method}, dataset left out", score(mine))
        sheet.add(f"{method}, dataset left out: trivial", score(mine, trivial))
    naive = {e.key: e.published or 0.0 for e in known if "/naive_pp/" in e.key}
    methods = dict.fromkeys(e.key.split("/")[-2] for e in known)
    for (table, name), method in product(KNOWN.items(), methods):
        mine = [e for e in known if table in e.key and f"/{method}/" in e.key]
        sheet.add(f"{method}, {name}", score(mine))
        if method in METHODS:
            ratio = exp(fmean(_log_ratios(rows, method).values()))
            same = {e.key: e.key.replace(f"/{method}/", "/naive_pp/") for e in mine}
            trivial = {key: ratio * naive[other] for key, other in same.items()}
            sheet.add(f"{method}, {name}: trivial", score(mine, trivial))
    return sheet


def _log_ratios(rows: Rows, method: str) -> dict[str, float]:
    """The log speed-ups of a method over naive_pp (Vicuna 7B, temperature 0), by dataset."""
    naive = rows[f"{FITTED_MODEL}/t0/naive_pp"]
    return {d: log(v / naive[d]) for d, v in rows[f"{FITTED_MODEL}/t0/{method}"].items()}


def _ratio_without(rows: Rows, method: str, dataset: str) -> float:
    """The trivial prediction of a cell: naive_pp times the other datasets' mean ratio."""
    ratios = _log_ratios(rows, method)
    mean = fmean(value for name, value in ratios.items() if name != dataset)
    return rows[f"{FITTED_MODEL}/t0/naive_pp"][dataset] * exp(mean)


def _noise(facts: Mapping[str, Any]) -> float:
    """How far the same cell differs between two of the paper's tables at most, as a share."""
    spreads: list[float] = []
    for row, known in facts["table1"].items():
        model, temperature, method = row.split("/")
        for dataset, first in known.items():
            second = third = None
            if model == "llama2-chat-7b":
                second = facts[f"table2_{temperature}"].get(method, {}).get(dataset)
            if dataset == "mt_bench":
                third = facts["table3"].get(f"{model}/{temperature}", {}).get(method)
            values = [value for value in (first, second, third) if value is not None]
            spreads.append(max(values) / min(values) - 1)
    return max(spreads)


def _over_naive(entries: Sequence[Entry]) -> list[Entry]:
    """Entries of all methods over naive_pp."""
    cells = {e.key: e for e in entries}
    found = []
    for key, entry in cells.items():
        model, temperature, method, dataset = key.split("/")
        naive = cells[f"{model}/{temperature}/naive_pp/{dataset}"]
        if method != "naive_pp":
            found.append(
                replace(
                    entry,
                    key=f"{key}/over_naive_pp",
                    unit="1",
                    predicted=_ratio(entry.predicted, naive.predicted),
                    low=_ratio(entry.low, naive.predicted),
                    high=_ratio(entry.high, naive.predicted),
                    published=_ratio(entry.published, naive.published),
                )
            )
    return found


def _ratio(value: float | None, over: float | None) -> float | None:
    return value / over if value is not None and over else None


def _parameters(found: Findings) -> list[Entry]:
    entries = [predicted("fit/depth_loss", "1", found.fit.depth_loss)]
    for size, times in found.times.items():
        for name in ("stage_ms", "sync_ms", "draft_ms"):
            entries.append(predicted(f"fit/{size}/{name}", "ms", getattr(times, name)))
    return entries
