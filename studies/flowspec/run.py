"""The study ``flowspec-table``: what is simulated, and which entry comes of what.

Law of this file: it puts the parts together (``fit.py``, ``curves.py``) and makes the
entries; tables are in ``report.py``, sentences in ``page.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any

from treepipe.results.metrics import METRIC
from treepipe.results.show import Say
from treepipe.results.statistics import Interval
from treepipe.studies.flowspec.curves import (
    TOP1,
    Curves,
    Surrogate,
    simulate_curves,
    simulate_prefills,
    tbt_of,
    tokens_per_s,
)
from treepipe.studies.flowspec.fit import (
    FITTED_MODEL,
    LOSSES,
    ROWS,
    Fit,
    Rows,
    fits,
    form_spread,
    leave_one_out,
)
from treepipe.studies.flowspec.report import Findings, report
from treepipe.studies.flowspec.testbed import (
    METHODS,
    MODELS,
    PROMPT_TOKENS,
    TEMPERATURES,
    WITHOUT_SLIP,
    Case,
    Size,
    Times,
    larger,
    prompt_tokens,
)
from treepipe.studies.reproduction import (
    calibrated,
    predicted,
    published,
    simulated,
    t_spread,
)
from treepipe.studies.study import Entry, StudyResult

ABLATION_MODEL = SWEEP_MODEL = "llama2-chat-7b"
"""Of Table 2, and of the bandwidth sweep and the map (MT-bench, temperature 0)."""
BANDWIDTHS = (125, 250, 500, 1000)
TESTBED_MBIT = 1000
DEPTHS = (3, 4, 5, 6, 7, 8)
TABLE_METHODS = (*ROWS, WITHOUT_SLIP)
SIZE_METHODS: dict[Size, Sequence[str]] = {"7b": tuple(METHODS), "13b": TABLE_METHODS}


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is simulated: requests of 128 tokens per point, for the fit, the final curves, the
    bandwidth sweep and the map; and the map's depths."""

    fit_requests: int = 8
    curve_requests: int = 8
    sweep_requests: int = 8
    map_requests: int = 6
    depths: Sequence[int] = DEPTHS


@dataclass(frozen=True, slots=True)
class FittedTestbed:
    """A testbed at its fitted times: time between tokens by method, prefills by prompt tokens."""

    times: Times
    curves: Curves
    prefills: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Missed:
    """What the model may miss of a cell: half-widths of its prediction's logarithm.

    Attributes:
        forms: fits with every depth loss, the one that is used first.
        spreads: from cells that were left out, by size and method.
    """

    surrogate: Surrogate
    forms: Sequence[Fit]
    spreads: Mapping[Size, Mapping[str, float]]

    def around(self, value: float, method: str, size: Size, naive: float, prompt: int) -> Interval:
        """The 95 % interval of a cell, where naive_pp has ``naive`` with so many prompt tokens."""
        half = self.spreads[size].get(method)
        if half is not None and size == "7b":
            form = form_spread(self.surrogate, self.forms, naive, prompt)
            kind = "pipedec" if "pipedec" in method else "flowspec"
            half = hypot(half, form[kind])
        return Interval.within_factor(value, half)


