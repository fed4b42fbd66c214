"""What the study ``flowspec-table`` says: entries, scores beside a trivial predictor's, tables.

Law of this file: nothing is simulated or fitted here. Plots are in ``figures.py``, sentences in
``page.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from treepipe.results.sheet import Column, Sheet
from treepipe.studies.flowspec import figures
from treepipe.studies.flowspec.curves import Curves
from treepipe.studies.flowspec.fit import FITTED_MODEL, ROWS, Fit, Rows
from treepipe.studies.flowspec.testbed import (
    MODELS,
    PROMPT_TOKENS,
    TEMPLATE_TOKENS,
    UNPACKING,
    WITHOUT_SLIP,
    Size,
    Times,
    roofline_times,
)
from treepipe.studies.page import result
from treepipe.studies.reproduction import (
    ScoreSheet,
    comparison_sheet,
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
        times, curves: by the models' size.
        table, ablation, third, sweep: entries of Tables 1, 2, 3 and of the bandwidths.
        grid: FlowSpec's tokens per second by d0 and d_exp.
    """

    fit: Fit
    left_out: Mapping[tuple[str, str], float]
    times: Mapping[Size, Times]
    curves: Mapping[Size, Curves]
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
    noise = _noise_sheet(facts)
    entries = [*found.table, *_over_naive(found.table), *found.ablation, *found.third]
    return result(
        NAME,
        PAGE,
        [*entries, *found.sweep, *grid, *_parameters(found)],
        _fields(found, crossed, scores, noise),
        [
            _main_sheet(found.table),
            scores.sheet(),
            comparison_sheet(
                f"{NAME}-cross-validation",
                "Vicuna 7B, temperature 0: each dataset predicted from a fit to the other five",
                crossed,
            ),
            comparison_sheet(
                f"{NAME}-known",
                "13B models, Tables 2 (ablation) and 3 (other samples): accuracy from naive_pp, "
                "the rest predicted",
                known,
            ),
            comparison_sheet(
                f"{NAME}-bandwidth",
                "Llama 2 Chat 7B, MT-bench, temperature 0: link bandwidth in Mbit/s",
                found.sweep,
            ),
            noise,
        ],
        {
            NAME: figures.table(found.table),
            f"{NAME}-ablation": figures.ablation_and_sweep(found.ablation, found.sweep),
            f"{NAME}-curves": figures.curves(found.curves),
            f"{NAME}-depths": figures.depths(found.grid),
        },
    )


def _fields(
    found: Findings, crossed: Sequence[Entry], scores: ScoreSheet, noise: Sheet
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
        "noise": max(float(row[-1] or 0.0) for row in noise.rows),
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


# --- tables --------------------------------------------------------------------------------------


def _main_sheet(entries: Sequence[Entry]) -> Sheet:
    columns = [Column("model"), Column("T"), Column("dataset")]
    for method in ROWS:
        columns += [Column(f"{method} published", shown=".2f"), Column("predicted", shown=".2f")]
        if method != "naive_pp":
            columns += [Column("low", shown=".2f"), Column("high", shown=".2f")]
            columns += [Column("error", shown="+.1%"), Column("over naive_pp", shown=".2f")]
    columns += [
        Column(f"{WITHOUT_SLIP} predicted", shown=".2f"),
        Column("over pipedec", shown=".2f"),
    ]
    sheet = Sheet(NAME, "Table 1: tokens per second (prefill included)", columns)
    cells = {e.key: e for e in entries}
    for model, temperature, dataset in product(MODELS, ("t0", "t1"), PROMPT_TOKENS):
        naive, *others = (cells[f"{model}/{temperature}/{m}/{dataset}"] for m in ROWS)
        values = [naive.published, naive.predicted]
        for entry in others:
            values += [entry.published, entry.predicted, entry.low, entry.high]
            values += [relative_error(entry), _ratio(entry.predicted, naive.predicted)]
        right = cells[f"{model}/{temperature}/{WITHOUT_SLIP}/{dataset}"]
        slipped = cells[f"{model}/{temperature}/pipedec/{dataset}"]
        values += [right.predicted, _ratio(right.predicted, slipped.predicted)]
        sheet.add(model, temperature[1:], dataset, *values)
    return sheet


def _noise_sheet(facts: Mapping[str, Any]) -> Sheet:
    """The same cell where several of the paper's tables have it."""
    samples = facts["setup"]["samples"]
    tables = ", ".join(f"Table {n} ({samples[f'table{n}']} samples)" for n in (1, 2, 3))
    sheet = Sheet(
        f"{NAME}-noise",
        f"Published sample noise: the same cell in {tables}",
        [
            Column("cell"),
            *(Column(f"Table {number}", "tokens/s", ".2f") for number in (1, 2, 3)),
            Column("largest over least", shown="+.1%"),
        ],
    )
    for row, known in facts["table1"].items():
        model, temperature, method = row.split("/")
        for dataset, first in known.items():
            second = third = None
            if model == "llama2-chat-7b":
                second = facts[f"table2_{temperature}"].get(method, {}).get(dataset)
            if dataset == "mt_bench":
                third = facts["table3"].get(f"{model}/{temperature}", {}).get(method)
            values = [value for value in (first, second, third) if value is not None]
            if len(values) > 1:
                sheet.add(f"{row}/{dataset}", first, second, third, max(values) / min(values) - 1)
    return sheet


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
