"""What the study ``flowspec-table`` says: entries, scores beside a trivial predictor's, sentences.

Law of this file: nothing is simulated or fitted here. Plots are in ``figures.py``, the page's lists
in ``page.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from treepipe.results.sheet import Column, Sheet
from treepipe.studies.flowspec import figures
from treepipe.studies.flowspec.fit import FITTED_MODEL, ROWS
from treepipe.studies.flowspec.statements import Findings, fields
from treepipe.studies.flowspec.testbed import MODELS, PROMPT_TOKENS
from treepipe.studies.page import fill
from treepipe.studies.reproduction import ScoreSheet, comparison_sheet, predicted, score
from treepipe.studies.study import Entry, StudyResult

NAME = "flowspec-table"
PAGE = Path(__file__).with_name("page.md")
METHODS = ROWS[1:]


def report(found: Findings, facts: Mapping[str, Any]) -> StudyResult:
    """Entries, tables, plots and sentences."""
    rows = facts["table1"]
    crossed = _crossed(found, rows)
    known = [e for e in (*found.ablation, *found.third) if e.published is not None]
    grid = [predicted(f"d0={a}/d_exp={b}/flowspec", "tokens/s", v) for (a, b), v in _items(found)]
    scores = _scores(crossed, known, rows)
    tables = [
        _main_sheet(found.table),
        scores.sheet(),
        comparison_sheet(
            f"{NAME}-cross-validation",
            "Vicuna 7B, temperature 0: each dataset predicted from a fit to the other five",
            crossed,
        ),
        comparison_sheet(
            f"{NAME}-known",
            "Tables 2 (ablation) and 3 (other samples): accuracy from naive_pp, the rest predicted",
            known,
        ),
        comparison_sheet(
            f"{NAME}-bandwidth",
            "Llama 2 Chat 7B, MT-bench, temperature 0: link bandwidth in Mbit/s",
            found.sweep,
        ),
        _noise_sheet(facts),
    ]
    most = max(float(row[-1] or 0.0) for row in tables[-1].rows)
    drawn = {
        NAME: figures.table(found.table),
        f"{NAME}-ablation": figures.ablation_and_sweep(found.ablation, found.sweep),
        f"{NAME}-curves": figures.curves(found.curves),
        f"{NAME}-depths": figures.depths(found.grid),
    }
    entries = [*found.table, *_ratios(found.table), *found.ablation, *found.third]
    return StudyResult(
        NAME,
        [*entries, *found.sweep, *grid, *_parameters(found)],
        tables,
        drawn,
        _findings(found, crossed, scores),
        sections=fill(PAGE, entries, fields(found, most)).sections,
    )


def _items(found: Findings) -> Iterable[tuple[tuple[int, int], float]]:
    return sorted(found.grid.items())


# --- scores --------------------------------------------------------------------------------------


def _crossed(found: Findings, rows: Mapping[str, Mapping[str, float]]) -> list[Entry]:
    """The cells that were left out of the fit, as true predictions."""
    entries = []
    for (method, dataset), error in found.left_out.items():
        fact = rows[f"{FITTED_MODEL}/t0/{method}"][dataset]
        key = f"left-out/{FITTED_MODEL}/t0/{method}/{dataset}"
        entries.append(predicted(key, "tokens/s", fact * (1 + error), fact))
    return entries


def _scores(
    crossed: Sequence[Entry], known: Sequence[Entry], rows: Mapping[str, Mapping[str, float]]
) -> ScoreSheet:
    """Ours beside a constant ratio to naive_pp, method by method."""
    sheet = ScoreSheet(f"{NAME}-scores")
    for method in METHODS:
        mine = [e for e in crossed if f"/{method}/" in e.key]
        trivial = {e.key: _ratio_without(rows, method, e.key.split("/")[-1]) for e in mine}
        sheet.add(f"{method}, dataset left out", score(mine))
        sheet.add(f"{method}, dataset left out: trivial", score(mine, trivial))
    naive = {e.key: e.published for e in known if "/naive_pp/" in e.key}
    for table, name in (("ablation", "Table 2"), ("table3", "Table 3")):
        for method in _methods(known):
            mine = [e for e in known if e.key.startswith(table) and f"/{method}/" in e.key]
            sheet.add(f"{method}, {name}", score(mine))
            if method in METHODS:
                ratio = exp(fmean(_log_ratios(rows, method).values()))
                trivial = {
                    e.key: ratio * (naive[e.key.replace(f"/{method}/", "/naive_pp/")] or 0)
                    for e in mine
                }
                sheet.add(f"{method}, {name}: trivial", score(mine, trivial))
    return sheet


def _methods(entries: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(e.key.split("/")[-2] for e in entries))


def _log_ratios(rows: Mapping[str, Mapping[str, float]], method: str) -> dict[str, float]:
    """The log speed-ups of a method over naive_pp (Vicuna 7B, temperature 0), by dataset."""
    naive = rows[f"{FITTED_MODEL}/t0/naive_pp"]
    return {d: log(v / naive[d]) for d, v in rows[f"{FITTED_MODEL}/t0/{method}"].items()}


def _ratio_without(rows: Mapping[str, Mapping[str, float]], method: str, dataset: str) -> float:
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
    sheet = Sheet(NAME, "Table 1: tokens per second (prefill included)", columns)
    cells = {e.key: e for e in entries}
    for model in MODELS:
        for temperature in ("t0", "t1"):
            for dataset in PROMPT_TOKENS:
                values: list[float | None] = []
                for method in ROWS:
                    entry = cells[f"{model}/{temperature}/{method}/{dataset}"]
                    naive = cells[f"{model}/{temperature}/naive_pp/{dataset}"].predicted
                    values += [entry.published, entry.predicted]
                    if method != "naive_pp":
                        assert entry.predicted is not None
                        assert naive is not None
                        error = entry.predicted / entry.published - 1 if entry.published else None
                        values += [entry.low, entry.high, error, entry.predicted / naive]
                sheet.add(model, temperature[1:], dataset, *values)
    return sheet


def _noise_sheet(facts: Mapping[str, Any]) -> Sheet:
    """The same cell where several of the paper's tables have it."""
    sheet = Sheet(
        f"{NAME}-noise",
        "Published sample noise: the same cell in Table 1 (20 samples), 2 and 3 (10 samples)",
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


def _ratios(entries: Sequence[Entry]) -> list[Entry]:
    """Entries of pipedec and flowspec over naive_pp."""
    cells = {e.key: e for e in entries}
    found = []
    for key, entry in cells.items():
        model, temperature, method, dataset = key.split("/")
        if method == "naive_pp":
            continue
        naive = cells[f"{model}/{temperature}/naive_pp/{dataset}"]
        assert naive.predicted is not None
        assert entry.predicted is not None
        fact = entry.published / naive.published if entry.published and naive.published else None
        found.append(
            Entry(
                f"{key}/over_naive_pp",
                "1",
                entry.predicted / naive.predicted,
                None if entry.low is None else entry.low / naive.predicted,
                None if entry.high is None else entry.high / naive.predicted,
                published=fact,
                role=entry.role,
            )
        )
    return found


def _parameters(found: Findings) -> list[Entry]:
    entries = [predicted("fit/depth_loss", "1", found.fit.depth_loss)]
    for size, times in found.times.items():
        for name in ("stage_ms", "sync_ms", "draft_ms"):
            entries.append(predicted(f"fit/{size}/{name}", "ms", getattr(times, name)))
    return entries


# --- findings ------------------------------------------------------------------------------------


def _findings(found: Findings, crossed: Sequence[Entry], scores: ScoreSheet) -> list[str]:
    named = dict(scores.rows)
    said = []
    for method in METHODS:
        ours, trivial = (named[f"{method}, dataset left out{end}"] for end in ("", ": trivial"))
        verdict = "better" if ours.mean < trivial.mean else "no better"
        said.append(
            f"{method} on Vicuna 7B, T = 0, each dataset predicted from the other five: mean "
            f"absolute error {ours.mean:.1%}; a constant ratio to naive_pp: {trivial.mean:.1%} "
            f"({verdict} than trivial)"
        )
    known = [*crossed, *found.third]
    right, always, count = _order(known)
    said.append(
        f"who is faster, PipeDec or FlowSpec: right in {right} of {count} known cells; always "
        f"saying FlowSpec: {always}"
    )
    said.append(_wins(found.table))
    means = [_mean(found.table, f"{FITTED_MODEL}/t1/{method}/") for method in METHODS]
    said.append(
        f"Vicuna 7B at T = 1, mean of the datasets: PipeDec {means[0]:.2f} and FlowSpec "
        f"{means[1]:.2f} tokens/s predicted; the paper says that FlowSpec is marginally behind"
    )
    best = max(found.grid, key=lambda pair: found.grid[pair])
    said.append(
        f"depths of FlowSpec's trees (Llama 2 Chat 7B, MT-bench, T = 0): best d0 = {best[0]}, "
        f"d_exp = {best[1]} with {found.grid[best]:.2f} tokens/s: a deeper expansion takes longer "
        f"to draft than a stage takes to compute"
    )
    return said


def _mean(entries: Sequence[Entry], start: str) -> float:
    return fmean(e.predicted or 0.0 for e in entries if e.key.startswith(start))


def _order(entries: Sequence[Entry]) -> tuple[int, int, int]:
    """Cells in which the faster one of pipedec and flowspec is told rightly; in which it is
    flowspec; and all of them."""
    cells = {e.key: e for e in entries}
    right, always, count = 0, 0, 0
    for key, one in cells.items():
        other = cells.get(key.replace("/pipedec/", "/flowspec/"))
        if "/pipedec/" in key and other and one.published and other.published:
            assert one.predicted is not None
            assert other.predicted is not None
            count += 1
            right += (one.predicted > other.predicted) == (one.published > other.published)
            always += other.published > one.published
    return right, always, count


def _wins(entries: Sequence[Entry]) -> str:
    cells = {e.key: e.predicted or 0.0 for e in entries}
    ahead = [
        key.replace("/pipedec/", " ")
        for key, value in cells.items()
        if "/pipedec/" in key and value > cells[key.replace("/pipedec/", "/flowspec/")]
    ]
    shown = ", ".join(ahead) if ahead else "none"
    count = sum("/pipedec/" in key for key in cells)
    return f"PipeDec is predicted ahead of FlowSpec in {len(ahead)} of {count} cells: {shown}"