def run(say: Say, full: bool) -> StudyResult:
    """Run the study; in full, with more requests per point."""
    return study(Settings(12, 16, 12, 8) if full else Settings(), say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Fit, predict, report."""
    facts = published()["flowspec"]
    table: Rows = facts["table1"]
    prompts = [prompt_tokens(model, d) for model in MODELS for d in PROMPT_TOKENS]
    surrogate = Surrogate.learn(LOSSES, prompts, settings.fit_requests, say)
    forms = fits(surrogate, table, list(PROMPT_TOKENS))
    found = forms[0]
    left_out = leave_one_out(surrogate, table)
    times: dict[Size, Times] = {"7b": found.times, "13b": larger(found.times)}
    clusters = {
        size: FittedTestbed(
            at,
            simulate_curves(
                SIZE_METHODS[size], size, at, found.depth_loss, settings.curve_requests, say
            ),
            simulate_prefills(size, at, prompts, say),
        )
        for size, at in times.items()
    }
    spread = _spread(left_out)
    missed = Missed(surrogate, forms, {"7b": spread, "13b": _spread_13b(clusters, table, spread)})
    main, ablation, third = (
        [entry for part in parts for entry in part.entries(clusters, missed)]
        for parts in (_first_table(table), _ablation(facts), _third_table(facts))
    )
    sweep = _sweep(settings, clusters["7b"], found, table, spread, say)
    grid = _map(settings, clusters["7b"], found, table, say)
    stated = Findings(found, left_out, times, main, ablation, third, sweep, grid)
    return report(stated, facts)


# --- cells ---------------------------------------------------------------------------------------


def cell(cluster: FittedTestbed, method: str, naive: float, prompt: int) -> tuple[float, float]:
    """Tokens per second of a method where naive_pp has ``naive``; and the top-1 accuracy there."""
    prefill = cluster.prefills[prompt]
    top1 = cluster.curves["naive_pp"].accuracy(tbt_of(naive, prefill))
    return tokens_per_s(cluster.curves[method](top1), prefill), top1


def reachable(top1: float) -> float:
    """The nearest accuracy that was simulated."""
    return min(max(top1, TOP1[0]), TOP1[-1])


def _spread(left_out: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Half-widths of 95 % intervals of the predictions' logarithms, by method.

    From the errors of the cells that were left out: they hold the published samples' noise as well
    as what the model misses. Pruned PP and the ablation's FlowSpec take FlowSpec's, PipeDec without
    the slip takes PipeDec's.
    """
    halves = {}
    for method in ("pipedec", "flowspec"):
        halves[method] = t_spread([e for (m, _), e in left_out.items() if m == method])
    others = {m: halves["flowspec"] for m in METHODS if m not in ("naive_pp", *halves)}
    return {**halves, **others, WITHOUT_SLIP: halves["pipedec"]}


def _spread_13b(
    clusters: Mapping[Size, FittedTestbed], table: Rows, spread: Mapping[str, float]
) -> dict[str, float]:
    """The same of the 13B models, from their known cells together, none of which was fitted to;
    no narrower than those of the 7B models."""
    errors = [
        cell(clusters[size], method, table[f"{model}/t0/naive_pp"][dataset], prompt)[0] / fact - 1
        for model, (size, _) in MODELS.items()
        for method in ROWS[1:]
        for dataset, fact in table.get(f"{model}/t0/{method}", {}).items()
        for prompt in [prompt_tokens(model, dataset)]
        if size == "13b"
    ]
    return {method: max(half, t_spread(errors)) for method, half in spread.items()}


@dataclass(frozen=True, slots=True)
class Part:
    """Cells of one table for one model and temperature.

    Attributes:
        key: what the cells' keys begin with.
        known: published tokens per second by method and dataset; naive_pp's must be there.
        fitted: whether the times were fitted to these cells.
    """

    key: str
    model: str
    methods: Sequence[str]
    known: Rows
    fitted: bool = False

    def entries(self, clusters: Mapping[Size, FittedTestbed], missed: Missed) -> list[Entry]:
        """Every method's cells, with the accuracy of naive_pp's."""
        size, found = MODELS[self.model][0], []
        for method in self.methods:
            for dataset, naive in self.known["naive_pp"].items():
                prompt = prompt_tokens(self.model, dataset)
                value, _ = cell(clusters[size], method, naive, prompt)
                interval = missed.around(value, method, size, naive, prompt)
                key, fact = (
                    f"{self.key}/{method}/{dataset}",
                    self.known.get(method, {}).get(dataset),
                )
                if fact is not None and (method == "naive_pp" or self.fitted):
                    found.append(calibrated(key, "tokens/s", interval, fact))
                else:
                    found.append(predicted(key, "tokens/s", interval, fact))
        return found


def _first_table(table: Rows) -> list[Part]:
    return [
        Part(
            row,
            model,
            TABLE_METHODS,
            {m: table[f"{row}/{m}"] for m in ROWS if f"{row}/{m}" in table},
            model == FITTED_MODEL,
        )
        for model in MODELS
        for row in (f"{model}/{temperature}" for temperature in TEMPERATURES)
    ]


def _ablation(facts: Mapping[str, Any]) -> list[Part]:
    methods = [method for method in METHODS if method not in ("pipedec", WITHOUT_SLIP)]
    return [
        Part(f"ablation/{t}", ABLATION_MODEL, methods, facts[f"table2_{t}"]) for t in TEMPERATURES
    ]


def _third_table(facts: Mapping[str, Any]) -> list[Part]:
    """Other samples of MT-bench: the same cells of Table 1, with another accuracy."""
    return [
        Part(
            f"table3/{row}",
            row.split("/")[0],
            ROWS,
            {method: {"mt_bench": rate} for method, rate in known.items()},
        )
        for row, known in facts["table3"].items()
    ]


# --- what is simulated on its own ----------------------------------------------------------------


def _sweep(
    settings: Settings,
    cluster: FittedTestbed,
    found: Fit,
    table: Rows,
    spread: Mapping[str, float],
    say: Say,
) -> list[Entry]:
    """The table's cell, times what another bandwidth makes of the same simulated texts."""
    naive = table[f"{SWEEP_MODEL}/t0/naive_pp"]["mt_bench"]
    prompt = prompt_tokens(SWEEP_MODEL, "mt_bench")
    base = {method: cell(cluster, method, naive, prompt) for method in ROWS}
    cases = {
        f"bandwidth={rate}/{method}": Case(
            method,
            "7b",
            cluster.times,
            reachable(base[method][1]),
            found.depth_loss,
            settings.sweep_requests,
            {"links.default.bandwidth_mbit_s": rate, "workload.prompt_tokens": prompt},
        )
        for rate in BANDWIDTHS
        for method in ROWS
    }
    scenarios = {key: case.scenario() for key, case in cases.items()}
    outcomes = simulated(scenarios, say, "link bandwidths")
    reached = {key: o.metrics["throughput_tokens_s"].mean for key, o in outcomes.items()}
    entries = []
    for key, case in cases.items():
        ratio = reached[key] / reached[f"bandwidth={TESTBED_MBIT}/{case.method}"]
        mean = base[case.method][0] * ratio
        value = Interval.within_factor(mean, spread.get(case.method))
        entries.append(predicted(key, "tokens/s", value))
    return entries


def _map(
    settings: Settings, cluster: FittedTestbed, found: Fit, table: Rows, say: Say
) -> dict[tuple[int, int], float]:
    """FlowSpec's tokens per second by d0 and d_exp."""
    naive = table[f"{SWEEP_MODEL}/t0/naive_pp"]["mt_bench"]
    prompt = prompt_tokens(SWEEP_MODEL, "mt_bench")
    value, top1 = cell(cluster, "flowspec", naive, prompt)
    pairs = [(d0, d_exp) for d0 in settings.depths for d_exp in settings.depths]
    scenarios = {
        f"{d0} {d_exp}": Case(
            "flowspec",
            "7b",
            cluster.times,
            reachable(top1),
            found.depth_loss,
            settings.map_requests,
            {"schedule.tree_depth": d0, "schedule.expand_depth": d_exp},
        ).scenario()
        for d0, d_exp in pairs
    }
    outcomes = simulated(scenarios, say, "depths of the trees")
    tbt = {p: outcomes[f"{p[0]} {p[1]}"].metrics[METRIC].mean for p in pairs}
    prefill = cluster.prefills[prompt]
    own = tbt.get((6, 6), cluster.curves["flowspec"](top1))
    factor = tbt_of(value, prefill) / own  # as in the table where it is the table's own point
    return {pair: tokens_per_s(ms * factor, prefill) for pair, ms in tbt.items()}
