"""PipeDec, reproduced: calibrated on the range of its speed-ups with 14 stages.

Means, the static tree, other depths, the best parameters and the throughput are predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treepipe.results.metrics import METRIC
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Say
from treepipe.results.statistics import Interval
from treepipe.studies.layered import (
    Effort,
    ends,
    error_sheets,
    metric_entries,
    right,
    shared_fields,
    with_model,
)
from treepipe.studies.page import result
from treepipe.studies.pipedec.figures import grid_figure, speedup_figure, together_figure
from treepipe.studies.pipedec.testbed import STAGES, STOCHASTIC, THROUGHPUT, Found, Settings, find
from treepipe.studies.reproduction import (
    calibrated,
    cells,
    estimate,
    predicted,
    published,
)
from treepipe.studies.study import Entry, StudyResult

NAME = "pipedec-stages"
PAGE = Path(__file__).with_name("page.md")
TRIVIAL = "SpecPipe's speed-up in proportion to the stages"


def run(say: Say, full: bool) -> StudyResult:
    """6 runs of 300 tokens to calibrate and 4 for the rest, or 8 of 500 and 5 of 400."""
    return study(Settings(Effort(8, 500), Effort(5, 400)) if full else Settings(), say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Calibrate, simulate everything, and write the page."""
    found = find(settings, say)
    entries = _entries(found)
    return result(
        NAME,
        PAGE,
        entries,
        _fields(found, entries, settings.requests),
        [
            *error_sheets(NAME, entries, TRIVIAL, _trivial()),
            _stage_sheet(found),
            _grid_sheet(found),
            _together_sheet(found),
        ],
        {
            NAME: speedup_figure(found),
            "pipedec-parameters": grid_figure(found),
            "pipedec-throughput": together_figure(found),
        },
    )


def _fields(found: Found, entries: Sequence[Entry], requests: int) -> dict[str, Any]:
    """What the page says beyond the entries."""
    now = {entry.key: entry.predicted or 0.0 for entry in entries}
    slower = {
        name: now[f"stochastic/{name}/{METRIC}"] / now[f"middle/{name}/{METRIC}"] - 1
        for name in ("14-stage", "stpp")
    }
    ks = sorted({k for _, k in found.together})
    cards = published()["pipedec"]["14_stage_cards"]
    return {
        "longer": now["21-stage/over_pp/mean"] / now["14-stage/over_pp/mean"] - 1,
        "slower": slower,
        "least": {m: now[f"k={ks[0]}/{m}/{THROUGHPUT}"] for m, _ in found.together},
        "most": {m: now[f"k={ks[-1]}/{m}/{THROUGHPUT}"] for m, _ in found.together},
        "fewest_together": ks[0],
        "most_together": ks[-1],
        "stochastic": STOCHASTIC,
        "layers": sum(card.layers for card in found.cluster.cards),
        "counted_layers": 6 * cards["6_layers"] + 5 * cards["5_layers"],
        "requests": requests,
        **shared_fields(found.levels),
    }


def _entries(found: Found) -> list[Entry]:
    facts = published()["pipedec"]
    entries = []
    for name in STAGES:
        for key, ratios in (
            ("over_pp", found.over_plain(name)),
            ("over_stpp", found.over_static(name)),
        ):
            for which, value in {"mean": Interval.averaged(ratios), **ends(ratios)}.items():
                entries.append(_speedup_entry(f"{name}/{key}/{which}", value))
    width, count = found.best
    entries += [
        predicted("gain_7_to_14", "1", found.gain),
        predicted("best_width", "nodes", width, facts["width"]),
        predicted("best_children", "nodes", count, facts["children"]),
        predicted(
            "14-stage/over_pp/at_specpipe_code_level",
            "1",
            found.cases["code"]["14-stage"].metrics[METRIC].inverse(found.plain_ms),
            facts["speedup_over_pp_14_stage_range"][1],
        ),
        predicted("14-stage/pp/time_between_tokens_ms", "ms", found.plain_ms),
    ]
    cases = {
        f"{case}/{name}": outcome
        for case in ("middle", "stochastic")
        for name, outcome in found.cases[case].items()
    }
    grid = {f"width={w}/children={count}": outcome for (w, count), outcome in found.grid.items()}
    together = {f"k={count}/{method}": each for (method, count), each in found.together.items()}
    entries += metric_entries(cases, METRIC)
    entries += metric_entries(grid, METRIC, "hit_rate")
    entries += metric_entries(together, THROUGHPUT)
    return with_model(entries, found.levels)


def _speedup_entry(key: str, value: Interval) -> Entry:
    """The range over the plain pipeline with 14 stages is what the levels were fitted to."""
    low, high = published()["pipedec"]["speedup_over_pp_14_stage_range"]
    ends = {"14-stage/over_pp/low": low, "14-stage/over_pp/high": high}
    return calibrated(key, "1", value, ends[key]) if key in ends else predicted(key, "1", value)


def _trivial() -> dict[str, float]:
    """SpecPipe's speed-up on code in proportion to the stages."""
    facts = published()["specpipe"]
    ratio = facts["pp_tbt_ms_humaneval_x"] / facts["specpipe_tbt_ms_humaneval_x"]
    return {"14-stage/over_pp/at_specpipe_code_level": ratio * 14 / facts["stages"]}


# --- tables --------------------------------------------------------------------------------------


def _stage_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "pipedec-stages-speedups",
        "Speed-up of PipeDec over six levels of acceptance (plain pipeline and static tree: "
        "14 cards)",
        [
            Column("level", shown="d"),
            Column("first candidate right", shown=".2f"),
            Column("static tree", "ms"),
            *(Column(name, "ms") for name in STAGES),
            *(Column(f"{name} over pp", shown=".2f") for name in STAGES),
            *(Column(f"{name} over static", shown=".2f") for name in STAGES),
        ],
    )
    for n, level in enumerate(found.levels.six):
        sheet.add(
            n + 1,
            right(level),
            found.times["stpp"][n].mean,
            *(found.times[name][n].mean for name in STAGES),
            *(found.over_plain(name)[n].mean for name in STAGES),
            *(found.over_static(name)[n].mean for name in STAGES),
        )
    return sheet


def _grid_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "pipedec-stages-parameters",
        "14 stages, mean of the six levels: width and candidates per node",
        [
            Column("width", shown="d"),
            Column("candidates", shown="d"),
            Column("hit rate", shown=".3f"),
            *estimate("TBT", "ms"),
        ],
    )
    for (width, count), outcome in found.grid.items():
        hit = outcome.metrics["hit_rate"].mean
        sheet.add(width, count, hit, *cells(outcome.metrics[METRIC]))
    return sheet


def _together_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "pipedec-stages-throughput",
        "Throughput of k requests side by side on 14 cards",
        [
            Column("method"),
            Column("k", shown="d"),
            *estimate("throughput", "tokens/s"),
        ],
    )
    for (method, count), outcome in found.together.items():
        sheet.add(method, count, *cells(outcome.metrics[THROUGHPUT]))
    return sheet
