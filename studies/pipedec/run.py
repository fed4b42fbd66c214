"""PipeDec, reproduced: calibrated on the range of its speed-ups with 14 stages.

Means, the static tree, other depths, the best parameters and the throughput are predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from treepipe.results.metrics import METRIC
from treepipe.results.show import Say
from treepipe.results.statistics import Interval
from treepipe.studies.layered import (
    Effort,
    add_errors,
    ends,
    right,
    shared_fields,
    times,
    with_model,
)
from treepipe.studies.pipedec.testbed import (
    COMPARED,
    METHODS,
    STAGES,
    STOCHASTIC,
    Found,
    Settings,
    find,
)
from treepipe.studies.plots import Panel, line_figure, shaded
from treepipe.studies.reproduction import (
    Reproduction,
    calibrated,
    metric_entries,
    predicted,
    published,
)
from treepipe.studies.study import Entry, StudyResult

NAME = "pipedec-stages"
PAGE = Path(__file__).with_name("page.md")
TRIVIAL = "SpecPipe's speed-up in proportion to the stages"
THROUGHPUT = "throughput_tokens_s"
AT_CODE = "14-stage/over_pp/at_specpipe_code_level"


def run(say: Say, full: bool) -> StudyResult:
    """6 runs of 300 tokens to calibrate and 4 for the rest, or 8 of 500 and 5 of 400."""
    return study(Settings(Effort(8, 500), Effort(5, 400)) if full else Settings(), say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Calibrate, simulate everything, and write the page."""
    found = find(settings, say)
    made = Reproduction(NAME, PAGE)
    made.add(with_model([*_speed_ups(found), *_single(found), *_compared(found)], found.levels))
    grid = {f"width={width}/children={n}": each for (width, n), each in found.grid.items()}
    made.add(
        with_model(metric_entries(grid, METRIC, "hit_rate"), found.levels),
        "parameters",
        "14 stages, mean of the six levels: width and candidates per node",
    )
    together = {f"k={count}/{method}": each for (count, method), each in found.together.items()}
    made.add(
        with_model(metric_entries(together, THROUGHPUT), found.levels),
        "throughput",
        "Throughput of k requests side by side on 14 cards",
    )
    add_errors(made, TRIVIAL, _trivial())
    return made.result(_fields(found, made.now, settings.requests), _figures(found))


def _speed_ups(found: Found) -> list[Entry]:
    """Mean, least and largest speed-up over the levels. The range over the plain pipeline with 14
    stages is what the levels were fitted to."""
    low, high = published()["pipedec"]["speedup_over_pp_14_stage_range"]
    fitted = {"14-stage/over_pp/low": low, "14-stage/over_pp/high": high}
    entries = []
    for name in STAGES:
        both = {"over_pp": found.over_plain(name), "over_stpp": found.over_static(name)}
        for over, ratios in both.items():
            for which, value in {"mean": Interval.averaged(ratios), **ends(ratios)}.items():
                key = f"{name}/{over}/{which}"
                if key in fitted:
                    entries.append(calibrated(key, "1", value, fitted[key]))
                else:
                    entries.append(predicted(key, "1", value))
    return entries


def _single(found: Found) -> list[Entry]:
    facts = published()["pipedec"]
    width, count = found.best
    at_code = found.cases["code"]["14-stage"].metrics[METRIC].inverse(found.plain_ms)
    return [
        predicted("gain_7_to_14", "1", found.gain),
        predicted("best_width", "nodes", width, facts["width"]),
        predicted("best_children", "nodes", count, facts["children"]),
        predicted(AT_CODE, "1", at_code, facts["speedup_over_pp_14_stage_range"][1]),
        predicted("14-stage/pp/time_between_tokens_ms", "ms", found.plain_ms),
    ]


def _compared(found: Found) -> list[Entry]:
    cases = {f"{c}/{n}": found.cases[c][n] for c in ("middle", "stochastic") for n in COMPARED}
    return metric_entries(cases, METRIC)


def _trivial() -> dict[str, float]:
    """SpecPipe's speed-up on code in proportion to the stages."""
    facts = published()["specpipe"]
    ratio = facts["pp_tbt_ms_humaneval_x"] / facts["specpipe_tbt_ms_humaneval_x"]
    return {AT_CODE: ratio * 14 / facts["stages"]}


def _fields(found: Found, now: Mapping[str, float], requests: int) -> dict[str, Any]:
    """What the page says beyond the entries."""
    fewest, *_, most = sorted({k for k, _ in found.together})
    return {
        "longer": now["21-stage/over_pp/mean"] / now["14-stage/over_pp/mean"] - 1,
        "slower": {
            name: now[f"stochastic/{name}/{METRIC}"] / now[f"middle/{name}/{METRIC}"] - 1
            for name in COMPARED
        },
        "least": {method: now[f"k={fewest}/{method}/{THROUGHPUT}"] for method in METHODS},
        "most": {method: now[f"k={most}/{method}/{THROUGHPUT}"] for method in METHODS},
        "fewest_together": fewest,
        "most_together": most,
        "stochastic": STOCHASTIC,
        "requests": requests,
        **shared_fields(found.levels),
    }


def _figures(found: Found) -> dict[str, Figure]:
    """Speed-ups against acceptance, the grid of parameters, and throughput."""
    shares = [right(level) for level in found.levels.six]

    def by_level(ratios: list[Interval]) -> dict[float, Interval]:
        return dict(zip(shares, ratios, strict=True))

    over_plain = {f"PipeDec, {name}": by_level(found.over_plain(name)) for name in STAGES}
    over_plain["static tree"] = by_level(found.over_plain("stpp"))
    over_static = {f"PipeDec, {name}": by_level(found.over_static(name)) for name in STAGES}
    counts = sorted({count for _, count in found.grid})
    swept = {
        metric: {
            f"{n} candidates": times({w: o for (w, c), o in found.grid.items() if c == n}, metric)
            for n in counts
        }
        for metric in (METRIC, "hit_rate")
    }
    together = {
        name: times(
            {k: o for (k, method), o in found.together.items() if method == name}, THROUGHPUT
        )
        for name in METHODS
    }
    return {
        NAME: line_figure(
            "PipeDec on RTX 3090 (21 stages: with RTX 4090 and L40)",
            "share of tokens that are the draft's first candidate",
            [
                Panel("times as fast as the plain pipeline", shaded(over_plain)),
                Panel("times as fast as the static tree", shaded(over_static)),
            ],
            columns=2,
        ),
        "pipedec-parameters": line_figure(
            "PipeDec, 14 stages: candidates per node and width",
            "width w: most nodes of a tree layer",
            [
                Panel("time between tokens (ms)", shaded(swept[METRIC]), zero=False),
                Panel("hit rate", shaded(swept["hit_rate"]), zero=False),
            ],
            log=True,
        ),
        "pipedec-throughput": line_figure(
            "14 cards: PipeDec serves one request after another",
            "requests side by side (k)",
            [Panel("throughput (tokens/s)", shaded(together))],
        ),
    }
